package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gdr_exporter/cmd/vmtest/node"
)

// barrierName is the name under which the binary is the barrier of shell scripts.
const barrierName = "vmtest-barrier"

// readNode finds out which of several VMs this is.
func readNode(cmdline string) (int, error) {
	text, err := os.ReadFile(cmdline)
	if err != nil {
		return 0, fmt.Errorf("node number: %w", err)
	}
	for word := range strings.FieldsSeq(string(text)) {
		if number, is := strings.CutPrefix(word, nodeArgument); is {
			return strconv.Atoi(number)
		}
	}
	return 0, fmt.Errorf("node number: no %s in %q", nodeArgument, text)
}

// nodeEnv is what the command is told of the nodes.
func (c guestConfig) nodeEnv() []string {
	return []string{
		node.NumberEnv + "=" + strconv.Itoa(c.Node), node.CountEnv + "=" + strconv.Itoa(c.Nodes),
		node.RailsEnv + "=" + strconv.Itoa(c.Rails), node.SharedEnv + "=" + sharedDir,
	}
}

func (c guestConfig) hostName() string {
	if c.Nodes == 0 {
		return "vmtest"
	}
	return node.Name(c.Node)
}

// railName is the network interface on a rail.
func railName(rail int) string { return fmt.Sprintf("rail%d", rail) }

// setUpRails gives the NICs on the LANs their names and addresses. Which is which is
// said by their hardware addresses: a topology may have NICs too.
func setUpRails(config guestConfig) error {
	var commands []string
	for rail := range config.Rails {
		found, err := interfaceOf(railMAC(config.Node, rail))
		if err != nil {
			return err
		}
		name := railName(rail)
		commands = append(commands,
			"link set "+found+" down",
			"link set "+found+" name "+name,
			fmt.Sprintf("link set %s mtu %d up", name, config.MTU),
			fmt.Sprintf("addr add %v/24 dev %s", node.Address(config.Node, rail), name),
			fmt.Sprintf("addr add %v/64 dev %s nodad", node.Address6(config.Node, rail), name),
		)
	}
	if len(commands) == 0 {
		return nil
	}
	return batch("ip", commands...)
}

// interfaceOf is the name of the network interface with a hardware address.
func interfaceOf(mac string) (string, error) {
	files, err := filepath.Glob("/sys/class/net/*/address")
	if err != nil {
		return "", err // only for a malformed pattern
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(text)) == mac {
			return filepath.Base(filepath.Dir(file)), nil
		}
	}
	return "", fmt.Errorf("no network interface has the address %s", mac)
}

// writeHosts lets nodes be found by their names.
func writeHosts(config guestConfig) error {
	if config.Nodes == 0 {
		return nil
	}
	if err := os.WriteFile("/etc/hosts", []byte(hosts(config.Nodes, config.Rails)), 0o644); err != nil {
		return fmt.Errorf("names of the nodes: %w", err)
	}
	return nil
}

// hosts is /etc/hosts. A node's own name is its address on rail 0: with several
// addresses some programs try only the first.
func hosts(nodes, rails int) string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost\n")
	for n := 1; n <= nodes; n++ {
		for rail := range rails {
			name := fmt.Sprintf("%s-%s", node.Name(n), railName(rail))
			names := name
			if rail == 0 {
				names = node.Name(n) + " " + name
			}
			fmt.Fprintf(&b, "%v %s\n%v %s-ip6\n", node.Address(n, rail), names, node.Address6(n, rail), name)
		}
	}
	return b.String()
}

// linkBarrier makes the barrier of shell scripts.
func linkBarrier(config guestConfig) error {
	if config.Nodes == 0 {
		return nil
	}
	if err := os.Symlink(guestName, filepath.Join(guestDir, barrierName)); err != nil {
		return fmt.Errorf("barrier: %w", err)
	}
	return nil
}

// awaitNodes waits until all VMs are set up. The machine ends those that wait for one
// that never is.
func awaitNodes(config guestConfig) error {
	if config.Nodes == 0 {
		return nil
	}
	return node.WaitStart(context.Background(), sharedDir)
}

// barrierMain waits for the other nodes and returns its exit status.
func barrierMain(args []string) int {
	if len(args) != 1 {
		fmt.Fprintf(os.Stderr, "usage: %s NAME\n", barrierName)
		return exitUsage
	}
	if err := node.Barrier(context.Background(), args[0]); err != nil {
		fmt.Fprintln(os.Stderr, "vmtest:", err)
		return 1
	}
	return 0
}
