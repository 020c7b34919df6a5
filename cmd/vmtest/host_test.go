package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestQemuArgs(t *testing.T) {
	config := qemuConfig{
		root:        "/",
		kernelImage: "/k/vmlinux", modulesDir: "/k/modules", memory: "1G",
		topology:  topology{qemu: []string{"-device", "intel-iommu"}, cmdline: []string{"intel_iommu=on"}},
		forwards:  []forward{{18080, 8080}, {10479, 10479}},
		shares:    []guestShare{{Tag: "share0", Path: "/data"}},
		initramfs: 3, console: 4, stdout: 5, stderr: 6, control: 7,
	}
	args := config.args()
	line := strings.Join(args, " ")
	for _, want := range []string{
		"-M q35 ", "-accel tcg,thread=multi", "-m 1G", "-kernel /k/vmlinux", "-initrd /proc/self/fd/3",
		"socket,id=console,fd=4", "socket,id=vmtest.stdout,fd=5", "socket,id=vmtest.stderr,fd=6", "socket,id=vmtest.control,fd=7",
		"local,id=root,path=/,security_model=none,multidevs=remap,readonly=on",
		"local,id=share0,path=/data,security_model=none,multidevs=remap -device",
		"user,id=user0,hostfwd=tcp:127.0.0.1:18080-10.0.2.15:8080,hostfwd=tcp:127.0.0.1:10479-10.0.2.15:10479",
		"panic=-1", "audit=0 random.trust_cpu=on intel_iommu=on",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("no %q in %s", want, line)
		}
	}
	if slices.Index(args, "intel-iommu") > slices.Index(args, "virtio-serial-pci,"+rootBus) {
		t.Error("the topology's IOMMU comes after vmtest's devices")
	}
}

func TestConsoleKeepsTheEnd(t *testing.T) {
	var log bytes.Buffer
	c := newConsole(&log)
	for i := range 10000 {
		fmt.Fprintf(c, "line %d\r\n", i)
	}
	text := c.text()
	if len(text) > consoleLimit || !strings.HasSuffix(text, "line 9998\nline 9999\n") {
		t.Errorf("%d bytes, ending in %q", len(text), text[max(0, len(text)-30):])
	}
	if !strings.HasPrefix(log.String(), "line 0\r\n") {
		t.Error("the log misses the start")
	}
}

func TestConsoleVerdict(t *testing.T) {
	for text, want := range map[string]string{
		"[ 1.0] hello\r\n": "",
		"[ 3.6] Kernel panic - not syncing: sysrq triggered crash\r\n[ 3.7] CPU: 1\r\n": "Kernel panic - not syncing: sysrq triggered crash",
		"vmtest: init: cannot load 9p.ko\r\n[ 1.0] reboot: Power down\r\n":              "vmtest: init: cannot load 9p.ko",
	} {
		c := newConsole(io.Discard)
		_, _ = c.Write([]byte(text))
		if got := c.verdict(); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestStreamReached(t *testing.T) {
	var out bytes.Buffer
	s := newStream(&out)
	_, _ = s.Write([]byte("123"))
	if wait := s.reached(3); !isClosed(wait) {
		t.Error("3 of 3 bytes: not reached")
	}
	wait := s.reached(5)
	_, _ = s.Write([]byte("4"))
	if isClosed(wait) {
		t.Error("4 of 5 bytes: reached")
	}
	_, _ = s.Write([]byte("56"))
	if !isClosed(wait) {
		t.Error("6 of 5 bytes: not reached")
	}
	if out.String() != "123456" {
		t.Errorf("passed on %q", out.String())
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestExitStatus(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
	}{
		{usagef("x"), 2},
		{fmt.Errorf("boot: %w", &timeoutError{after: time.Second}), 124},
		{&signalError{signal: syscall.SIGTERM}, 143},
		{errNoAnswer, 125},
	} {
		if got := exitStatus(test.err); got != test.want {
			t.Errorf("%v: got %d, want %d", test.err, got, test.want)
		}
	}
}

func TestPreferCause(t *testing.T) {
	cause := &timeoutError{after: time.Second}
	ctx, cancel := context.WithCancelCause(context.Background())
	other := errors.New("signal: killed")
	if got := preferCause(ctx, other); got != other {
		t.Errorf("not cancelled: got %v", got)
	}
	cancel(cause)
	if got := preferCause(ctx, other); got != error(cause) {
		t.Errorf("cancelled: got %v", got)
	}
	if got := preferCause(ctx, nil); got != nil {
		t.Errorf("no error: got %v", got)
	}
	detailed := fmt.Errorf("%w, while booting", cause)
	if got := preferCause(ctx, detailed); got != detailed {
		t.Errorf("error with the cause: got %v", got)
	}
}

func TestFindProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := findProgram("qemu-system-x86_64")
	if want := "install the Debian package qemu-system-x86"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestRunProgram(t *testing.T) {
	_, err := runProgram(context.Background(), "", "sh", "-c", "echo why >&2; exit 3")
	if err == nil || !isExit(err) || !strings.HasSuffix(err.Error(), "sh: exit status 3:\nwhy") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	// The grandchild holds the pipe: it must be killed as well.
	if _, err := runProgram(ctx, "", "sh", "-c", "sleep 30; true"); err == nil {
		t.Error("cancelled: no error")
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("cancelled after %v", took)
	}
}

func TestHelperEnv(t *testing.T) {
	got := helperEnv([]string{"PATH=/bin", "MAKEFLAGS=-j9", "ARCH=arm", "V=1"})
	if want := []string{"PATH=/bin", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestLastLines(t *testing.T) {
	if got := lastLines("a\nb\nc\n", 2); got != "b\nc" {
		t.Errorf("got %q", got)
	}
	if got := lastLines("a", 2); got != "a" {
		t.Errorf("got %q", got)
	}
}
