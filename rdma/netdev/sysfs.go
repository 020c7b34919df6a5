package netdev

import (
	"errors"
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
	p.reading.Driver = p.options.IO.LinkBase(p.dir + "/device/driver")
}

// text reads a small file of the interface's directory, "" if there is none.
func (p *pass) text(file string) string {
	text, err := sysread.ReadOnce(p.options.IO, p.dir+"/"+file)
	if err != nil && !sysread.Absent(err) && !errors.Is(err, syscall.EINVAL) {
		p.fail("netdev/"+file, err)
	}
	return text
}

// number reads a number; a file that is not there is unknown.
func (p *pass) number(file string) sysread.Maybe[uint64] {
	text := p.text(file)
	if text == "" {
		return sysread.Maybe[uint64]{}
	}
	value, err := sysread.ParseCounter([]byte(text))
	if err != nil {
		p.fail("netdev/"+file, err)
		return sysread.Maybe[uint64]{}
	}
	return sysread.Some(value)
}

// ecn reads the switches of one side of RoCE congestion control, as NVIDIA's
// out-of-tree driver has them: ecn/roce_np/enable/<priority>.
func (p *pass) ecn(side string) sysread.Maybe[PrioritySet] {
	var set PrioritySet
	for priority := range Priorities {
		on := p.number("ecn/" + side + "/enable/" + strconv.Itoa(priority))
		if !on.Known {
			return sysread.Maybe[PrioritySet]{}
		}
		if on.Value != 0 {
			set |= 1 << priority
		}
	}
	return sysread.Some(set)
}

// trustFile reads trust as NVIDIA's out-of-tree driver shows it.
func (p *pass) trustFile() Trust {
	switch trust := Trust(p.text("qos/trust")); trust {
	case TrustPCP, TrustDSCP:
		return trust
	default:
		return TrustUnknown
	}
}
