package driver

import (
	"regexp"
	"time"

	"gdr_exporter/collector/sysread"
)

// deviceName is the device of errors that concern no single module.
const deviceName = "driver"

// maxRefused bounds the files that are remembered as refusing.
const maxRefused = 256

// pass is one Read: the reader, the time, and what failed.
type pass struct {
	*Reader
	now  time.Time
	errs []sysread.ReadError
}

// outcome is how reading one file went.
type outcome int

const (
	found  outcome = iota
	absent         // there is no such file, or not any more
	failed         // it could not be read; the error is counted
)

// try calls read unless what the key stands for, usually a path, has refused to
// be read within the slow interval: a privilege that is missing stays missing,
// and one error per interval says it. The error counts for device and source.
func (p *pass) try(device, source, key string, read func() error) outcome {
	if p.now.Before(p.refused[key]) {
		return failed
	}
	err := read()
	switch {
	case err == nil:
		delete(p.refused, key)
		return found
	case sysread.Vanished(err) || sysread.Absent(err):
		delete(p.refused, key)
		return absent
	}
	if sysread.Refused(err) {
		if len(p.refused) >= maxRefused {
			clear(p.refused)
		}
		p.refused[key] = p.now.Add(p.options.SlowInterval)
	}
	p.fail(device, source, err)
	return failed
}

func (p *pass) fail(device, source string, err error) {
	p.errs = append(p.errs, sysread.ReadError{Device: device, Source: source, Err: err})
}

// text reads a file of at most one page.
func (p *pass) text(device, source, path string) (text string, o outcome) {
	o = p.try(device, source, path, func() (err error) {
		text, err = sysread.ReadOnce(&p.io, path)
		return err
	})
	return text, o
}

// versionText matches what is taken for a version: of a driver ("580.95.05"),
// of an RDMA stack ("24.10-0.7.0"), a module's srcversion.
var versionText = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._+~:-]{0,63}$`)

// version reads a file that holds a version.
func (p *pass) version(device, source, path string) (sysread.Maybe[string], outcome) {
	text, o := p.text(device, source, path)
	if o == found && !versionText.MatchString(text) {
		p.fail(device, source, sysread.Invalid(text))
		o = failed
	}
	if o != found {
		text = ""
	}
	return sysread.Maybe[string]{Value: text, Known: o == found}, o
}

// number reads a file that holds a counter.
func (p *pass) number(device, source, path string) sysread.Maybe[uint64] {
	text, o := p.text(device, source, path)
	if o != found {
		return sysread.Maybe[uint64]{}
	}
	value, err := sysread.ParseCounter([]byte(text))
	if err != nil {
		p.fail(device, source, err)
		return sysread.Maybe[uint64]{}
	}
	return sysread.Some(value)
}

// exists is access(path, F_OK), as libraries ask: a file may be seen that may
// not be read.
func (p *pass) exists(device, source, path string) sysread.Maybe[bool] {
	switch p.try(device, source, "access "+path, func() error { return p.io.Access(path) }) {
	case found:
		return sysread.Some(true)
	case absent:
		return sysread.Some(false)
	default:
		return sysread.Maybe[bool]{}
	}
}

// names lists a directory.
func (p *pass) names(device, source, path string) (names []string, o outcome) {
	o = p.try(device, source, path, func() (err error) {
		names, err = sysread.ReadNames(&p.io, path)
		return err
	})
	return names, o
}
