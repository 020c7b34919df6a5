package rdma

import (
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

// expected is text for an attribute that every driver has: its absence is
// noted too.
func (p *pass) expected(dir, name string) (string, bool) {
	value, err := sysread.ReadOnce(p.io, dir+"/"+name)
	if err != nil {
		p.fail(name, err)
	}
	return value, err == nil
}
