package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a running exporter.
type process struct {
	name, address string
	command       *exec.Cmd
	log           tail
	ended         chan struct{} // closed when the process has ended
	client        client
}

// ours returns the arguments of gdr_exporter on a tree.
func (o options) ours(tree, address string, more ...string) []string {
	args := []string{"serve", "--path.sysfs=" + filepath.Join(tree, "sys"), "--web.listen-address=" + address}
	return append(append(args, more...), o.exporterArgs...)
}

// theirs returns the arguments of node_exporter on a tree.
func (o options) theirs(tree, address string) []string {
	return []string{
		"--collector.disable-defaults", "--collector.infiniband", "--path.sysfs=" + filepath.Join(tree, "sys"), "--web.listen-address=" + address,
	}
}

// startExporter starts gdr_exporter so that every scrape reads anew, unless more says otherwise.
func (o options) startExporter(ctx context.Context, name, tree string, more ...string) (*process, error) {
	return start(ctx, name, o.exporter, func(address string) []string { return o.ours(tree, address, more...) })
}

func (o options) startNodeExporter(ctx context.Context, tree string) (*process, error) {
	return start(ctx, "node_exporter", o.nodeExporter, func(address string) []string { return o.theirs(tree, address) })
}

// start starts an exporter on a free port of loopback and waits until it listens. The port may be taken between the choice and the use:
// then another is tried.
func start(ctx context.Context, name, binary string, args func(address string) []string) (*process, error) {
	var err error
	for range 3 {
		var address string
		if address, err = freeAddress(); err != nil {
			return nil, err
		}
		p := &process{name: name, address: address, ended: make(chan struct{}), client: newClient(address)}
		p.command = exec.Command(binary, args(address)...)
		p.command.Stderr, p.command.Stdout = &p.log, &p.log
		p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := p.command.Start(); err != nil {
			return nil, err
		}
		go func() { _ = p.command.Wait(); close(p.ended) }()
		if err = p.listens(ctx); err == nil {
			return p, nil
		}
		p.stop()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return nil, err
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

func (p *process) listens(ctx context.Context) error {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		if conn, err := net.DialTimeout("tcp", p.address, time.Second); err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.ended:
			return fmt.Errorf("%s ended at once: %s", p.name, p.log.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return fmt.Errorf("%s does not listen: %s", p.name, p.log.String())
}

// stop ends the process. One that hangs in the kernel is left after a while, with a SIGKILL waiting for it.
func (p *process) stop() {
	p.client.close()
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		_ = p.command.Process.Signal(signal)
		select {
		case <-p.ended:
			return
		case <-time.After(5 * time.Second):
		}
	}
}

// cpu returns the CPU time that the process has used so far, user and system, of all threads that are or were: its CPU clock, to the
// nanosecond. (/proc/PID/stat counts in ticks of 10 ms, and /proc/PID/task/*/schedstat forgets threads that have ended.)
func (p *process) cpu() (time.Duration, error) {
	const scheduler = 2 // CPUCLOCK_SCHED, include/linux/posix-timers.h
	var used unix.Timespec
	err := unix.ClockGettime(int32(^p.command.Process.Pid<<3|scheduler), &used)
	if err != nil {
		return 0, fmt.Errorf("CPU clock of %s: %w (log: %s)", p.name, err, p.log.String())
	}
	return time.Duration(used.Nano()), nil
}

// memory returns the resident memory now and at its highest, in bytes.
func (p *process) memory() (rss, peak int64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			rss = kib << 10
		case "VmHWM":
			peak = kib << 10
		}
	}
	if rss == 0 {
		return 0, 0, errors.New("no VmRSS: the process has ended")
	}
	return rss, peak, nil
}

// descriptors returns the number of open files.
func (p *process) descriptors() (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.command.Process.Pid))
	return len(entries), err
}

// tail is a log of which the last part is kept.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer.
func (t *tail) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	if more := len(t.text) - 4096; more > 0 {
		t.text = t.text[more:]
	}
	return len(text), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text))
}
