package loopback

import "errors"

// errKept says that memory was not given back, on purpose.
var errKept = errors.New("kept, as the NIC may still use it")

// undo is what a run has made, each with how to unmake it.
type undo struct {
	steps []undoStep
}

type undoStep struct {
	what   string
	memory bool // memory that a NIC may have been told of, or what that rests on
	do     func() error
}

func (u *undo) add(what string, do func() error) {
	u.steps = append(u.steps, undoStep{what, false, do})
}

// addMemory adds memory. It is kept if anything that was made after it could
// not be unmade: better a leak, which is reported, than a NIC that writes into
// memory of somebody else.
func (u *undo) addMemory(what string, do func() error) {
	u.steps = append(u.steps, undoStep{what, true, do})
}

// unwind unmakes everything in reverse order. It goes on after a failure and
// returns the failures, if any.
func (u *undo) unwind() error {
	var failures []error
	for i := len(u.steps) - 1; i >= 0; i-- {
		step := u.steps[i]
		err := errKept
		if !step.memory || len(failures) == 0 {
			err = step.do()
		}
		if err != nil {
			failures = append(failures, &teardownError{step.what, err})
		}
	}
	u.steps = nil
	return errors.Join(failures...)
}

// teardownError says what could not be unmade.
type teardownError struct {
	what string
	err  error
}

func (e *teardownError) Error() string { return e.what + ": " + e.err.Error() }
func (e *teardownError) Unwrap() error { return e.err }
