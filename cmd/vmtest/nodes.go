package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"

	"gdr_exporter/cmd/vmtest/node"
)

// fleet is several VMs that run the same command and reach each other over LANs.
type fleet struct {
	shared string // directory that all of them share
	size   int
	stop   context.CancelCauseFunc

	mu    sync.Mutex
	ready int           // VMs that are set up
	ended int           // whose command has ended
	worst int           // exit status
	err   error         // the first: why the others end
	over  chan struct{} // closed when the last command has ended
}

// bootNodes runs the command in several VMs at once and returns the worst of its exit
// statuses. Whatever keeps one VM from running it ends all of them.
func bootNodes(ctx context.Context, common vm, cache string) (int, error) {
	shared, remove, err := newSharedDir(cache)
	if err != nil {
		return 0, err
	}
	defer remove()
	forwards, err := nodeForwards(common.opts)
	if err != nil {
		return 0, err
	}
	lans := make([]*lan, common.opts.rails)
	for i := range lans {
		lans[i] = newLAN()
		defer func() {
			lans[i].close()
			tellLosses(os.Stderr, i, lans[i])
		}()
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	f := &fleet{shared: shared, size: common.opts.nodes, stop: stop, over: make(chan struct{})}
	common.shares = append(common.shares, guestShare{Tag: sharedTag, Path: shared})
	stdout, stderr := new(sync.Mutex), new(sync.Mutex)
	var work sync.WaitGroup
	for i := range f.size {
		v := common
		v.node, v.lans, v.forwards = i+1, lans, forwards[i]
		v.stdout, v.stderr = newPrefixer(os.Stdout, v.who(), stdout), newPrefixer(os.Stderr, v.who(), stderr)
		v.onReady, v.onDone = f.isReady, func(ctx context.Context, status int) error { return f.isDone(ctx, &v, status) }
		if common.opts.consoleLog != "" {
			v.consoleLog = common.opts.consoleLog + "." + node.Name(v.node)
		}
		work.Go(func() { f.run(ctx, &v) })
	}
	work.Wait()
	return f.worst, f.err
}

// run boots one VM and follows it to the end.
func (f *fleet) run(ctx context.Context, v *vm) {
	_, err := v.boot(ctx)
	v.flush()
	if err == nil {
		return
	}
	f.mu.Lock()
	if f.err == nil {
		f.err = fmt.Errorf("%s: %w", node.Name(v.node), err)
	}
	f.mu.Unlock()
	f.stop(err)
}

// isReady counts a VM that is set up. The last one lets all commands start: what runs
// in one VM may count on the others being there.
func (f *fleet) isReady() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ready++; f.ready == f.size {
		if err := node.Start(f.shared); err != nil {
			f.stop(err)
		}
	}
}

// isDone notes the end of a command, and returns when the VM may end: after the last
// command, since until then others may want to reach it.
func (f *fleet) isDone(ctx context.Context, v *vm, status int) error {
	v.flush()
	if status != 0 {
		fmt.Fprintf(os.Stderr, "vmtest: %s: exit status %d\n", node.Name(v.node), status)
	}
	if err := node.End(f.shared, v.node, status); err != nil {
		return err
	}
	f.mu.Lock()
	f.worst = max(f.worst, status)
	if f.ended++; f.ended == f.size {
		close(f.over)
	}
	f.mu.Unlock()
	select {
	case <-f.over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// nodeForwards are the forwarded ports of each node: the next one on this machine for
// each next node, or any that is free. They are told, so that something here can find
// the nodes.
func nodeForwards(opts *options) ([][]forward, error) {
	all := make([][]forward, opts.nodes)
	for i := range all {
		all[i] = slices.Clone(opts.forwards)
		for j := range all[i] {
			if all[i][j].host != 0 {
				all[i][j].host += uint16(i)
			}
		}
	}
	if err := chooseFree(all...); err != nil {
		return nil, err
	}
	for i := range all {
		for _, f := range all[i] {
			fmt.Fprintf(os.Stderr, "vmtest: %s: port %d is 127.0.0.1:%d here\n", node.Name(i+1), f.guest, f.host)
		}
	}
	return all, nil
}

// chooseFree puts free ports of this machine where any will do, none of them twice.
// They are not held: whoever is faster than QEMU can still take one.
func chooseFree(forwards ...[]forward) error {
	for _, some := range forwards {
		for i := range some {
			if some[i].host != 0 {
				continue
			}
			listener, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				return fmt.Errorf("a free port: %w", err)
			}
			defer func() { _ = listener.Close() }() // only when all are chosen
			if address, is := listener.Addr().(*net.TCPAddr); is {
				some[i].host = uint16(address.Port)
			}
		}
	}
	return nil
}

// tellLosses says what a LAN has lost, once it is closed: a test that fails may have
// failed by it.
func tellLosses(out io.Writer, rail int, l *lan) {
	for _, p := range l.every {
		if c := p.counters(); c.dropped > 0 {
			fmt.Fprintf(out, "vmtest: rail %d: %d of %d frames for %s were lost, as it did not read\n", rail, c.dropped, c.dropped+c.sent, p.name)
		}
		if p.err != nil && !errors.Is(p.err, io.ErrUnexpectedEOF) { // killed while it wrote
			fmt.Fprintf(out, "vmtest: rail %d: %s was unplugged: %v\n", rail, p.name, p.err)
		}
	}
}

// isReset reports an end of a stream that says no more than that the other side is
// gone: QEMU is killed, whatever it has not read.
func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
