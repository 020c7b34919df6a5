package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
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
	for attempt := 1; ; attempt++ {
		status, err := runVM(ctx, opts, kernel, config.Shares, file)
		if died := (bootDeath{}); !errors.As(err, &died) || attempt == mostBoots {
			return status, err
		}
		// Seldom, and when the host is busy, the emulated machine breaks while it
		// boots. Nothing of the command has run yet.
		fmt.Fprintf(os.Stderr, "vmtest: %v; booting once more\n", err)
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return 0, err
		}
	}
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
	if o.devices == 0 && len(o.modules) == 0 {
		return bootModules
	}
	return slices.Concat(bootModules, rdmaModules)
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

// runVM starts QEMU and follows it to the end.
func runVM(ctx context.Context, opts *options, kernel kernel, shares []guestShare, initramfs *os.File) (int, error) {
	console, closeLog, err := openConsole(opts.consoleLog)
	if err != nil {
		return 0, err
	}
	defer closeLog()
	links, err := newLinks()
	if err != nil {
		return 0, err
	}
	config := qemuConfig{
		kernelImage: kernel.image(),
		modulesDir:  kernel.modulesDir(),
		root:        opts.root,
		kernelArgs:  opts.systemdArgs(),
		memory:      opts.memory,
		topology:    opts.topology,
		forwards:    opts.forwards,
		shares:      shares,
		initramfs:   firstInheritedFD,
		console:     firstInheritedFD + 1,
		stdout:      firstInheritedFD + 2,
		stderr:      firstInheritedFD + 3,
		control:     firstInheritedFD + 4,
	}
	machine, err := startProcess("qemu-system-x86_64", config.args(), append([]*os.File{initramfs}, links.far()...))
	links.closeFar()
	if err != nil {
		links.closeNear()
		return 0, err
	}
	session := newSession(machine, links, console)
	return session.follow(ctx)
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
