package loopback

import (
	"errors"
	"io/fs"
	"syscall"
)

// Reasons why a run cannot be made here and now, which say nothing of the pair:
// values of SkipReason. Others come with the errors of whoever opens the GPU.
const (
	SkipPort    = "port_not_active"
	SkipMemory  = "gpu_memory_low"
	SkipLibrary = "no_library"
	SkipNode    = "no_device_node"
	SkipLocked  = "locked"
)

// SkipReason returns why an error is a refusal and no failure: what the first
// error in its tree with a method SkipReason gives, "" if there is none.
func SkipReason(err error) string {
	var refusal interface {
		error
		SkipReason() string
	}
	if errors.As(err, &refusal) {
		return refusal.SkipReason()
	}
	return ""
}

// SkipReason returns why the run could not begin, "" if it did, or if it failed:
// the reason of the first stage that failed, if that comes before any memory is
// allocated.
func (r *Result) SkipReason() string {
	for i := range r.Stages {
		stage := &r.Stages[i]
		if stage.Err == nil {
			continue
		}
		if stage.Stage != StageOpen && stage.Stage != StageGate {
			return ""
		}
		return SkipReason(stage.Err)
	}
	return ""
}

// refusal is an error with the reason why it is no failure.
type refusal struct {
	reason string
	err    error
}

func skip(reason string, err error) error { return &refusal{reason, err} }

// Error is the text of what was refused.
func (r *refusal) Error() string { return r.err.Error() }

// Unwrap returns what was refused.
func (r *refusal) Unwrap() error { return r.err }

// SkipReason is what SkipReason looks for.
func (r *refusal) SkipReason() string { return r.reason }

// skipNode makes a refusal of what says that a device file is not there, or not
// for this process: a container without it, permissions. EPERM is of a cgroup.
func skipNode(err error) error {
	for _, absent := range []error{fs.ErrNotExist, syscall.ENXIO, syscall.ENODEV, syscall.EACCES, syscall.EPERM} {
		if errors.Is(err, absent) {
			return skip(SkipNode, err)
		}
	}
	return err
}

// Sticky reports whether any error of the run says that CUDA does not work in this
// process any more: one in its tree has a method Sticky which is true. That does
// not survive JSON, as it holds for the process that made the run.
func (r *Result) Sticky() bool {
	sticky := false
	ask := func(err error) {
		walk(err, func(part error) {
			if s, can := part.(interface{ Sticky() bool }); can { //nolint:errorlint // all parts are asked
				sticky = sticky || s.Sticky()
			}
		})
	}
	for i := range r.Stages {
		ask(r.Stages[i].Err)
	}
	for i := range r.Registrations {
		ask(r.Registrations[i].Err)
	}
	for i := range r.Paths {
		ask(r.Paths[i].Err)
	}
	return sticky
}
