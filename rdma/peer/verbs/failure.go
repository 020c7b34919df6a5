package verbs

import (
	"errors"
	"strings"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/peer/session"
)

// orNil is a failure, or a nil that is an error's.
func orNil(stage loopback.Stage, err error) error {
	if err == nil {
		return nil
	}
	return failure(stage, err)
}

// failure is a failure of an endpoint as sessions have it. The stage is that of an
// error that names none.
func failure(stage loopback.Stage, err error) *session.Failure {
	var staged *loopback.StageError
	if errors.As(err, &staged) {
		stage = staged.Stage
	}
	f := session.Fail(reason(err), string(stage), err)
	f.Text = remark(err, staged)
	var call *loopback.Error
	if errors.As(err, &call) {
		f.Call, f.Errno = call.Call, ""
		if call.Errno != 0 {
			f.Errno = call.ErrnoName()
		}
		if call.Status != 0 {
			f.Status = call.Status.String()
		}
		return f
	}
	var named interface{ ErrnoName() string } // of libcuda
	if errors.As(err, &named) {
		f.Errno = named.ErrnoName()
	}
	return f
}

// reason tells what is no fault of the hardware from what is.
func reason(err error) session.Reason {
	switch loopback.SkipReason(err) {
	case loopback.SkipLocked:
		return session.ReasonLocked
	case loopback.SkipMemory:
		return session.ReasonGate
	}
	return session.ReasonRDMA
}

// remark is one line without the stage, which a Failure names by itself. What the
// teardown after it found is part of it.
func remark(err error, first *loopback.StageError) string {
	if first == nil {
		return oneLine(err.Error())
	}
	prefix := string(first.Stage) + ": "
	return oneLine(strings.TrimPrefix(err.Error(), prefix))
}

// oneLine joins what errors.Join put on lines of their own.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }
