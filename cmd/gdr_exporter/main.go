// Command gdr_exporter is a Prometheus exporter for the health of RDMA and GPU
// interconnects.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"unicode"

	"github.com/prometheus/common/version"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1 // something broke while running
	exitUsage   = 2 // a flag, file or address given by the user cannot be used
)

// errPrinted stands for an error that the user has been told of.
var errPrinted = errors.New("printed")

// usageError is a mistake of the user's: one line, exit code 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// The kernel hands a signal to the first thread of a process if that one does not
// block it, and to no other while it does not come. So that a read that hangs does
// not hold up SIGTERM, no goroutine but main's runs on that thread.
func init() { runtime.LockOSThread() }

func main() {
	if version.Version == "" { // not set by the linker
		version.Version = moduleVersion()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	// Exit rather than return: a read that hangs in the kernel must not hold
	// the process.
	os.Exit(code)
}

// moduleVersion is what Go knows of the version: that of "go install ...@v1.2.3",
// or one made of the commit.
func moduleVersion() string {
	if info, found := debug.ReadBuildInfo(); found && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// run is main with its surroundings as arguments.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdout, stderr)
	var usage usageError
	var exit exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return int(exit)
	case errors.Is(err, errPrinted):
		return exitUsage
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "gdr_exporter: error: %s\n", oneLine(err.Error()))
		return exitUsage
	default:
		fmt.Fprintf(stderr, "gdr_exporter: %s\n", oneLine(err.Error()))
		return exitFailure
	}
}

// oneLine keeps a message on one line, whatever a value or a library put into it.
func oneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.Join(lines, " "))
}
