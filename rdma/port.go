package rdma

import (
	"strconv"
	"time"

	"gdr_exporter/collector/sysread"
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
	counters             []*counterDir

	last   Port // the slow group's values as of the last slow read
	gidsAt time.Time
	bytes  byteChooser
}

func newPortReader(portsDir, label, netDir string) (*portReader, bool) {
	number, err := strconv.Atoi(label)
	if err != nil || number < 0 {
		return nil, false
	}
	dir := portsDir + "/" + label
	return &portReader{
		number: number, label: label, dir: dir, net: netDir,
		state: sysread.NewAttr(dir + "/state"), physicalState: sysread.NewAttr(dir + "/phys_state"),
		carrier: sysread.NewAttr(""),
		last:    Port{Number: number, Label: label},
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

// readState reads the port's states and reports whether one of them changed.
func (p *portReader) readState(r *pass) bool {
	r.port = p.label
	state := readStateID(r, &p.state, "state")
	physical := readStateID(r, &p.physicalState, "phys_state")
	changed := state != p.last.State || physical != p.last.PhysicalState
	p.last.State, p.last.PhysicalState = state, physical
	return changed
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
func (p *portReader) readSlow(r *pass, device *Identity) {
	r.port = p.label
	p.last.LinkLayer, _ = r.expected(p.dir, "link_layer")
	p.last.Rate = p.readRate(r)
	p.last.LID, p.last.SMLID, p.last.GUID = sysread.Maybe[uint64]{}, sysread.Maybe[uint64]{}, ""
	if p.last.LinkLayer == "InfiniBand" {
		p.last.LID = p.readHex(r, "lid")
		p.last.SMLID = p.readHex(r, "sm_lid")
		p.last.GUID = p.readGUID(r)
	}
	p.setNetdev(r, portNetdev(r, p, device))
	if p.gidsAt.IsZero() || r.now.Sub(p.gidsAt) >= gidInterval {
		p.last.GIDs = countGIDs(r, p.dir)
		p.gidsAt = r.now
	}
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
	text := r.text(p.dir, name)
	if text == "" {
		return sysread.Maybe[uint64]{}
	}
	value, err := parseHex(text)
	if err != nil {
		r.fail(name, err)
		return sysread.Maybe[uint64]{}
	}
	return sysread.Some(value)
}

func (p *portReader) readGUID(r *pass) string {
	text := r.text(p.dir, "gids/0")
	if text == "" {
		return ""
	}
	guid, err := guidOfGID(text)
	if err != nil {
		r.fail("gids/0", err)
	}
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
func (p *portReader) read(r *pass, slow bool) Port {
	r.port = p.label
	port := p.last
	port.CarrierChanges = p.readCarrier(r)
	port.Counters = make([]Counter, 0, p.counterFiles())
	for _, dir := range p.counters {
		port.Counters = dir.read(r, slow, port.Counters)
		port.Restricted = append(port.Restricted, Restriction{dir.source, dir.restricted})
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
	if !sysread.Vanished(err) {
		r.fail("net/carrier_changes", err)
	}
	return sysread.Maybe[uint64]{}
}

func (p *portReader) counterFiles() int {
	n := 0
	for _, dir := range p.counters {
		n += len(dir.files)
	}
	return n
}

func (p *portReader) omitted() int {
	n := 0
	for _, dir := range p.counters {
		n += dir.omitted
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
