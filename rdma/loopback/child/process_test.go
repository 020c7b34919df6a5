package child

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// longest is more than any child of a test needs on a busy machine.
const longest = time.Minute

// TestMain makes this binary a child if its arguments say so.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "child" {
		os.Exit(asChild())
	}
	os.Exit(m.Run())
}

// asChild answers with what it reads, and with its surroundings.
func asChild() int {
	if err := CloseInherited(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 4
	}
	open := 0
	for fd := range 100 {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			open++
		}
	}
	dir, _ := os.Getwd()
	fmt.Printf("%s %d %s %s %v", text, open, dir, os.Getenv("MARK"), unix.Getpgrp() == os.Getpid())
	fmt.Fprintln(os.Stderr, "panic: as wanted")
	fmt.Fprintln(os.Stderr, "goroutine 1 [running]:")
	return 7
}

func gone(t *testing.T, p *Process) {
	t.Helper()
	select {
	case <-p.Gone():
	case <-time.After(longest):
		t.Fatal("it does not end")
	}
	if err := syscall.Kill(p.ID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is not reaped: %v", p.ID(), err)
	}
}

// TestProcess: what is said to a child arrives, and what it says; it finds nothing but
// its three pipes; and its end is known.
func TestProcess(t *testing.T) {
	leaked, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer leaked.Close()
	if _, err := unix.FcntlInt(leaked.Fd(), unix.F_SETFD, 0); err != nil { // as a careless library opens it
		t.Fatal(err)
	}
	p, err := Program{Args: []string{"child"}, Environ: func() []string { return []string{"MARK=m"} }}.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Write([]byte("hello")); err != nil {
		t.Error(err)
	}
	p.in.Close()
	said, err := io.ReadAll(p)
	if want := "hello 3 / m true"; err != nil || string(said) != want {
		t.Errorf("%q, %v; want %q", said, err, want)
	}
	gone(t, p)
	if words := p.LastWords(); p.State().ExitCode() != 7 || words != "panic: as wanted" {
		t.Errorf("%v: %q", p.State(), words)
	}
}

// TestEnds: a child that listens ends when it is asked to, one that does not when it is
// killed, and one that reads when the parent closes its pipes.
func TestEnds(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		end    func(t *testing.T, p *Process)
		want   string
	}{
		"asked": {"echo; exec sleep 1000", func(_ *testing.T, p *Process) { p.Terminate() }, "signal: terminated"},
		"killed": {"trap '' TERM; echo; sleep 1000", func(t *testing.T, p *Process) {
			p.Terminate()
			if !p.Kill() {
				t.Error("it is there after it was killed")
			}
		}, "signal: killed"},
		"left": {"echo; read line; exit 5", func(_ *testing.T, p *Process) { p.Close() }, "exit status 5"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Program{Path: "/bin/sh", Args: []string{"-c", test.script}}.Start()
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if _, err := p.Read(make([]byte, 1)); err != nil { // it listens
				t.Fatal(err)
			}
			test.end(t, p)
			gone(t, p)
			if got := p.State().String(); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// TestUnkillable: a process that is not gone after SIGKILL is not waited for. Here it is
// one that nobody reaps.
func TestUnkillable(t *testing.T) {
	cmd := exec.Command("/bin/true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	p := &Process{process: cmd.Process, gone: make(chan struct{})}
	if p.Kill() {
		t.Error("it is gone")
	}
}

// TestNoProgram: what cannot be started is an error, and leaves nothing open.
func TestNoProgram(t *testing.T) {
	before := descriptors(t)
	p, err := Program{Path: "/nowhere/gdr_exporter"}.Start()
	if p != nil || !errors.Is(err, syscall.ENOENT) || !strings.HasPrefix(err.Error(), "child process: ") {
		t.Errorf("%v, %v", p, err)
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestCause: of what a child writes before it dies the line is shown that says why.
func TestCause(t *testing.T) {
	long := strings.Repeat("x", 3*mostCause)
	for said, want := range map[string]string{
		"":                                    "",
		"\n \n":                               "",
		"first\nlast\n\n":                     "last",
		"\x1b[1mbad\xff library":              "[1mbad  library",
		"fatal error: stack\n\ngoroutine 1":   "fatal error: stack",
		"SIGSEGV: segmentation violation\nPC": "SIGSEGV: segmentation violation",
		long:                                  long[:mostCause] + "...",
		"panic: early\n" + strings.Repeat("stack\n", 10*mostStderr): "panic: early",
		strings.Repeat("loud\n", 10*mostStderr) + "the end":         "the end",
	} {
		var last tail
		for part := range strings.SplitAfterSeq(said, "\n") {
			_, _ = last.Write([]byte(part))
		}
		if got := last.cause(); got != want {
			t.Errorf("%.40q: %.60q, want %.60q", said, got, want)
		}
		if kept := len(last.head) + len(last.last); kept > 2*mostStderr {
			t.Errorf("%.40q: %d bytes are kept", said, kept)
		}
	}
}
