package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCommandStatus(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	write(t, plain, "not executable")
	for _, test := range []struct {
		command []string
		want    int
	}{
		{[]string{"true"}, 0},
		{[]string{"sh", "-c", "exit 7"}, 7},
		{[]string{"sh", "-c", "kill -9 $$"}, 137},
		{[]string{"no-such-command"}, exitNotFound},
		{[]string{"/no/such/command"}, exitNotFound},
		{[]string{plain}, exitCannotRun},
	} {
		var complaint bytes.Buffer
		got := commandStatus(exec.Command(test.command[0], test.command[1:]...), &complaint)
		if got != test.want {
			t.Errorf("%v: got %d, want %d", test.command, got, test.want)
		}
		if failed := test.want == exitNotFound || test.want == exitCannotRun; failed != (complaint.Len() > 0) {
			t.Errorf("%v: complaint %q", test.command, complaint.String())
		}
	}
}

// newTestOutlet returns an outlet whose port is a file.
func newTestOutlet(t *testing.T) *outlet {
	t.Helper()
	port, err := os.Create(filepath.Join(t.TempDir(), "port"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = port.Close() })
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	o := &outlet{name: "test", reader: reader, writer: writer, port: port, done: make(chan struct{})}
	go o.copy()
	return o
}

func TestOutletPassesEverything(t *testing.T) {
	o := newTestOutlet(t)
	text := strings.Repeat("x", 1<<20)
	if _, err := o.writer.WriteString(text); err != nil {
		t.Fatal(err)
	}
	count, err := o.finish()
	if err != nil || count != int64(len(text)) {
		t.Errorf("count %d, %v", count, err)
	}
	if got, err := os.ReadFile(o.port.Name()); err != nil || string(got) != text {
		t.Errorf("%d bytes arrived, %v", len(got), err)
	}
}

// A process that the command leaves behind holds the pipe open for ever.
func TestOutletEndsWithoutEndOfFile(t *testing.T) {
	o := newTestOutlet(t)
	sleeper := exec.Command("sleep", "60")
	sleeper.Stdout = o.writer
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = sleeper.Process.Kill()
		_ = sleeper.Wait()
	}()
	if _, err := o.writer.WriteString("last words"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	count, err := o.finish()
	if err != nil || count != int64(len("last words")) {
		t.Errorf("count %d, %v", count, err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}
