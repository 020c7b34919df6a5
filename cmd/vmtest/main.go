// Command vmtest runs a command inside a throw-away virtual machine that has
// what most build machines lack: RDMA devices, PCIe switches, NUMA nodes and
// kernel modules that misbehave on request.
//
// It boots Debian's stock kernel under QEMU without KVM and without a disk
// image. The machine's own root file system is the VM's root, read-only below
// a RAM overlay, so every program and library of the machine is there and
// nothing the command does can harm the machine. Soft-RoCE gives the RDMA
// devices: a software driver, but the kernel's real RDMA core, sysfs, netlink
// and verbs.
//
// The same binary plays two parts. On the machine it fetches the kernel,
// builds an initramfs and drives QEMU. Copied into the VM under another name
// it is the guest agent, which prepares the VM and runs the command.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// Exit statuses of vmtest itself; any other is the command's own. They follow
// docker run and timeout(1), so that scripts can tell a failed test from a
// failed tool.
const (
	exitUsage   = 2
	exitTimeout = 124
	exitTool    = 125
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case guestName:
		os.Exit(guestMain())
	case barrierName:
		os.Exit(barrierMain(os.Args[1:]))
	}
	os.Exit(hostMain(os.Args[1:]))
}

// hostMain runs vmtest on the machine and returns its exit status.
func hostMain(args []string) int {
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	cancelOnSignal(stop)

	status, err := execute(ctx, args)
	if err == nil {
		return status
	}
	err = preferCause(ctx, err)
	fmt.Fprintln(os.Stderr, "vmtest:", err)
	return exitStatus(err)
}

// execute parses the arguments, boots the VM and returns the command's exit
// status.
func execute(ctx context.Context, args []string) (int, error) {
	opts, err := parseOptions(args)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, opts.timeout, &timeoutError{after: opts.timeout})
	defer cancel()

	status, err := boot(ctx, opts)
	return status, preferCause(ctx, err)
}

// preferCause returns why ctx was cancelled, if it was and err does not say so.
// A cancelled context makes whatever ran under it fail in words of its own, and
// the cause is what the person wants to read.
func preferCause(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if err == nil || cause == nil || errors.Is(err, cause) {
		return err
	}
	return cause
}

// cancelOnSignal cancels the run on SIGINT and SIGTERM. A second signal ends
// vmtest the hard way; QEMU dies with it in any case (see startProcess).
func cancelOnSignal(stop context.CancelCauseFunc) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		got := <-signals
		signal.Stop(signals)
		number, _ := got.(syscall.Signal)
		stop(&signalError{signal: number})
	}()
}

// exitStatus maps an error of vmtest's own to its exit status.
func exitStatus(err error) int {
	var (
		usage       *usageError
		timeout     *timeoutError
		interrupted *signalError
	)
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &timeout):
		return exitTimeout
	case errors.As(err, &interrupted):
		return 128 + int(interrupted.signal)
	default:
		return exitTool
	}
}
