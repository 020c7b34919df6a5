package devlink

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"

	"gdr_exporter/collector/sysread"
)

// Reading is what one dump found.
type Reading struct {
	Read time.Time
	// Supported is false if the kernel has no devlink, and unknown if the
	// last attempt failed.
	Supported sysread.Maybe[bool]
	Reporters []Reporter
}

// timeout bounds one dump. The kernel takes each device's lock for it, which a
// driver may hold for seconds while it recovers.
const timeout = 10 * time.Second

// How long to leave alone a kernel without devlink: the module may be loaded later.
const (
	absentFirst = 10 * time.Minute
	absentMost  = time.Hour
)

// maxReporters bounds what is taken from a dump.
const maxReporters = 1 << 12

// Conn is where the dump comes from: a generic netlink socket.
type Conn interface {
	// Reporters returns the messages of the dump without their headers.
	Reporters(deadline time.Time) ([][]byte, error)
	// Close closes the socket.
	Close()
}

// Reader reads the health reporters of all devices. It is for one goroutine at
// a time.
type Reader struct {
	dial    func() (Conn, error)
	conn    Conn
	refused sysread.Backoff
	last    Reading
}

// NewReader returns a reader of the running kernel; nothing is opened yet.
func NewReader() *Reader { return NewReaderOf(Dial) }

// NewReaderOf returns a reader of what dial connects to: the running kernel's
// stand-in.
func NewReaderOf(dial func() (Conn, error)) *Reader { return &Reader{dial: dial} }

// Close closes the reader's socket.
func (r *Reader) Close() {
	if r.conn != nil {
		r.conn.Close()
		r.conn = nil
	}
}

// Read asks for the reporters. A kernel without devlink is no error and is
// asked again rarely; so is a refusal, after it has been reported.
func (r *Reader) Read(now time.Time) (Reading, []sysread.ReadError) {
	if r.refused.Waiting(now) {
		return r.last, nil
	}
	r.last = Reading{Read: now}
	reporters, err := r.fetch()
	switch {
	case err == nil:
		r.refused.Reset()
		r.last.Supported, r.last.Reporters = sysread.Some(true), reporters
		return r.last, nil
	case absent(err):
		r.last.Supported = sysread.Some(false)
		r.refused.Refuse(now, 0, absentFirst, absentMost)
		return r.last, nil
	}
	r.Close() // what was not waited for must not answer the next request
	if sysread.Refused(err) {
		r.refused.Refuse(now, 0, absentFirst, absentMost)
	}
	return r.last, []sysread.ReadError{{Source: "devlink", Err: fmt.Errorf("devlink health reporters: %w", err)}}
}

func (r *Reader) fetch() ([]Reporter, error) {
	if r.conn == nil {
		c, err := r.dial()
		if err != nil {
			return nil, err
		}
		r.conn = c
	}
	messages, err := r.conn.Reporters(time.Now().Add(timeout))
	if err != nil {
		return nil, err
	}
	var reporters []Reporter
	for _, body := range messages[:min(len(messages), maxReporters)] {
		if reporter, is := Decode(body); is {
			reporters = append(reporters, reporter)
		}
	}
	return reporters, nil
}

// absent reports whether err says that there is no devlink, or one from before
// health reporters (5.1).
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EPROTONOSUPPORT)
}

// socket is the running kernel's.
type socket struct {
	conn   *genetlink.Conn
	family uint16
}

// Dial opens a socket of the running kernel's devlink.
func Dial() (Conn, error) {
	c, err := genetlink.Dial(nil)
	if err != nil {
		return nil, fmt.Errorf("generic netlink socket: %w", err)
	}
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		_ = c.Close()
		return nil, err
	}
	id, err := familyID(c)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return &socket{c, id}, nil
}

// familyID looks devlink up in the list of families. Asking for it by name would
// have a kernel without it try to load a module.
func familyID(c *genetlink.Conn) (uint16, error) {
	families, err := c.ListFamilies()
	if err != nil {
		return 0, err
	}
	for _, family := range families {
		if family.Name == familyName {
			return family.ID, nil
		}
	}
	return 0, fmt.Errorf("generic netlink family %s: %w", familyName, fs.ErrNotExist)
}

func (s *socket) Close() { _ = s.conn.Close() }

func (s *socket) Reporters(deadline time.Time) ([][]byte, error) {
	if err := s.conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	request := genetlink.Message{Header: genetlink.Header{Command: cmdReporterGet, Version: familyVersion}}
	answers, err := s.conn.Execute(request, s.family, netlink.Request|netlink.Dump)
	if err != nil {
		return nil, err
	}
	bodies := make([][]byte, len(answers))
	for i, a := range answers {
		bodies[i] = a.Data
	}
	return bodies, nil
}
