package stack_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/deploy/stack"
)

// peersEnv asks for TestPeers.
const peersEnv = "STACK_PEERS"

// TestPeers: the exporters of three test kernels measure each other over soft-RoCE, and a
// real Prometheus scrapes them. When the path between two of them is cut the alert names
// the pair, and when one of them reaches nobody any more it names that node.
func TestPeers(t *testing.T) {
	if os.Getenv(peersEnv) == "" {
		t.Skip("takes half an hour: make soak sets " + peersEnv)
	}
	nodes := bootPeers(t)
	// Rules wait a quarter of the time that they wait elsewhere. What the nodes do is by the
	// wall clock: each has looked at both others after three minutes, and the alert of a
	// pair must wait for that longer than that of a node.
	s := start(t, stack.Options{Nodes: nodes.targets(), Speed: 4, Scrape: 5 * time.Second})
	good := func(count int) func() bool {
		return func() bool { return total(t, s, "sum(gdr_peer_good)") == count }
	}
	const longest = 100 * time.Hour // by the clock
	await(t, s, "each node is good as the two others see it", longest, good(6))
	if pairs := firing(t, s, "GDRPeerPathBad", "GDRPeerNodeBad"); len(pairs) > 0 {
		t.Errorf("alerts while all is well: %v", pairs)
	}

	const cut = "ip neigh replace 10.99.0.%d lladdr 02:00:00:00:ee:ee nud permanent dev rail0"
	nodes.do(t, 1, fmt.Sprintf(cut, 2))
	nodes.do(t, 2, fmt.Sprintf(cut, 1))
	began := time.Now()
	await(t, s, "the alert for the pair", longest, func() bool { return len(firing(t, s, "GDRPeerPathBad")) > 0 })
	t.Logf("cut between node1 and node2: after %v %v", time.Since(began).Round(time.Second), firing(t, s, "GDRPeerPathBad", "GDRPeerNodeBad"))
	for _, alert := range firing(t, s, "GDRPeerPathBad", "GDRPeerNodeBad") {
		if alert != "GDRPeerPathBad node1 node2" && alert != "GDRPeerPathBad node2 node1" {
			t.Errorf("alert %s", alert)
		}
	}

	const mend = "ip neigh del 10.99.0.%d dev rail0"
	nodes.do(t, 1, fmt.Sprintf(mend, 2))
	nodes.do(t, 2, fmt.Sprintf(mend, 1))
	await(t, s, "all is well again", longest, good(6))
	await(t, s, "no alert", longest, func() bool { return len(firing(t, s, "GDRPeerPathBad", "GDRPeerNodeBad")) == 0 })

	nodes.do(t, 3, "tc qdisc add dev rail0 root netem loss 100%")
	began = time.Now()
	await(t, s, "the alert for the node", longest, func() bool { return len(firing(t, s, "GDRPeerNodeBad")) > 0 })
	t.Logf("node3 sends nothing: after %v %v", time.Since(began).Round(time.Second), firing(t, s, "GDRPeerPathBad", "GDRPeerNodeBad"))
	for _, alert := range firing(t, s, "GDRPeerPathBad", "GDRPeerNodeBad") {
		if alert != "GDRPeerNodeBad  node3" {
			t.Errorf("alert %s", alert)
		}
	}
	nodes.do(t, 3, "tc qdisc del dev rail0 root")
	await(t, s, "all is well at last", longest, func() bool {
		return good(6)() && len(firing(t, s, "GDRPeerPathBad", "GDRPeerNodeBad")) == 0
	})
}

// total is the value of an expression that has one, -1 if it has none.
func total(t *testing.T, s *stack.Stack, expr string) int {
	t.Helper()
	samples, err := s.Query(t.Context(), expr)
	if err != nil {
		t.Fatal(err)
	}
	if len(samples) != 1 {
		return -1
	}
	return int(samples[0].Value)
}

// firing are the alerts that fire, with the nodes that they name.
func firing(t *testing.T, s *stack.Stack, names ...string) []string {
	t.Helper()
	samples, err := s.Query(t.Context(), `ALERTS{alertstate="firing",alertname=~"`+strings.Join(names, "|")+`"}`)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, sample := range samples {
		all = append(all, fmt.Sprintf("%s %s %s", sample.Labels["alertname"], sample.Labels["from"], sample.Labels["peer"]))
	}
	slices.Sort(all)
	return all
}

// bootedPeers are exporters in test kernels that take commands through a directory.
type bootedPeers struct {
	dir       string
	addresses map[string]string // by node
	commands  int
}

const peerScript = `
echo '[{"targets":["node1:10480","node2:10480","node3:10480"]}]' > /tmp/nodes.json
%[1]s --peer.enabled --peer.insecure --peer.targets=/tmp/nodes.json --peer.device=rxe0 --peer.limit=0.0001 --peer.asymmetry-limit=0.01 \
	--peer.frame=30s --peer.degree=2 --peer.interval=6m --peer.bytes=4MiB --probe.queue-pairs=1 --probe.interval=0 --state.dir= --control.socket= &
while [ ! -e %[2]s/stop ]; do
	for file in %[2]s/do.$VMTEST_NODE.*; do
		[ -e "$file" ] || continue
		cp "$file" /tmp/now && rm "$file"
		sh -x /tmp/now
	done
	sleep 1
done
kill %%1; wait
`

var forwarded = regexp.MustCompile(`(node\d): port 10479 is (\S+) here`)

// bootPeers boots them, and ends them with the test.
func bootPeers(t *testing.T) *bootedPeers {
	t.Helper()
	dir := t.TempDir()
	exporter, vmtest := filepath.Join(dir, "gdr_exporter"), filepath.Join(dir, "vmtest")
	for program, pkg := range map[string]string{exporter: "gdr_exporter/cmd/gdr_exporter", vmtest: "gdr_exporter/cmd/vmtest"} {
		if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, pkg).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
	}
	p := &bootedPeers{dir: filepath.Join(dir, "commands"), addresses: map[string]string{}}
	if err := os.Mkdir(p.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(vmtest, "--nodes", "3", "--timeout", "1h", "--forward", "0:10479", "--share", p.dir, "--", "sh", "-c", fmt.Sprintf(peerScript, exporter, p.dir))
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended, log := make(chan struct{}), make(chan string, 1<<16)
	go func() { defer close(ended); _ = cmd.Wait(); _ = write.Close() }()
	go func() {
		for scanner := bufio.NewScanner(read); scanner.Scan(); {
			select {
			case log <- scanner.Text():
			default: // nobody would read it
			}
		}
	}()
	t.Cleanup(func() {
		_ = os.WriteFile(filepath.Join(p.dir, "stop"), nil, 0o644) // else it is killed
		select {
		case <-ended:
		case <-time.After(time.Minute):
			_ = cmd.Process.Signal(syscall.SIGTERM)
			<-ended
		}
		for t.Failed() && len(log) > 0 {
			t.Log(<-log)
		}
	})
	for len(p.addresses) < 3 {
		select {
		case line := <-log:
			if found := forwarded.FindStringSubmatch(line); found != nil {
				p.addresses[found[1]] = found[2]
			}
			t.Log(line)
		case <-ended:
			t.Fatal("vmtest has ended")
		}
	}
	return p
}

func (p *bootedPeers) targets() []stack.Node {
	var all []stack.Node
	for name, address := range p.addresses {
		all = append(all, stack.Node{Name: name, Address: address})
	}
	return all
}

// do has a node do something, and waits until it has begun.
func (p *bootedPeers) do(t *testing.T, n int, command string) {
	t.Helper()
	p.commands++
	file := filepath.Join(p.dir, fmt.Sprintf("do.%d.%d", n, p.commands))
	if err := os.WriteFile(p.dir+"/new", []byte(command+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	// Only whole ones have the name that is looked for.
	if err := os.Rename(p.dir+"/new", file); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		if _, err := os.Stat(file); os.IsNotExist(err) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("node %d does not take commands", n)
		}
	}
}
