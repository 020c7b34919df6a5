package rdma

import (
	"errors"
	"slices"
	"strconv"
	"syscall"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/netdev"
	"gdr_exporter/rdma/nldev"
)

// gidInterval is how often a port's GID table is counted. It has up to 255
// entries on RoCE (soft-RoCE 1024), each a file to open, and changes only when
// an address is added to the netdev.
const gidInterval = 10 * time.Minute

// portReader reads one port.
type portReader struct {
	number int
	label  string
	dir    string // .../ports/N
	net    string // sysfs root's class/net

	state, physicalState sysread.Attr
	carrier              sysread.Attr // of the port's netdev; path "" without one
	netdev               *netdev.Reader
	counters             []*counterDir

	last   Port                      // the slow group's values as of the last slow read
	asked  sysread.Maybe[nldev.Port] // what netlink said in this pass
	gidsAt time.Time
	bytes  byteChooser
}

// netlinkPort returns a reader of a port that only netlink shows.
func netlinkPort(number int, netDir string, netdev *netdev.Reader) *portReader {
	label := strconv.Itoa(number)
	return &portReader{number: number, label: label, net: netDir, netdev: netdev, carrier: sysread.NewAttr(""), last: Port{Number: number, Label: label}}
}

func newPortReader(portsDir, label, netDir string, netdev *netdev.Reader) (*portReader, bool) {
	number, err := strconv.Atoi(label)
	if err != nil || number < 0 {
		return nil, false
	}
	dir := portsDir + "/" + label
	return &portReader{
		number: number, label: label, dir: dir, net: netDir,
		state: sysread.NewAttr(dir + "/state"), physicalState: sysread.NewAttr(dir + "/phys_state"),
		carrier: sysread.NewAttr(""), netdev: netdev,
		last: Port{Number: number, Label: label},
	}, true
}

// rescan takes up counter directories and files that appeared or went.
func (p *portReader) rescan(r *pass) {
	r.port = p.label
	var dirs []*counterDir
	for _, source := range []Source{SourceCounters, SourceCountersExt, SourceHW} {
		if dir := rescanDir(r, p.counters, source, p.dir); dir != nil {
			dirs = append(dirs, dir)
		}
	}
	p.counters = dirs
}

// linkLayers are the link layers of the protocols that netlink names.
var linkLayers = map[string]string{"ib": "InfiniBand", "opa": "InfiniBand", "roce": "Ethernet", "iw": "Ethernet"}

// linkLayerTexts are the texts of link_layer (drivers/infiniband/core/sysfs.c).
var linkLayerTexts = []string{"InfiniBand", "Ethernet", "Unknown"}

// readState reads the port's states and reports whether one of them changed.
//
// Netlink gives both states, and the LIDs, for one query of the port; sysfs
// makes the same query for each file.
func (p *portReader) readState(r *pass, netlink *netlinkSide) bool {
	r.port = p.label
	before := [2]sysread.Maybe[int]{p.last.State, p.last.PhysicalState}
	p.asked.Value, p.asked.Known = netlink.port(r, p.number)
	switch {
	case p.asked.Known:
		p.last.State, p.last.PhysicalState, p.last.StateFrom = p.asked.Value.State, p.asked.Value.PhysicalState, FromNetlink
	case p.dir != "":
		p.last.State = readStateID(r, &p.state, "state")
		p.last.PhysicalState = readStateID(r, &p.physicalState, "phys_state")
		p.last.StateFrom = FromSysfs
	default:
		p.last.State, p.last.PhysicalState, p.last.StateFrom = sysread.Maybe[int]{}, sysread.Maybe[int]{}, ""
	}
	return before != [2]sysread.Maybe[int]{p.last.State, p.last.PhysicalState}
}

func readStateID(r *pass, file *sysread.Attr, name string) sysread.Maybe[int] {
	text, err := file.Read(r.io, r.buf)
	if err == nil {
		var id int
		if id, err = parseStateID(text); err == nil {
			return sysread.Some(id)
		}
	}
	r.fail(name, err)
	return sysread.Maybe[int]{}
}

// readSlow reads what moves rarely and costs much: on InfiniBand each of rate,
// lid and sm_lid is a full port query of about five firmware commands.
func (p *portReader) readSlow(r *pass, device *Identity, netlink *netlinkSide) {
	r.port = p.label
	p.last.Optional = netlink.optional(r, p.number)
	if p.dir == "" {
		p.last.LinkLayer = linkLayers[device.Protocol]
		p.last.LID, p.last.SMLID = p.asked.Value.LID, p.asked.Value.SMLID
		p.setNetdev(r, p.asked.Value.Netdev)
		p.readInterface(r)
		return
	}
	p.last.LinkLayer = readLinkLayer(r, p.dir)
	p.last.Rate = p.readRate(r)
	p.last.LID, p.last.SMLID, p.last.GUID = sysread.Maybe[uint64]{}, sysread.Maybe[uint64]{}, ""
	if p.last.LinkLayer == "InfiniBand" {
		p.last.LID, p.last.SMLID = p.asked.Value.LID, p.asked.Value.SMLID
		if !p.asked.Known {
			p.last.LID = p.readHex(r, "lid")
			p.last.SMLID = p.readHex(r, "sm_lid")
		}
		p.last.GUID = p.readGUID(r)
	}
	if p.asked.Value.Netdev != "" {
		p.setNetdev(r, p.asked.Value.Netdev)
	} else {
		p.setNetdev(r, portNetdev(r, p, device))
	}
	p.readInterface(r)
	if p.gidsAt.IsZero() || r.now.Sub(p.gidsAt) >= gidInterval {
		p.last.GIDs = countGIDs(r, p.dir)
		p.gidsAt = r.now
	}
}

// readLinkLayer reads link_layer, which every port has. A port of which it is
// not known is taken for none of the kinds: "".
func readLinkLayer(r *pass, dir string) string {
	const name = "link_layer"
	text, ok := r.expected(dir, name)
	if ok && !slices.Contains(linkLayerTexts, text) {
		r.fail(name, sysread.Invalid(text))
		return ""
	}
	return text
}

// readInterface reads the netdev of an Ethernet port. An InfiniBand port's IPoIB
// interface says nothing of RDMA.
func (p *portReader) readInterface(r *pass) {
	p.last.Interface = nil
	if p.last.LinkLayer != "Ethernet" {
		return
	}
	reading, errs := p.netdev.Read(r.now, p.last.Netdev)
	for _, err := range errs {
		r.fail(err.Source, err.Err)
	}
	p.last.Interface = &reading
}

func (p *portReader) readRate(r *pass) sysread.Maybe[Rate] {
	text, ok := r.expected(p.dir, "rate")
	if !ok {
		return sysread.Maybe[Rate]{}
	}
	rate, err := parseRate(text)
	if err != nil {
		r.fail("rate", err)
		return sysread.Maybe[Rate]{}
	}
	return sysread.Some(rate)
}

func (p *portReader) readHex(r *pass, name string) sysread.Maybe[uint64] {
	value, ok := formed(r, p.dir, name, parseHex)
	return sysread.Maybe[uint64]{Value: value, Known: ok}
}

func (p *portReader) readGUID(r *pass) string {
	guid, _ := formed(r, p.dir, "gids/0", guidOfGID)
	return guid
}

func (p *portReader) setNetdev(r *pass, name string) {
	if name != p.last.Netdev || p.carrier.Path() == "" {
		p.carrier.Close(r.io)
		p.carrier = sysread.NewAttr("")
		if name != "" {
			p.carrier = sysread.NewAttr(p.net + "/" + name + "/carrier_changes")
		}
	}
	p.last.Netdev = name
}

// read returns the port with fresh counters; slow says whether the counters of
// the slow group are read too.
func (p *portReader) read(r *pass, slow bool, netlink *netlinkSide) Port {
	r.port = p.label
	port := p.last
	port.CarrierChanges = p.readCarrier(r)
	port.Counters = make([]Counter, 0, max(p.counterFiles(), 16))
	hw, fromNetlink := netlink.counters(r, p.number)
	if fromNetlink {
		port.CountersFrom = FromNetlink
		port.Counters, port.Omitted = netlinkCounters(hw, port.Counters)
	}
	for _, dir := range p.counters {
		if dir.source == SourceHW && fromNetlink {
			port.Counters = dir.readSettings(r, slow, port.Counters)
			if dir.listed {
				port.Restricted = append(port.Restricted, Restriction{dir.source, false})
			}
			continue
		}
		if dir.source == SourceHW {
			port.CountersFrom = FromSysfs
		}
		port.Counters = dir.read(r, slow, port.Counters)
		port.Omitted += dir.omitted
		if dir.listed {
			port.Restricted = append(port.Restricted, Restriction{dir.source, dir.restricted})
		}
	}
	port.ReceiveBytes, port.TransmitBytes = p.bytes.choose(port.Counters)
	return port
}

// readCarrier reads the netdev's carrier_changes. The file belongs to another
// kernel object: its netdev may be renamed or moved to a container at any
// time, which the next slow read takes up and which is no error.
func (p *portReader) readCarrier(r *pass) sysread.Maybe[uint64] {
	if p.carrier.Path() == "" {
		return sysread.Maybe[uint64]{}
	}
	text, err := p.carrier.Read(r.io, r.buf)
	if err == nil {
		var changes uint64
		if changes, err = sysread.ParseCounter(text); err == nil {
			return sysread.Some(changes)
		}
	}
	if !vanished(r.io, p.carrier.Path(), err) {
		r.fail("net/carrier_changes", err)
	}
	return sysread.Maybe[uint64]{}
}

// vanished reports whether err comes of the object's going away, be it that its
// file still was there when it was opened. A file that stays and says ENODEV
// is one that cannot be read.
func vanished(io *sysread.IO, path string, err error) bool {
	if !errors.Is(err, syscall.ENODEV) {
		return sysread.Absent(err)
	}
	_, err = io.Lstat(path)
	return err != nil
}

func (p *portReader) counterFiles() int {
	n := 0
	for _, dir := range p.counters {
		n += len(dir.files)
	}
	return n
}

func (p *portReader) close(io *sysread.IO) {
	for _, file := range []*sysread.Attr{&p.state, &p.physicalState, &p.carrier} {
		file.Close(io)
	}
	for _, dir := range p.counters {
		dir.close(io)
	}
	p.netdev.Close()
}

// rescanDir returns the directory of that source below base, brought up to
// date, or nil if there is none (any more). have holds those known so far.
func rescanDir(r *pass, have []*counterDir, source Source, base string) *counterDir {
	for _, dir := range have {
		if dir.source != source {
			continue
		}
		err := dir.rescan(r.io)
		switch {
		case err == nil:
			return dir
		case sysread.Absent(err):
			dir.close(r.io)
			return nil
		default:
			r.fail(source.dir(), err)
			return dir
		}
	}
	dir, err := newCounterDir(r.io, source, base)
	if err != nil {
		r.fail(source.dir(), err)
	}
	return dir
}
