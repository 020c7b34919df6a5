package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestTwoNodes: RDMA between two VMs, faults of the network between them, and what
// becomes of their outputs and exit statuses.
func TestTwoNodes(t *testing.T) {
	needsVM(t)
	if _, err := exec.LookPath("ib_write_bw"); err != nil {
		t.Fatal("needs the Debian package perftest")
	}
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	// perftest ends at any trouble, and soft-RoCE makes some on a busy machine, where it
	// may show a rate of 0 too: both sides try again until it has worked once.
	if err := os.WriteFile(script, []byte(`
		barrier=/run/vmtest/vmtest-barrier other=node$((3 - VMTEST_NODE))
		echo "I am $(hostname), $VMTEST_NODE of $VMTEST_NODES"
		$barrier up && busybox ping -c 2 -W 20 $other >/dev/null && busybox ping -c 2 -W 20 $other-rail0-ip6 >/dev/null && echo pinged
		$barrier pinged
		measure() { timeout 60 ib_write_bw -F -d rxe0 -x 1 -s 262144 -n 50 "$@" 2>&1; }
		if [ $VMTEST_NODE = 1 ]; then
			until [ -e $VMTEST_SHARED/measured ]; do measure >/dev/null; done
		else
			until measure node1 >/tmp/measured && grep -qE '^ 262144 +50 +[0-9.]+ +[1-9]' /tmp/measured; do sleep 0.3; done
			touch $VMTEST_SHARED/measured
			grep '^ 262144' /tmp/measured
			echo "Mtu$(grep -o ' 4096.B.' /tmp/measured)"
		fi
		$barrier measured
		if [ $VMTEST_NODE = 1 ]; then
			tc qdisc add dev rail0 root netem delay 300ms && busybox ping -c 2 -W 20 node2 | grep -o 'min/avg/max = [3-9]..'
			tc qdisc change dev rail0 root netem loss 100%; busybox ping -c 2 -W 3 node2 >/dev/null || echo lost
			tc qdisc del dev rail0 root
			ip link set rail0 down
			for i in $(seq 100); do rdma link show rxe0/1 | grep -o 'state DOWN' && break; sleep 0.1; done
			ip link set rail0 up
		fi
		$barrier repaired
		busybox ping -c 3 -W 20 $other >/dev/null && echo repaired
		echo "shared by $VMTEST_NODE" >`+dir+`/of$VMTEST_NODE; mv `+dir+`/of$VMTEST_NODE `+dir+`/done$VMTEST_NODE
		$barrier written; cat `+dir+`/done$((3 - VMTEST_NODE)); [ -e `+dir+`/of1 ] || echo renamed
		echo "no end of line" | tr -d '\n'
		exit $((VMTEST_NODE * 2 + 1))`), 0o600); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "console")
	began := time.Now()
	got := vmtest(t, "--nodes", "2", "--share", dir, "--console-log", log, "--", "sh", script)
	t.Logf("in %v:\n%s%s", time.Since(began).Round(time.Second), got.stdout, got.stderr)
	if got.status != 5 {
		t.Errorf("exit status %d, want that of node 2, 5", got.status)
	}
	for n := 1; n <= 2; n++ {
		prefix := fmt.Sprintf("node%d: ", n)
		wantLines(t, got.stdout, prefix+fmt.Sprintf("I am node%d, %d of 2", n, n), prefix+"pinged", prefix+"repaired",
			prefix+fmt.Sprintf("shared by %d", 3-n), prefix+"renamed", prefix+"no end of line")
		wantLines(t, got.stderr, fmt.Sprintf("vmtest: node%d: exit status %d", n, 2*n+1))
		if text, err := os.ReadFile(fmt.Sprintf("%s.node%d", log, n)); err != nil || !strings.Contains(string(text), "Linux version") {
			t.Errorf("console log: %d bytes, %v", len(text), err)
		}
	}
	wantLines(t, got.stdout, "node2: Mtu 4096[B]", "node1: lost", "node1: state DOWN")
	for _, pattern := range []string{`(?m)^node2:  262144 +50 +[0-9.]+ +[1-9][0-9.]* `, `(?m)^node1: min/avg/max = [3-9]\d\d$`} {
		if !regexp.MustCompile(pattern).MatchString(got.stdout) {
			t.Errorf("no %s in:\n%s", pattern, got.stdout)
		}
	}
}

// TestThreeNodes: tests of a Go package run in three VMs on two networks, while this
// machine reaches each of them.
func TestThreeNodes(t *testing.T) {
	needsVM(t)
	dir := t.TempDir()
	tests := filepath.Join(dir, "node.test")
	if output, err := exec.Command("go", "test", "-c", "-o", tests, "gdr_exporter/cmd/vmtest/node").CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, output)
	}
	var stdout, stderr lockedBuffer
	cmd := command(t, "--nodes", "3", "--rails", "2", "--devices", "3", "--forward", "0:8080", "--share", dir,
		"--env", "GDR_IN_KERNEL=1", "--env", "NODE_TEST_DIR="+dir, "--", tests, "-test.v", "-test.run", "^TestInNodes")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var ports []string
	eventually(t, time.Minute, "three ports", func() bool {
		ports = nil
		for _, match := range regexp.MustCompile(`(?m)^vmtest: node\d: port 8080 is (127\.0\.0\.1:\d+) here$`).FindAllStringSubmatch(stderr.String(), -1) {
			ports = append(ports, match[1])
		}
		return len(ports) == 3
	})
	for i, port := range ports {
		eventually(t, 4*time.Minute, "answer of "+port, func() bool { return fetch("http://"+port+"/") == fmt.Sprintf("node%d\n", i+1) })
	}
	if err := os.WriteFile(filepath.Join(dir, "fetched"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := <-ended
	t.Logf("%s%s", stdout.String(), stderr.String())
	if err != nil {
		t.Error(err)
	}
	for n := 1; n <= 3; n++ {
		for _, name := range []string{"Reach", "RDMA", "Shared", "Forward"} {
			if !strings.Contains(stdout.String(), fmt.Sprintf("node%d: --- PASS: TestInNodes%s ", n, name)) {
				t.Errorf("TestInNodes%s did not pass in node %d", name, n)
			}
		}
	}
}

// TestNodePanic: a VM that dies ends the run, and it is told which.
func TestNodePanic(t *testing.T) {
	needsVM(t)
	got := vmtest(t, "--nodes", "2", "--devices", "0", "--", "sh", "-c", `
		[ -e /sys/class/infiniband ] || echo none
		/run/vmtest/vmtest-barrier up
		[ $VMTEST_NODE = 2 ] && echo c >/proc/sysrq-trigger
		sleep 1000`)
	first, _, _ := strings.Cut(got.stderr, "\n")
	if want := "vmtest: node2: the VM ended before the command did: Kernel panic - not syncing: sysrq triggered crash"; got.status != exitTool || first != want {
		t.Errorf("exit status %d, stderr:\n%s", got.status, got.stderr)
	}
	wantLines(t, got.stdout, "node1: none", "node2: none")
}

// lockedBuffer may be read while it is written to.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(data)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
