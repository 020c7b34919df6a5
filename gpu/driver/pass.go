package driver

import (
	"errors"
	"regexp"
	"syscall"
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

// try calls read, of a path, unless it has refused to be read within the slow
// interval: a privilege that is missing stays missing, and one error per interval
// says it. The error counts for device and source.
func (p *pass) try(device, source, path string, read func() error) outcome {
	return p.tryAs(path, device, source, path, read)
}

// tryAs is try where a path may refuse one thing and not another: the key stands
// for what is asked of it.
func (p *pass) tryAs(key, device, source, path string, read func() error) outcome {
	if p.now.Before(p.refused[key]) {
		return failed
	}
	err := read()
	switch {
	case err == nil:
		delete(p.refused, key)
		return found
	case p.gone(path, err):
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

// gone reports whether err, of a path, says that there is no such thing (any
// more). ENODEV says so of a file that is being taken away; one that stays and
// answers so cannot be read.
func (p *pass) gone(path string, err error) bool {
	if !errors.Is(err, syscall.ENODEV) {
		return sysread.Absent(err)
	}
	_, err = p.io.Lstat(path)
	return err != nil
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

// Forms of what is read as a version.
var (
	// dottedVersion matches that of an RDMA stack, of a kernel: 24.10-0.7.0,
	// 6.8.0-45-generic.
	dottedVersion = regexp.MustCompile(`^[0-9]{1,4}\.[0-9A-Za-z._+~:-]{1,60}$`)
	// plainVersion matches that of a module or of a peer memory client, which may have
	// no dot: 1, 2.4, 1.3-0.
	plainVersion = regexp.MustCompile(`^[0-9]{1,4}(\.[0-9A-Za-z._+~:-]{1,60})?$`)
	// sourceVersion matches a module's srcversion, a sum of its source.
	sourceVersion = regexp.MustCompile(`^[0-9A-F]{8,32}$`)
)

// version reads a file that holds a version of a form. Text of another form is
// none: compared with a version, it would be another one.
func (p *pass) version(device, source, path string, form *regexp.Regexp) (sysread.Maybe[string], outcome) {
	text, o := p.text(device, source, path)
	if o == found && !form.MatchString(text) {
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
	switch p.tryAs("access "+path, device, source, path, func() error { return p.io.Access(path) }) {
	case found:
		return sysread.Some(true)
	case absent:
		return sysread.Some(false)
	default:
		return sysread.Maybe[bool]{}
	}
}

// errNoDirectory says that something else is where a directory should be, which
// is not the same as nothing.
var errNoDirectory = errors.New("not a directory")

// names lists a directory.
func (p *pass) names(device, source, path string) (names []string, o outcome) {
	o = p.try(device, source, path, func() (err error) {
		names, err = sysread.ReadNames(&p.io, path)
		if errors.Is(err, syscall.ENOTDIR) {
			if _, missing := p.io.Lstat(path); missing == nil {
				return errNoDirectory
			}
		}
		return err
	})
	return names, o
}
