package main

import (
	"fmt"
	"syscall"
	"time"
)

// usageError is a mistake in the command line: one line, exit status 2.
type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

// usagef builds a usageError.
func usagef(format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

// timeoutError ends a run that took longer than --timeout.
type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string {
	return fmt.Sprintf("timed out after %v (see --timeout)", e.after)
}

// signalError ends a run on SIGINT or SIGTERM.
type signalError struct{ signal syscall.Signal }

func (e *signalError) Error() string {
	return fmt.Sprintf("ended by signal %d (%v)", int(e.signal), e.signal)
}
