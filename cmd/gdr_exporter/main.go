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
	"syscall"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1 // something broke while running
	exitUsage   = 2 // a flag, file or address given by the user cannot be used
)

// usageError is a mistake of the user's: one line, exit code 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	// Exit rather than return: a read that hangs in the kernel must not hold
	// the process.
	os.Exit(code)
}

// run is main with its surroundings as arguments.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdout, stderr)
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "gdr_exporter: error: %v\n", err)
		return exitUsage
	default:
		fmt.Fprintf(stderr, "gdr_exporter: %v\n", err)
		return exitFailure
	}
}
