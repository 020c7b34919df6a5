package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// scratch holds the vmtest binary for the tests that boot; packageDir is where
// go test starts them.
var scratch, packageDir string

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	var err error
	if packageDir, err = os.Getwd(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if scratch, err = os.MkdirTemp("", "vmtest"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch)
	return m.Run()
}

// program builds vmtest once and returns its path.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "vmtest")
	build := exec.Command("go", "build", "-o", path, ".")
	build.Dir = packageDir // tests change the working directory
	output, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, output)
	}
	return path, nil
})

// outcome is what a run of vmtest gave.
type outcome struct {
	stdout, stderr string
	status         int
}

// command prepares a run of the vmtest binary.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(path, args...)
}

// vmtest runs the binary to its end.
func vmtest(t *testing.T, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := command(t, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{stdout: stdout.String(), stderr: stderr.String(), status: cmd.ProcessState.ExitCode()}
}

// inVM runs a shell script in a VM with the given flags and expects it to end
// well. It returns what the script wrote to stdout.
func inVM(t *testing.T, script string, flags ...string) string {
	t.Helper()
	got := vmtest(t, append(flags, "--", "sh", "-c", script)...)
	if got.status != 0 {
		t.Fatalf("exit status %d\nstdout:\n%s\nstderr:\n%s", got.status, got.stdout, got.stderr)
	}
	return got.stdout
}

// needsVM skips tests that boot where only quick ones are wanted.
func needsVM(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a virtual machine: not with -short")
	}
}

// wantLines expects each line in text, as a whole line.
func wantLines(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains("\n"+text, "\n"+line+"\n") {
			t.Errorf("no line %q in:\n%s", line, text)
		}
	}
}

// eventually polls until ok or the limit.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

// children returns the ids of a process's children, whichever of its threads
// started them.
func children(t *testing.T, pid int) []string {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		all = append(all, strings.Fields(string(text))...)
	}
	return all
}
