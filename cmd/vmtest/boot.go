package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"

	"gdr_exporter/cmd/vmtest/node"
)

// boot runs the command of opts in a VM and returns its exit status.
func boot(ctx context.Context, opts *options) (int, error) {
	if _, err := findProgram("qemu-system-x86_64"); err != nil {
		return 0, err
	}
	cache, err := cacheDir()
	if err != nil {
		return 0, err
	}
	kernel, err := getKernel(ctx, cache, opts.kernel)
	if err != nil {
		return 0, err
	}
	modules, err := buildModules(ctx, cache, kernel, opts.modules)
	if err != nil {
		return 0, err
	}
	config, err := newGuestConfig(opts, kernel)
	if err != nil {
		return 0, err
	}
	image := initramfs{kernel: kernel, names: opts.kernelModules(), modules: modules, config: config}
	file, err := image.build(ctx)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	v := vm{opts: opts, kernel: kernel, shares: config.Shares, initramfs: file, stdout: os.Stdout, stderr: os.Stderr, forwards: opts.forwards, consoleLog: opts.consoleLog}
	if opts.nodes > 1 {
		return bootNodes(ctx, v, cache)
	}
	if err := v.chooseForwards(); err != nil {
		return 0, err
	}
	return v.boot(ctx)
}

// vm is one virtual machine and what it is to run.
type vm struct {
	opts      *options
	kernel    kernel
	shares    []guestShare
	initramfs *os.File
	// Where the command's outputs go, and the console's.
	stdout, stderr io.Writer
	consoleLog     string
	forwards       []forward

	// Of several VMs:
	node    int                                         // from 1 on; 0: it is the only one
	lans    []*lan                                      // it is plugged into
	onReady func()                                      // told when it is set up
	onDone  func(ctx context.Context, status int) error // told that the command has ended; returns when the VM may end
}

// boot runs the command and returns its exit status.
func (v *vm) boot(ctx context.Context) (int, error) {
	for attempt := 1; ; attempt++ {
		status, err := v.run(ctx)
		if died := (bootDeath{}); !errors.As(err, &died) || attempt == mostBoots {
			return status, err
		}
		// Seldom, and when the host is busy, the emulated machine breaks while it
		// boots. Nothing of the command has run yet.
		fmt.Fprintf(os.Stderr, "vmtest: %s%v; booting once more\n", v.who(), err)
		if _, err := v.initramfs.Seek(0, io.SeekStart); err != nil {
			return 0, err
		}
	}
}

// who is what comes before what is said of one of several VMs.
func (v *vm) who() string {
	if v.node == 0 {
		return ""
	}
	return node.Name(v.node) + ": "
}

// chooseForwards chooses ports where any will do, and tells them.
func (v *vm) chooseForwards() error {
	asked := slices.Clone(v.forwards)
	v.forwards = slices.Clone(v.forwards)
	if err := chooseFree(v.forwards); err != nil {
		return err
	}
	for i, f := range v.forwards {
		if asked[i].host == 0 {
			fmt.Fprintf(os.Stderr, "vmtest: port %d is 127.0.0.1:%d here\n", f.guest, f.host)
		}
	}
	return nil
}

// mostBoots is how often a VM is booted that ends before the command began.
const mostBoots = 3

// bootDeath is the error of a VM that ended, with a panic or without a word,
// before the command began.
type bootDeath struct{ error }

// Unwrap returns the error.
func (e bootDeath) Unwrap() error { return e.error }

// kernelModules returns what init loads. A VM without RDMA devices and without
// test modules has no RDMA stack at all, as a machine without a NIC.
func (o *options) kernelModules() []string {
	names := bootModules
	if o.nodes > 1 {
		names = slices.Concat(names, nodeModules)
	}
	if o.devices > 0 || len(o.modules) > 0 {
		names = slices.Concat(names, rdmaModules)
	}
	return names
}

// newGuestConfig tells the guest agent what the command line asked for.
func newGuestConfig(opts *options, kernel kernel) (guestConfig, error) {
	dir, err := opts.workingDir()
	if err != nil {
		return guestConfig{}, err
	}
	config := guestConfig{
		Command:  opts.command,
		Dir:      dir,
		Env:      append(callerEnv(), opts.env...),
		Release:  kernel.release,
		Devices:  opts.devices,
		Modprobe: opts.topology.modules,
		Systemd:  opts.systemd,
	}
	if opts.nodes > 1 {
		config.Nodes, config.Rails, config.MTU = opts.nodes, opts.rails, opts.mtu
	}
	for i, share := range opts.shares {
		config.Shares = append(config.Shares, guestShare{Tag: fmt.Sprintf("share%d", i), Path: share})
	}
	return config, nil
}

// callerEnv is the part of the caller's environment that the command gets. The
// rest describes the machine and may not hold in the VM.
func callerEnv() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TERM"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// run starts QEMU and follows it to the end.
func (v *vm) run(ctx context.Context) (int, error) {
	console, closeLog, err := openConsole(v.consoleLog)
	if err != nil {
		return 0, err
	}
	defer closeLog()
	links, err := newLinks(len(v.lans))
	if err != nil {
		return 0, err
	}
	machine, err := startProcess("qemu-system-x86_64", v.qemu().args(), append([]*os.File{v.initramfs}, links.far()...))
	links.closeFar()
	if err == nil {
		err = v.plug(links)
	}
	if err != nil {
		if machine != nil {
			machine.kill()
		}
		links.closeNear()
		return 0, err
	}
	session := newSession(machine, links, console)
	session.stdout, session.stderr = newStream(v.stdout), newStream(v.stderr)
	session.onReady, session.onDone = v.onReady, v.onDone
	return session.follow(ctx)
}

// qemu is how QEMU is started.
func (v *vm) qemu() qemuConfig {
	return qemuConfig{
		kernelImage: v.kernel.image(),
		modulesDir:  v.kernel.modulesDir(),
		root:        v.opts.root,
		kernelArgs:  v.opts.systemdArgs(),
		memory:      v.opts.memory,
		topology:    v.opts.topology,
		forwards:    v.forwards,
		shares:      v.shares,
		node:        v.node,
		rails:       len(v.lans),
		initramfs:   firstInheritedFD,
		console:     firstInheritedFD + 1,
		stdout:      firstInheritedFD + 2,
		stderr:      firstInheritedFD + 3,
		control:     firstInheritedFD + 4,
		firstRail:   firstInheritedFD + 5,
	}
}

// plug plugs the VM into its LANs, which have their ends of the links from then on.
func (v *vm) plug(links *links) error {
	for i, l := range v.lans {
		conn, err := net.FileConn(links.rails[i].near)
		if err != nil {
			return fmt.Errorf("rail %d: %w", i, err)
		}
		_ = links.rails[i].near.Close() // it was duplicated
		l.plug(node.Name(v.node), conn)
	}
	return nil
}

// openConsole returns the console's tail buffer, copied to the file path if
// that is not empty.
func openConsole(path string) (*console, func(), error) {
	if path == "" {
		return newConsole(io.Discard), func() {}, nil
	}
	file, err := os.Create(filepath.Clean(path))
	if err != nil {
		return nil, nil, &usageError{message: fmt.Sprintf("--console-log: %v", err)}
	}
	return newConsole(file), func() { _ = file.Close() }, nil
}

// errNoAnswer is a VM that ended before the command did.
var errNoAnswer = errors.New("the VM ended before the command did")
