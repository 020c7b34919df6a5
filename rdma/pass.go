package rdma

import (
	"path/filepath"
	"time"

	"gdr_exporter/collector/sysread"
)

// pass is one read of one device: the clock it goes by, its buffer, and what
// has failed so far.
type pass struct {
	io   *sysread.IO
	now  time.Time
	buf  []byte
	errs []sysread.ReadError

	device, port string // named in errors
}

func (p *pass) fail(source string, err error) {
	p.errs = append(p.errs, sysread.ReadError{Device: p.device, Port: p.port, Source: source, Err: err})
}

// quieten marks the failures from the given one on as said by another message.
func (p *pass) quieten(from int) {
	for i := range p.errs[from:] {
		p.errs[from+i].Quiet = true
	}
}

// text reads a small attribute below dir. An absent one gives "": drivers
// differ in which attributes they have. Any other failure is noted.
func (p *pass) text(dir, name string) string {
	value, err := sysread.ReadOnce(p.io, dir+"/"+name)
	if err != nil && !sysread.Absent(err) {
		p.fail(name, err)
	}
	return value
}

// formed is text for an attribute that has a form, so that an empty one is no
// answer either: parse says what it means. ok is false without a value: the
// attribute is absent, which is no failure, or it was noted.
func formed[T any](p *pass, dir, name string, parse func(text string) (T, error)) (value T, ok bool) {
	text, err := sysread.ReadOnce(p.io, dir+"/"+name)
	if err == nil {
		value, err = parse(text)
	}
	if err != nil && !sysread.Absent(err) {
		p.fail(name, err)
	}
	return value, err == nil
}

// linkBase returns the last element of a symbolic link's target, "" without the
// link: a device without a driver has no driver link. Any other failure is noted
// under source.
func (p *pass) linkBase(path, source string) string {
	target, err := p.io.Readlink(path)
	if err != nil {
		if !sysread.Absent(err) {
			p.fail(source, err)
		}
		return ""
	}
	return filepath.Base(target)
}

// exists reports whether there is something at a path, such as a link that only
// some functions have. A failure other than its absence is noted under source.
func (p *pass) exists(path, source string) bool {
	_, err := p.io.Lstat(path)
	if err != nil && !sysread.Absent(err) {
		p.fail(source, err)
	}
	return err == nil
}

// expected is text for an attribute that every driver has: its absence is
// noted too.
func (p *pass) expected(dir, name string) (string, bool) {
	value, err := sysread.ReadOnce(p.io, dir+"/"+name)
	if err != nil {
		p.fail(name, err)
	}
	return value, err == nil
}
