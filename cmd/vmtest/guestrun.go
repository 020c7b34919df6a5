package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Exit statuses of a command that could not be started, as shells have them.
const (
	exitCannotRun = 126
	exitNotFound  = 127
)

// quietTime is how long a pipe must be empty, after the command has ended, to
// be taken for finished. Only background processes that the command left
// behind, and that may hang for ever, hold it open at all.
const quietTime = 200 * time.Millisecond

// runCommand runs the command and returns its result.
func runCommand(config guestConfig) (guestMessage, error) {
	stdout, err := newOutlet(stdoutPort)
	if err != nil {
		return guestMessage{}, err
	}
	stderr, err := newOutlet(stderrPort)
	if err != nil {
		return guestMessage{}, err
	}
	cmd := exec.Command(config.Command[0], config.Command[1:]...)
	cmd.Stdout = stdout.writer
	cmd.Stderr = stderr.writer
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	result := guestMessage{Done: true, Status: commandStatus(cmd, stderr.writer)}
	if result.Stdout, err = stdout.finish(); err != nil {
		return guestMessage{}, err
	}
	result.Stderr, err = stderr.finish()
	return result, err
}

// commandStatus runs cmd and returns its status as a shell would.
func commandStatus(cmd *exec.Cmd, complain io.Writer) int {
	err := cmd.Run()
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal())
		}
		return exit.ExitCode()
	}
	fmt.Fprintln(complain, "vmtest:", err)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return exitNotFound
	}
	return exitCannotRun
}

// outlet carries one of the command's outputs to the machine. The command gets
// a pipe rather than the port, which could be opened only once: /dev/stdout
// must work for it and its children.
type outlet struct {
	name   string
	reader *os.File
	writer *os.File
	port   *os.File
	done   chan struct{}
	count  int64 // valid after done
	err    error // valid after done
}

func newOutlet(name string) (*outlet, error) {
	port, err := openPort(name)
	if err != nil {
		return nil, err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("output pipe: %w", err)
	}
	o := &outlet{name: name, reader: reader, writer: writer, port: port, done: make(chan struct{})}
	go o.copy()
	return o, nil
}

// copy passes data on until the pipe ends or, once finish has set a deadline,
// stays empty.
func (o *outlet) copy() {
	defer close(o.done)
	for {
		n, err := io.Copy(o.port, o.reader)
		o.count += n
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			o.err = err
			return
		}
		if pending(o.reader) == 0 {
			return
		}
		if o.err = o.reader.SetReadDeadline(time.Now().Add(quietTime)); o.err != nil {
			return
		}
	}
}

// finish passes on what is still in the pipe and returns the number of bytes.
func (o *outlet) finish() (int64, error) {
	_ = o.writer.Close()
	if err := o.reader.SetReadDeadline(time.Now().Add(quietTime)); err != nil {
		return 0, fmt.Errorf("%s: %w", o.name, err)
	}
	<-o.done
	if o.err != nil {
		return 0, fmt.Errorf("%s: %w", o.name, o.err)
	}
	return o.count, nil
}

// pending returns the number of bytes waiting in a pipe.
func pending(pipe *os.File) int {
	connection, err := pipe.SyscallConn()
	if err != nil {
		return 0
	}
	count := 0
	err = connection.Control(func(fd uintptr) { count, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if err != nil {
		return 0
	}
	return count
}
