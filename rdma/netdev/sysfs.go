package netdev

import (
	"errors"
	"path/filepath"
	"strconv"
	"syscall"

	"gdr_exporter/collector/sysread"
)

// readSysfs reads the files that cost the device nothing. None of them takes
// the lock of the network configuration (rtnl), as speed and duplex do.
func (p *pass) readSysfs() {
	p.reading.MTU = p.number("mtu")
	p.reading.CarrierUps = p.number("carrier_up_count")
	p.reading.CarrierDowns = p.number("carrier_down_count")
	const driver = "/device/driver"
	target, err := p.options.IO.Readlink(p.dir + driver)
	switch {
	case err == nil:
		p.reading.Driver = filepath.Base(target)
	case !p.vanished(driver, err):
		p.fail("netdev"+driver, err)
	}
}

// vanished reports whether err, of a file of the interface's directory, says
// that there is no such file (any more). One that is still there and says so is
// one that cannot be read.
func (p *pass) vanished(file string, err error) bool {
	if !errors.Is(err, syscall.ENODEV) {
		return sysread.Absent(err)
	}
	_, err = p.options.IO.Lstat(p.dir + "/" + file)
	return err != nil
}

// text reads a small file of the interface's directory; ok is false if there is
// none, or if it could not be read, which is noted.
func (p *pass) text(file string) (text string, ok bool) {
	text, err := sysread.ReadOnce(p.options.IO, p.dir+"/"+file)
	if err != nil && !p.vanished(file, err) {
		p.errs = append(p.errs, sysread.ReadError{Source: "netdev/" + file, Err: err})
	}
	return text, err == nil
}

// number reads a number; a file that is not there is unknown.
func (p *pass) number(file string) sysread.Maybe[uint64] {
	text, ok := p.text(file)
	if !ok {
		return sysread.Maybe[uint64]{}
	}
	value, err := sysread.ParseCounter([]byte(text))
	if err != nil {
		p.fail("netdev/"+file, err)
		return sysread.Maybe[uint64]{}
	}
	return sysread.Some(value)
}

// offered is text for what a driver may have no answer to though the file is
// there: it says EINVAL then.
func (p *pass) offered(file string) (text string, ok bool) {
	failed := len(p.errs)
	if text, ok = p.text(file); !ok && len(p.errs) > failed && errors.Is(p.errs[failed].Err, syscall.EINVAL) {
		p.errs = p.errs[:failed]
	}
	return text, ok
}

// ecn reads the switches of one side of RoCE congestion control, as NVIDIA's
// out-of-tree driver has them: ecn/roce_np/enable/<priority>.
func (p *pass) ecn(side string) sysread.Maybe[PrioritySet] {
	var set PrioritySet
	for priority := range Priorities {
		file := "ecn/" + side + "/enable/" + strconv.Itoa(priority)
		text, ok := p.offered(file)
		if !ok {
			return sysread.Maybe[PrioritySet]{}
		}
		switch text {
		case "0":
		case "1":
			set |= 1 << priority
		default:
			p.fail("netdev/"+file, sysread.Invalid(text))
			return sysread.Maybe[PrioritySet]{}
		}
	}
	return sysread.Some(set)
}

// trustFile reads trust as NVIDIA's out-of-tree driver shows it.
func (p *pass) trustFile() Trust {
	const file = "qos/trust"
	text, ok := p.offered(file)
	if !ok {
		return TrustUnknown
	}
	switch trust := Trust(text); trust {
	case TrustPCP, TrustDSCP:
		return trust
	}
	p.fail("netdev/"+file, sysread.Invalid(text))
	return TrustUnknown
}
