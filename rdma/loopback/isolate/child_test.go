package isolate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/child"
)

// TestMain makes this binary a child, or a parent of one, if its arguments say so.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case "child":
			os.Exit(asChild(os.Args[2]))
		case "parent":
			os.Exit(asParent(os.Args[2]))
		}
	}
	os.Exit(m.Run())
}

// asChild is the hidden command with a run of the test's.
func asChild(mode string) int {
	if err := child.CloseInherited(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	// No test may leave core files.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := childMain(ctx, os.Stdin, os.Stdout, openNothing, runs[mode])
	if mode == "stays" {
		select {}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 4
	}
	return 0
}

// asParent makes one run that hangs, and tells the child's process.
func asParent(mode string) int {
	r := &Runner{Args: []string{"child", mode}}
	order := orderOf(true)
	order.GPU = ""
	order.Started = func(pid int) { fmt.Println(pid) }
	order.Spec.Deadline = time.Hour
	r.Run(context.Background(), order)
	return 0
}

// openNothing says in an error what it was to open.
func openNothing(s GPUSettings) func() (loopback.GPU, error) {
	return func() (loopback.GPU, error) {
		return nil, fmt.Errorf("%s %v %d: %w", s.Address, s.Roots, s.MinFree, loopback.ErrNoLibrary)
	}
}

// runs are runs of children by name.
var runs = map[string]runFunc{
	"good": func(_ context.Context, spec loopback.Spec) loopback.Result { return goodResult(spec) },
	"stays": func(_ context.Context, spec loopback.Spec) loopback.Result {
		signal.Ignore(syscall.SIGTERM)
		return goodResult(spec)
	},
	"opens": func(_ context.Context, spec loopback.Spec) loopback.Result {
		_, err := spec.OpenGPU()
		return loopback.Result{Stages: []loopback.StageResult{{Stage: loopback.StageOpen, Err: err}}}
	},
	// Ends when it is told to, as a real run does.
	"stoppable": func(ctx context.Context, spec loopback.Spec) loopback.Result {
		spec.OnStage(loopback.StageMeasure, loopback.PathHost)
		<-ctx.Done()
		return loopback.Result{Stages: []loopback.StageResult{{Stage: loopback.StageMeasure, Err: &loopback.Error{Call: "stopped", Errno: syscall.ECANCELED}}}}
	},
	"hangs": func(_ context.Context, spec loopback.Spec) loopback.Result {
		spec.OnStage(loopback.StageAlloc, "")
		select {}
	},
	"sleeps": func(_ context.Context, spec loopback.Spec) loopback.Result {
		spec.OnStage(loopback.StageRegister, "")
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		select {}
	},
	"segfaults": func(_ context.Context, spec loopback.Spec) loopback.Result {
		spec.OnStage(loopback.StageConnect, loopback.PathGPU)
		address := uintptr(8)
		return loopback.Result{Port: **(**int)(unsafe.Pointer(&address))}
	},
	"panics": func(context.Context, loopback.Spec) loopback.Result { panic("as the test wants\nand more") },
	"aborts": func(context.Context, loopback.Spec) loopback.Result {
		debug.SetTraceback("crash")
		panic("aborting")
	},
	"killed": func(context.Context, loopback.Spec) loopback.Result {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	},
	"exits": func(context.Context, loopback.Spec) loopback.Result {
		fmt.Fprint(os.Stderr, "first\n\x1b[1mbad\xff library\n\n")
		os.Exit(7)
		return loopback.Result{}
	},
	"exits well": func(context.Context, loopback.Spec) loopback.Result {
		os.Exit(0)
		return loopback.Result{}
	},
	"garbage": func(_ context.Context, spec loopback.Spec) loopback.Result {
		fmt.Print("libfoo: warning\n{\"result\":5}\n[]\n\x00\xff\nnull\n{}\n", strings.Repeat("x", 300<<10), "\n")
		return goodResult(spec)
	},
	"endless": func(context.Context, loopback.Spec) loopback.Result {
		for {
			fmt.Println("and so on")
		}
	},
	"endless line": func(context.Context, loopback.Spec) loopback.Result {
		for {
			fmt.Print(strings.Repeat("x", 1<<16))
		}
	},
	"loud": func(context.Context, loopback.Spec) loopback.Result {
		for range 10000 {
			fmt.Fprintln(os.Stderr, strings.Repeat("loud ", 20))
		}
		fmt.Fprintln(os.Stderr, "the last words")
		os.Exit(9)
		return loopback.Result{}
	},
	"looks": func(context.Context, loopback.Spec) loopback.Result {
		text, err := json.Marshal(look())
		if err != nil {
			panic(err)
		}
		return loopback.Result{Library: string(text)}
	},
	// The first directory for libraries is a file that is to exist by now.
	"late": func(_ context.Context, spec loopback.Spec) loopback.Result {
		_, err := os.Stat(spec.LibraryDirs[0])
		return loopback.Result{Stages: []loopback.StageResult{{Stage: loopback.StageOpen, Err: err}}}
	},
}

// goodResult shows that the spec has come, and that a result goes.
func goodResult(spec loopback.Spec) loopback.Result {
	spec.OnStage(loopback.StageOpen, "")
	spec.OnStage(loopback.StageMeasure, loopback.PathGPU)
	return loopback.Result{
		Device: spec.Device, Port: spec.Port, Library: fmt.Sprint(spec.LibraryDirs), Duration: spec.Deadline, NUMANode: 1, GID: sysread.Some(loopback.GID{Index: spec.GID.Value}),
		Registrations: []loopback.Registration{{Method: loopback.MethodPeermem, Err: &loopback.Error{Call: "ibv_reg_mr", Errno: syscall.EFAULT}}},
		Paths:         []loopback.PathResult{{Path: loopback.PathGPU, BytesPerSecond: sysread.Some(1.25e10), Err: loopback.ErrCorrupt}},
	}
}

// surroundings are what a child finds.
type surroundings struct {
	Files       map[int]string
	Dir         string
	Environment []string
	Group, Pid  int
}

func look() surroundings {
	s := surroundings{Files: map[int]string{}, Environment: os.Environ(), Group: unix.Getpgrp(), Pid: os.Getpid()}
	s.Dir, _ = os.Getwd()
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, entry := range entries {
		fd, _ := strconv.Atoi(entry.Name())
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue // of Go itself
		}
		s.Files[fd], _ = os.Readlink(filepath.Join("/proc/self/fd", entry.Name()))
	}
	return s
}

// TestChildMain: orders that are none are errors, and what fails of a run is not.
func TestChildMain(t *testing.T) {
	fails := func(context.Context, loopback.Spec) loopback.Result {
		return loopback.Result{Stages: []loopback.StageResult{{Stage: loopback.StageGate, Err: syscall.ENETDOWN}}}
	}
	for text, want := range map[string]bool{
		"": false, "{}": false, "{}\n": true, "[]\n": false, "{\"spec\":{\"Port\":\"x\"}}\n": false, "{\"later\":1}\n": true,
		strings.Repeat(" ", mostOrder) + "{}\n": false,
	} {
		var out bytes.Buffer
		err := childMain(t.Context(), strings.NewReader(text), &out, openNothing, fails)
		if (err == nil) != want || want != strings.Contains(out.String(), "ENETDOWN") {
			t.Errorf("%.40q: %v, %s", text, err, out.String())
		}
	}
	if err := ChildMain(t.Context(), strings.NewReader("{\"spec\":{\"Device\":\"none\",\"SysfsRoot\":\"/nowhere\"}}\n"), io.Discard, openNothing); err != nil {
		t.Error(err)
	}
}

// TestChildAlone: a child whose parent is gone stops its run, whether it notices
// that by what it reads or by what it writes.
func TestChildAlone(t *testing.T) {
	in, parent := io.Pipe()
	stopped := make(chan error, 1)
	go func() {
		stopped <- childMain(context.Background(), in, io.Discard, openNothing, func(ctx context.Context, _ loopback.Spec) loopback.Result {
			parent.Close()
			<-ctx.Done()
			return loopback.Result{}
		})
	}()
	_, _ = io.WriteString(parent, "{}\n")
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	in, parent = io.Pipe()
	go func() { _, _ = io.WriteString(parent, "{}\n") }()
	err := childMain(context.Background(), in, brokenWriter{}, openNothing, runs["stoppable"])
	if !errors.Is(err, syscall.EPIPE) {
		t.Errorf("%v", err)
	}
	parent.Close()
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// FuzzMessages: what a child says is bounded and never panics.
func FuzzMessages(f *testing.F) {
	f.Add([]byte("{\"stage\":\"open\"}\n{\"result\":{\"device\":\"mlx5_0\"}}\n"))
	f.Add([]byte("{\"result\":null}\n\n{\"stage\":5}\nx"))
	f.Fuzz(func(t *testing.T, text []byte) {
		told := 0
		err := readMessages(bytes.NewReader(text), func(message) { told++ })
		if lines := bytes.Count(text, []byte("\n")) + 1; told > lines || err != nil {
			t.Errorf("%d messages in %d lines, %v", told, lines, err)
		}
	})
}
