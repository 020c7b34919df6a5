package main

import (
	"context"
	"fmt"
	"os"

	"github.com/alecthomas/kingpin/v2"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"gdr_exporter/rdma/loopback/isolate"
)

// childFlags adds the command by which the daemon makes a run in a process of its
// own.
func childFlags(app *kingpin.Application) {
	app.Command(isolate.ChildCommand, "Make one measurement for the daemon, which says on standard input which one.").Hidden()
}

// probeChild makes the run that standard input says, and tells of it on standard
// output. It returns when the run is over, whatever it found.
func probeChild(ctx context.Context) error {
	if err := isolate.CloseInherited(); err != nil {
		return err
	}
	if term.IsTerminal(int(os.Stdin.Fd())) {
		return usagef("%s is for the daemon alone; see probe --help", isolate.ChildCommand)
	}
	out, err := takeStdout()
	if err != nil {
		return err
	}
	defer out.Close()
	return isolate.ChildMain(ctx, os.Stdin, out, openGPU)
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
