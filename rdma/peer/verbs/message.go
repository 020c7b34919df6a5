package verbs

import (
	"context"
	"encoding/json"
	"errors"
	"syscall"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/isolate"
	"gdr_exporter/rdma/peer/session"
)

// A child holds one endpoint for its parent. They speak JSON, a line each: the parent
// says an order and then one request at a time, each of which the child answers.

// Bounds of what parent and child take from each other. The longest request is one to
// verify, of extents that came from a peer: session bounds those by its messages.
const (
	mostLine   = 256 << 10
	mostOutput = 4 << 20
)

// order is the endpoint that a child is to open.
type order struct {
	Template   loopback.EndpointSpec `json:"template"`
	MostBuffer int                   `json:"most_buffer"`
	GPU        isolate.GPUSettings   `json:"gpu"`
	Spec       session.Spec          `json:"spec"`
}

// The calls of requests are the methods of an endpoint, named as their stages.
const (
	callConnect = string(loopback.StageConnect)
	callFill    = string(loopback.StageFill)
	callWrite   = string(loopback.StageWrite)
	callPing    = string(loopback.StagePing)
	callServe   = string(loopback.StageServe)
	callVerify  = string(loopback.StageVerify)
	callClose   = string(loopback.StageTeardown)
	callEnd     = "end" // of the call with that number, which is under way
)

// Numbers that no other call has.
const (
	numberOpen  = 0  // of the order
	numberClose = -1 // of closing, which ends what is under way
)

// request is a call.
type request struct {
	Number  int              `json:"number"` // the answer has it too
	Call    string           `json:"call"`
	Peer    *session.Address `json:"peer,omitempty"`
	Seed    uint64           `json:"seed,omitempty"`
	Bytes   uint64           `json:"bytes,omitempty"`
	Within  int64            `json:"within_ns,omitempty"`
	Count   int              `json:"count,omitempty"`
	Extents []session.Extent `json:"extents,omitempty"`
}

// answer is what came of a call.
type answer struct {
	Number       int                   `json:"number"`
	Address      json.RawMessage       `json:"address,omitempty"`
	Facts        *session.Facts        `json:"facts,omitempty"`
	Written      *session.Written      `json:"written,omitempty"`
	Pings        *session.Pings        `json:"pings,omitempty"`
	Verification *session.Verification `json:"verification,omitempty"`
	Failure      *carried              `json:"failure,omitempty"`
}

// carried is a failure as it goes to the parent: with the number of the errno, since
// whoever gets it tells by that whether a call was ended.
type carried struct {
	*session.Failure
	Errno uint `json:"errno_number,omitempty"`
}

// MarshalJSON is not that of the failure alone.
func (c carried) MarshalJSON() ([]byte, error) {
	return json.Marshal(plainCarried{c.Failure, c.Errno})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (c *carried) UnmarshalJSON(text []byte) error {
	var in plainCarried
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	c.Failure, c.Errno = in.Failure, in.Errno
	return nil
}

type plainCarried struct {
	Failure *session.Failure `json:"what"`
	Errno   uint             `json:"errno_number,omitempty"`
}

// carry makes an error fit for an answer.
func carry(stage string, err error) *carried {
	if err == nil {
		return nil
	}
	var f *session.Failure
	if !errors.As(err, &f) {
		f = session.Fail(session.ReasonRDMA, stage, err)
	}
	c := &carried{Failure: f}
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		c.Errno = uint(errno)
	case errors.Is(err, context.Canceled):
		c.Errno = uint(syscall.ECANCELED)
	case errors.Is(err, context.DeadlineExceeded):
		c.Errno = uint(syscall.ETIMEDOUT)
	}
	return c
}

// carriedError is what a failure came from, in the child.
type carriedError struct {
	text  string
	errno syscall.Errno
}

// Error is the text that it had there.
func (e *carriedError) Error() string { return e.text }

// Unwrap is its errno, if it had one.
func (e *carriedError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

// failure is the failure as it was in the child. nil stays nil.
func (c *carried) failure() *session.Failure {
	if c == nil || c.Failure == nil {
		return nil
	}
	from := c.Failure
	f := session.Fail(from.Reason, from.Stage, &carriedError{from.Text, syscall.Errno(c.Errno)})
	f.Call, f.Errno, f.Status = from.Call, from.Errno, from.Status
	return f
}
