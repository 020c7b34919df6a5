package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kingpin/v2"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"gdr_exporter/rdma/loopback/child"
	"gdr_exporter/rdma/loopback/isolate"
	"gdr_exporter/rdma/peer/verbs"
)

// childFlags adds the commands by which the daemon makes a run, or holds the memory of a
// session with another node, in a process of its own.
func childFlags(app *kingpin.Application) {
	app.Command(isolate.ChildCommand, "Make one measurement for the daemon, which says on standard input which one.").Hidden()
	app.Command(verbs.ChildCommand, "Hold the memory of one session with another node for the daemon, which says on standard input what to do with it.").Hidden()
}

// probeChild makes the run that standard input says, and tells of it on standard
// output. It returns when the run is over, whatever it found.
func probeChild(ctx context.Context) error {
	out, err := beChild(isolate.ChildCommand, "probe")
	if err != nil {
		return err
	}
	defer out.Close()
	return isolate.ChildMain(ctx, os.Stdin, out, openGPU)
}

// peerChild holds the memory of a session with another node. The daemon ends it, also
// where a service manager tells all processes to end: a session that ends by itself
// would look like a path that fails.
func peerChild() error {
	out, err := beChild(verbs.ChildCommand, "peer")
	if err != nil {
		return err
	}
	defer out.Close()
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	return verbs.ChildMain(context.Background(), os.Stdin, out, openGPU)
}

// beChild makes this process a child of the daemon, and returns where to answer. Whoever
// types the command is told of the one for people.
func beChild(command, instead string) (out *os.File, err error) {
	if err := child.CloseInherited(); err != nil {
		return nil, err
	}
	if term.IsTerminal(int(os.Stdin.Fd())) {
		return nil, usagef("%s is for the daemon alone; see %s --help", command, instead)
	}
	return takeStdout()
}

// takeStdout returns standard output for the messages, and sends what libraries
// print there to standard error.
func takeStdout() (*os.File, error) {
	fd, err := unix.FcntlInt(os.Stdout.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("standard output: %w", err)
	}
	if err := unix.Dup3(int(os.Stderr.Fd()), int(os.Stdout.Fd()), 0); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("standard output: %w", err)
	}
	return os.NewFile(uintptr(fd), "messages"), nil
}
