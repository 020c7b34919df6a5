package session

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"unicode"

	"gdr_exporter/collector/sysread"
)

// Reason is the class of a failure or refusal. It is one of a small set, fit for a
// label.
type Reason string

// The reasons.
const (
	ReasonUnreachable Reason = "unreachable"     // no TCP connection
	ReasonTLS         Reason = "tls"             // no TLS connection: certificate, its authority, its time
	ReasonCertificate Reason = "certificate"     // the certificate is good, and of somebody else
	ReasonNotListed   Reason = "not_listed"      // the target list has no such node
	ReasonForeign     Reason = "foreign_address" // the connection comes from elsewhere than the target is
	ReasonVersion     Reason = "version"         // no version of the protocol that both know
	ReasonProtocol    Reason = "protocol"        // what came has a wrong form, or came out of turn
	ReasonInvalid     Reason = "invalid"         // what was asked for, or an address, cannot be
	ReasonNoRail      Reason = "no_rail"         // there is no such device, port or GPU
	ReasonClaimed     Reason = "claimed"         // another target has named that RDMA address
	ReasonBusy        Reason = "busy"            // as many sessions as are allowed
	ReasonLocked      Reason = "locked"          // another measurement of the host is under way
	ReasonGate        Reason = "gate"            // this measurement is not wanted now (load, quiesce)
	ReasonBudget      Reason = "budget"          // the bytes of this hour are used up
	ReasonRDMA        Reason = "rdma"            // an endpoint failed: see stage, errno, status
	ReasonLeft        Reason = "left"            // the other side ended the connection
	ReasonTimeout     Reason = "timeout"         // the other side did not answer, or the deadline passed
	ReasonHung        Reason = "hung"            // a call does not return
	ReasonStopped     Reason = "stopped"         // this side was told to end
	ReasonOther       Reason = "other"           // one that the other side names and this one does not know
)

// Reasons are all reasons.
var Reasons = []Reason{
	ReasonUnreachable, ReasonTLS, ReasonCertificate, ReasonNotListed, ReasonForeign, ReasonVersion, ReasonProtocol, ReasonInvalid, ReasonNoRail,
	ReasonClaimed, ReasonBusy, ReasonLocked, ReasonGate, ReasonBudget, ReasonRDMA, ReasonLeft, ReasonTimeout, ReasonHung, ReasonStopped, ReasonOther,
}

// Stages of a session. Those of an endpoint (open, gate, alloc, register, connect,
// fill, ping, write, serve, verify, teardown) come between StageOpen and StageClose.
const (
	StageDial  = "dial"
	StageTLS   = "tls"
	StageHello = "hello"
	StageAdmit = "admit" // gates, budget, lock
	StageOpen  = "session"
	StageRound = "round"
	StageClose = "close"
)

// Failure is why something failed or was refused. As an error it is what all methods of
// this package return.
type Failure struct {
	Peer   bool   `json:"-"` // the other side found it; in JSON found_by says so
	Reason Reason `json:"reason"`
	Stage  string `json:"stage,omitempty"`
	Call   string `json:"call,omitempty"`   // of libibverbs, CUDA or the system
	Errno  string `json:"errno,omitempty"`  // its name, "" if there is none
	Status string `json:"status,omitempty"` // of a completion, "" if there is none
	Text   string `json:"text"`
	err    error
	close  bool // it came with close: the other side waits for closed
}

// Error is one line for people.
func (f *Failure) Error() string {
	text := f.Text
	if f.Stage != "" {
		text = f.Stage + ": " + text
	}
	if f.Peer {
		text = "peer: " + text
	}
	return text
}

// Unwrap is what this side's failure came from.
func (f *Failure) Unwrap() error { return f.err }

// Fail is a failure for a reason.
func Fail(reason Reason, stage string, err error) *Failure {
	f := &Failure{Reason: reason, Stage: stage, Text: err.Error(), err: err}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		f.Errno = sysread.ErrnoName(errno)
	}
	return f
}

func failf(reason Reason, stage, format string, args ...any) *Failure {
	return Fail(reason, stage, fmt.Errorf(format, args...))
}

func protocolError(format string, args ...any) *Failure {
	return failf(ReasonProtocol, "", format, args...)
}

// failureOr is the failure that an error is, or one for a reason. nil stays nil.
func failureOr(reason Reason, stage string, err error) *Failure {
	var f *Failure
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return at(stage, f)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return at(stage, asFailure(err))
	}
	return Fail(reason, stage, err)
}

// at is a failure with a stage, if it has none of its own.
func at(stage string, err error) *Failure {
	if err == nil {
		return nil
	}
	f := asFailure(err)
	if f.Stage == "" {
		other := *f
		other.Stage = stage
		return &other
	}
	return f
}

// asFailure is the failure that an error is, or is made into.
func asFailure(err error) *Failure {
	var f *Failure
	var alert *net.OpError // "remote error" or "local error" of TLS
	var timeout net.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return f
	case errors.Is(err, context.Canceled):
		return Fail(ReasonStopped, "", err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return Fail(ReasonTimeout, "", fmt.Errorf("%w: %w", err, syscall.ETIMEDOUT))
	case errors.As(err, &alert) && strings.HasSuffix(alert.Op, " error"), isTLS(err):
		return Fail(ReasonTLS, "", err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return Fail(ReasonLeft, "", fmt.Errorf("the connection has ended: %w", err))
	}
	return Fail(ReasonRDMA, "", err)
}

func isTLS(err error) bool {
	var record tls.RecordHeaderError
	var verification *tls.CertificateVerificationError
	return errors.As(err, &record) || errors.As(err, &verification) || strings.HasPrefix(err.Error(), "tls: ")
}

// ofPeer is a failure as it came from the other side: not to be trusted with a
// terminal, a log or a label.
func (f *Failure) ofPeer() *Failure {
	other := &Failure{
		Peer: true, Reason: f.Reason, Stage: printable(f.Stage, 32), Call: printable(f.Call, 64), Errno: printable(f.Errno, 32),
		Status: printable(f.Status, 48), Text: printable(f.Text, 512),
	}
	for _, known := range Reasons {
		if known == f.Reason {
			return other
		}
	}
	other.Reason = ReasonOther
	return other
}

// The values of found_by.
const (
	foundHere = "self"
	foundPeer = "peer"
)

// plainFailure is a failure without methods.
type plainFailure Failure

type failureJSON struct {
	plainFailure
	FoundBy string `json:"found_by"`
}

// MarshalJSON says who found it, for whoever reads results. On the wire that is said
// too and not believed: what comes from the other side was found there.
func (f *Failure) MarshalJSON() ([]byte, error) {
	out := failureJSON{plainFailure(*f), foundHere}
	if f.Peer {
		out.FoundBy = foundPeer
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (f *Failure) UnmarshalJSON(text []byte) error {
	var in failureJSON
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	*f = Failure(in.plainFailure)
	f.Peer = in.FoundBy == foundPeer
	return nil
}

// printable is a text without what is not to be seen, of so many characters at most.
func printable(text string, most int) string {
	var b strings.Builder
	for _, r := range text {
		if most--; most < 0 {
			break
		}
		if !unicode.IsPrint(r) {
			r = '?'
		}
		b.WriteRune(r)
	}
	return b.String()
}
