package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gdr_exporter/cmd/vmtest/node"
)

func TestNodeOptions(t *testing.T) {
	for _, test := range []struct {
		args                       string
		nodes, rails, mtu, devices int
		memory                     string
		wantNetem, wantRDMA        bool
	}{
		{"", 1, 0, 0, 1, "2G", false, true},
		{"--nodes 2", 2, 1, 9000, 1, "1G", true, true},
		{"--nodes 8 --rails 4 --mtu 1500 --memory 512M", 8, 4, 1500, 4, "512M", true, true},
		{"--nodes 3 --rails 2 --devices 0", 3, 2, 9000, 0, "1G", true, false},
		{"--nodes 2 --devices 3", 2, 1, 9000, 3, "1G", true, true},
		{"--nodes 2 --topology numa", 2, 1, 9000, 1, "2G", true, true},
	} {
		got, err := parseOptions(append(strings.Fields(test.args), "--", "true"))
		if err != nil {
			t.Errorf("%s: %v", test.args, err)
			continue
		}
		if got.nodes != test.nodes || got.rails != test.rails || got.mtu != test.mtu || got.devices != test.devices || got.memory != test.memory {
			t.Errorf("%s: %+v", test.args, got)
		}
		names := got.kernelModules()
		if slices.Contains(names, "sch_netem") != test.wantNetem || slices.Contains(names, "rdma_rxe") != test.wantRDMA {
			t.Errorf("%s: modules %v", test.args, names)
		}
	}
}

func TestNodeUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"--nodes 0":                           "--nodes 0: must be between 1 and 8",
		"--nodes 9":                           "--nodes 9: must be between 1 and 8",
		"--nodes 2 --rails 0":                 "--rails 0: must be between 1 and 8",
		"--nodes 2 --rails 9":                 "--rails 9: must be between 1 and 8",
		"--nodes 2 --mtu 100":                 "--mtu 100: must be between 1280 and 9000",
		"--nodes 2 --mtu 9001":                "--mtu 9001: must be between 1280 and 9000",
		"--rails 2":                           "--rails and --mtu are of the networks of --nodes",
		"--mtu 1500":                          "--rails and --mtu are of the networks of --nodes",
		"--nodes 3 --forward 65534:80":        "--forward 65534:80: there are no 3 ports from 65534 on",
		"--nodes 3 --forward 80 --forward 82": "--forward 82:82: 3 nodes have ports from 80 on already",
		"--nodes 2 --forward 0:0":             `--forward 0:0: "0" is not a TCP port`,
	} {
		_, err := parseOptions(append(strings.Fields(args), "--", "true"))
		var usage *usageError
		if !errors.As(err, &usage) || err.Error() != want {
			t.Errorf("%s: got %v, want %s", args, err, want)
		}
	}
	for _, args := range []string{"--nodes 3 --forward 65533:80", "--nodes 3 --forward 80 --forward 83", "--forward 80 --forward 81", "--nodes 3 --forward 0:80 --forward 0:81"} {
		if _, err := parseOptions(append(strings.Fields(args), "--", "true")); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestHelpOfNodes(t *testing.T) {
	got := vmtest(t, "--help")
	text := strings.Join(strings.Fields(got.stdout+got.stderr), " ")
	for _, want := range []string{"--nodes=1 Number of VMs that run the command at once", "--rails=1 Number of networks that join", "--mtu=9000 MTU of the networks"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the help:\n%s", want, got.stdout+got.stderr)
		}
	}
}

func TestNodeForwards(t *testing.T) {
	opts := &options{nodes: 3, forwards: []forward{{18080, 8080}, {0, 9090}, {0, 9091}}}
	all, err := nodeForwards(opts)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint16]bool{}
	for i, forwards := range all {
		if forwards[0] != (forward{18080 + uint16(i), 8080}) {
			t.Errorf("node %d: %+v", i+1, forwards[0])
		}
		for j, f := range forwards[1:] {
			if f.host == 0 || seen[f.host] || f.guest != uint16(9090+j) {
				t.Errorf("node %d: %+v after %v", i+1, f, seen)
			}
			seen[f.host] = true
			listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", f.host))
			if err != nil {
				t.Errorf("a port that is not free: %v", err)
				continue
			}
			_ = listener.Close()
		}
	}
	if opts.forwards[0].host != 18080 || opts.forwards[1].host != 0 {
		t.Errorf("the options have changed: %+v", opts.forwards)
	}
}

func TestQemuRails(t *testing.T) {
	alone := strings.Join(qemuConfig{memory: "1G", control: 7}.args(), " ")
	if strings.Contains(alone, "rail") || strings.Contains(alone, nodeArgument) {
		t.Errorf("a VM that is alone has rails: %s", alone)
	}
	line := strings.Join(qemuConfig{memory: "1G", node: 3, rails: 2, control: 7, firstRail: 8}.args(), " ")
	for _, want := range []string{
		"vmtest.node=3", "-netdev socket,id=rail0,fd=8 -device virtio-net-pci,netdev=rail0,mac=52:54:00:63:00:03,",
		"-netdev socket,id=rail1,fd=9 -device virtio-net-pci,netdev=rail1,mac=52:54:00:63:01:03,", "speed=25000,duplex=full",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("no %q in %s", want, line)
		}
	}
	if strings.Index(line, "id=user0") > strings.Index(line, "id=rail0") {
		t.Error("eth0 would be a rail")
	}
}

func TestLinksWithRails(t *testing.T) {
	links, err := newLinks(2)
	if err != nil {
		t.Fatal(err)
	}
	defer links.closeNear()
	defer links.closeFar()
	if far := links.far(); len(far) != 6 || far[4] != links.rails[0].far || far[5] != links.rails[1].far {
		t.Errorf("QEMU's ends: %v", far)
	}
}

func TestReadNode(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cmdline")
	for text, want := range map[string]int{"console=ttyS0 vmtest.node=7 quiet\n": 7, "quiet": 0, "vmtest.node=x": 0, "": 0} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readNode(file); got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
}

func TestHosts(t *testing.T) {
	want := `127.0.0.1 localhost
::1 localhost ip6-localhost
10.99.0.1 node1 node1-rail0
fd99::1 node1-rail0-ip6
10.99.1.1 node1-rail1
fd99:0:0:1::1 node1-rail1-ip6
10.99.0.2 node2 node2-rail0
fd99::2 node2-rail0-ip6
10.99.1.2 node2-rail1
fd99:0:0:1::2 node2-rail1-ip6
`
	if got := hosts(2, 2); got != want {
		t.Errorf("got\n%s", got)
	}
}

func TestPrefixer(t *testing.T) {
	var out bytes.Buffer
	shared := new(sync.Mutex)
	a, b := newPrefixer(&out, "node1: ", shared), newPrefixer(&out, "node2: ", shared)
	write := func(p *prefixer, text string) {
		t.Helper()
		if n, err := p.Write([]byte(text)); n != len(text) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	write(a, "one\ntw")
	write(b, "other\n\n")
	write(a, "o\n")
	write(a, "end")
	write(b, "")
	a.flush()
	a.flush()
	b.flush()
	if want := "node1: one\nnode2: other\nnode2: \nnode1: two\nnode1: end\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	out.Reset()
	write(a, strings.Repeat("x", mostLine+1))
	if len(a.part) != 0 || out.Len() != len("node1: ")+mostLine+2 {
		t.Errorf("a line without end: %d bytes kept, %d passed on", len(a.part), out.Len())
	}
}

// TestFleet: no command starts before all VMs are there, and no VM ends before the
// last command.
func TestFleet(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(node.SharedEnv, dir)
	ctx, stop := context.WithCancelCause(t.Context())
	f := &fleet{shared: dir, size: 3, stop: stop, over: make(chan struct{})}
	early, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	f.isReady()
	f.isReady()
	if err := node.WaitStart(early, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("started with two of three VMs: %v", err)
	}
	f.isReady()
	if err := node.WaitStart(t.Context(), dir); err != nil {
		t.Error(err)
	}
	var said bytes.Buffer
	ended := make(chan error, 3)
	end := func(n, status int) {
		v := &vm{node: n, stdout: newPrefixer(&said, "> ", new(sync.Mutex)), stderr: newPrefixer(&bytes.Buffer{}, "", new(sync.Mutex))}
		_, _ = v.stdout.Write([]byte("rest"))
		ended <- f.isDone(ctx, v, status)
	}
	go end(1, 0)
	eventually(t, time.Minute, "end of node 1", func() bool { _, is := node.Ended(1); return is })
	go end(2, 3)
	eventually(t, time.Minute, "end of node 2", func() bool { status, is := node.Ended(2); return is && status == 3 })
	select {
	case err := <-ended:
		t.Fatalf("a VM ends before the last command: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	go end(3, 1)
	for range 3 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if f.worst != 3 {
		t.Errorf("worst exit status %d", f.worst)
	}
}

// TestFleetStops: what keeps one VM from running ends the others, which say why.
func TestFleetStops(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	f := &fleet{shared: t.TempDir(), size: 2, stop: stop, over: make(chan struct{})}
	why := errors.New("no QEMU")
	v := &vm{node: 1, stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}}
	ended := make(chan error)
	go func() { ended <- f.isDone(ctx, v, 0) }()
	stop(why)
	if err := <-ended; !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

func TestSharedDir(t *testing.T) {
	cache := t.TempDir()
	mine, remove, err := newSharedDir(cache)
	if err != nil {
		t.Fatal(err)
	}
	killed, unlock := filepath.Join(cache, "shared", "run-killed"), filepath.Join(cache, "shared", "run-new")
	for _, dir := range []string{killed, unlock} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{filepath.Join(mine, "file"), filepath.Join(killed, "file")} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, removeOther, err := newSharedDir(cache)
	if err != nil {
		t.Fatal(err)
	}
	if !exists(filepath.Join(mine, "file")) || !exists(unlock) || exists(killed) {
		t.Errorf("in use %t, just made %t, of a killed run %t", exists(mine), exists(unlock), exists(killed))
	}
	remove()
	removeOther()
	left, err := os.ReadDir(filepath.Join(cache, "shared"))
	if err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
	if _, _, err := newSharedDir(filepath.Join(cache, "a,b")); err == nil || !strings.Contains(err.Error(), "comma") {
		t.Errorf("got %v", err)
	}
}
