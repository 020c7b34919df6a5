package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"gdr_exporter/rdma/peer/rails"
)

// Protocol is the version of what goes over the connection.
const Protocol = 1

// Hello is what the two sides say of themselves.
type Hello struct {
	// Protocol is the newest version that it speaks, Oldest the oldest.
	Protocol int `json:"protocol"`
	Oldest   int `json:"oldest,omitempty"`

	Build   string `json:"build,omitempty"`   // version of the exporter
	Name    string `json:"name,omitempty"`    // of the node, for people
	Address string `json:"address,omitempty"` // of the target list: host:port; "" if it does not find itself there
	List    string `json:"list,omitempty"`    // version of its target list
	Options string `json:"options,omitempty"` // version of its schedule's options

	// Received and Sent are the sender's clock, in nanoseconds since 1970: when the
	// other side's hello came, if it had come, and when this one went.
	Received int64 `json:"received,omitempty"`
	Sent     int64 `json:"sent,omitempty"`

	Rails []Rail `json:"rails,omitempty"`
}

// Rail is a port of a node that can be measured. What is not known is left out.
type Rail struct {
	Port
	Label     string   `json:"label,omitempty"` // the rail's name in the fabric
	LinkLayer string   `json:"link_layer,omitempty"`
	Order     int      `json:"order"`           // the port's place in its node, see [rails.Rail]
	State     int      `json:"state,omitempty"` // enum ib_port_state: 4 is ACTIVE
	Rate      float64  `json:"rate,omitempty"`  // bytes per second each way
	MTU       int      `json:"mtu,omitempty"`   // bytes
	GPUs      []string `json:"gpus,omitempty"`  // PCI addresses of those next to it, the best first
	IP        string   `json:"ip,omitempty"`    // address of its interface: IPoIB, or of the RoCE device
}

// Match is what pairs of rails are made of.
func (r Rail) Match() rails.Rail {
	return rails.Rail{Device: r.Device, Port: r.Port.Port, Label: r.Label, LinkLayer: r.LinkLayer, Order: r.Order}
}

// open asks for a session.
type open struct {
	ID         string          `json:"id"` // for logs of both sides
	Kind       Kind            `json:"kind"`
	Memory     Memory          `json:"memory"`
	Directions []Direction     `json:"directions"`
	From       Port            `json:"from"`          // the initiator's
	Rail       Port            `json:"rail"`          // the responder's
	GPU        string          `json:"gpu,omitempty"` // the responder's; "": the first one next to its rail
	Shape      Shape           `json:"shape"`
	Bytes      uint64          `json:"bytes"` // of each write of each round
	Deadline   int64           `json:"deadline_ms"`
	Address    json.RawMessage `json:"address"`
}

// opened says that the responder is connected.
type opened struct {
	Address json.RawMessage `json:"address"`
	Facts   Facts           `json:"facts"`
}

// begin begins a round: message go.
type begin struct {
	Direction Direction `json:"direction"`
	Seed      uint64    `json:"seed"` // of what the initiator writes
	Back      uint64    `json:"back"` // of what the responder writes
	Bytes     uint64    `json:"bytes"`
	Within    int64     `json:"within_ms,omitempty"` // begin no more writes after it; 0: no matter
	Pings     int       `json:"pings,omitempty"`
}

// done says what was written.
type done struct {
	Written
	Latency *Latency `json:"latency,omitempty"`
}

// Latency sums up pings.
type Latency struct {
	Count  int           `json:"count"` // that were answered
	Lost   int           `json:"lost"`
	Median time.Duration `json:"median_ns"`
	P99    time.Duration `json:"p99_ns"`
}

// ended is the end of a session, well or not.
type ended struct {
	Failure *Failure `json:"failure,omitempty"`
}

// empty is of messages that say nothing more.
type empty struct{}

// message is any message: one field is set.
type message struct {
	Hello    *Hello        `json:"hello,omitempty"`
	Open     *open         `json:"open,omitempty"`
	Opened   *opened       `json:"opened,omitempty"`
	Refused  *Failure      `json:"refused,omitempty"`
	Go       *begin        `json:"go,omitempty"`
	Ready    *empty        `json:"ready,omitempty"`
	Done     *done         `json:"done,omitempty"`
	Verified *Verification `json:"verified,omitempty"`
	Failed   *Failure      `json:"failed,omitempty"`
	Close    *ended        `json:"close,omitempty"`
	Closed   *ended        `json:"closed,omitempty"`

	at time.Time // when it came
}

// names are those of the fields that are set.
func (m message) names() []string {
	var set []string
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"hello", m.Hello != nil}, {"open", m.Open != nil}, {"opened", m.Opened != nil}, {"refused", m.Refused != nil},
		{"go", m.Go != nil}, {"ready", m.Ready != nil}, {"done", m.Done != nil}, {"verified", m.Verified != nil},
		{"failed", m.Failed != nil}, {"close", m.Close != nil}, {"closed", m.Closed != nil},
	} {
		if field.set {
			set = append(set, field.name)
		}
	}
	return set
}

// name is what the message is called.
func (m message) name() string { return strings.Join(m.names(), "+") }

// decode reads a message and checks all of it that needs no knowledge of the session.
func decode(text []byte) (message, error) {
	var m message
	if err := json.Unmarshal(text, &m); err != nil {
		if hello := ofNewer(text); hello != nil {
			return message{Hello: hello}, nil
		}
		return message{}, protocolError("a message that cannot be read: %.200s: %w", printable(err.Error(), 200), syscall.EBADMSG)
	}
	if n := len(m.names()); n != 1 {
		return message{}, protocolError("a message of %d kinds that are known: %w", n, syscall.EBADMSG)
	}
	if err := m.check(); err != nil {
		if hello := ofNewer(text); hello != nil {
			return message{Hello: hello}, nil
		}
		return message{}, protocolError("%s: %w: %w", m.name(), err, syscall.EBADMSG)
	}
	m.clean()
	return m, nil
}

// ofNewer is the hello of a version that this side cannot read, as far as all versions
// have it alike, so that the versions can be told instead of what looks wrong.
func ofNewer(text []byte) *Hello {
	var m struct {
		Hello *struct {
			Protocol int `json:"protocol"`
			Oldest   int `json:"oldest"`
		} `json:"hello"`
	}
	if json.Unmarshal(text, &m) != nil || m.Hello == nil {
		return nil
	}
	if h := (&Hello{Protocol: m.Hello.Protocol, Oldest: m.Hello.Oldest}); h.check() == nil && h.oldest() > Protocol {
		return h
	}
	return nil
}

// clean makes texts fit to be shown.
func (m message) clean() {
	for _, f := range []*Failure{m.Refused, m.Failed} {
		if f != nil {
			*f = *f.ofPeer()
		}
	}
	for _, e := range []*ended{m.Close, m.Closed} {
		if e != nil && e.Failure != nil {
			e.Failure = e.Failure.ofPeer()
		}
	}
	if o := m.Opened; o != nil {
		f := &o.Facts
		f.GID, f.GIDType, f.GPU, f.Method = printable(f.GID, 48), printable(f.GIDType, 32), printable(f.GPU, 32), printable(f.Method, 32)
	}
}

func (m message) check() error {
	switch {
	case m.Hello != nil:
		return m.Hello.check()
	case m.Open != nil:
		return m.Open.check()
	case m.Opened != nil:
		return m.Opened.check()
	case m.Go != nil:
		return m.Go.check()
	case m.Done != nil:
		return m.Done.check()
	case m.Verified != nil && m.Verified.Mismatches < 0:
		return fmt.Errorf("%d mismatches", m.Verified.Mismatches)
	}
	return nil
}

const (
	mostRails   = 256
	mostGPUs    = 64
	mostExtents = 512
	mostRounds  = 16
	mostPings   = 10_000
)

func (h *Hello) check() error {
	for _, text := range []struct {
		what, text string
		most       int
	}{{"build", h.Build, 128}, {"name", h.Name, 253}, {"address", h.Address, 300}, {"list", h.List, 64}, {"options", h.Options, 64}} {
		if err := checkText(text.what, text.text, text.most); err != nil {
			return err
		}
	}
	if h.Protocol < 1 || h.Oldest < 0 || h.Oldest > h.Protocol {
		return fmt.Errorf("versions %d to %d", h.Oldest, h.Protocol)
	}
	if len(h.Rails) > mostRails {
		return fmt.Errorf("%d rails", len(h.Rails))
	}
	seen := map[Port]bool{}
	for _, rail := range h.Rails {
		if err := rail.check(); err != nil {
			return err
		}
		if seen[rail.Port] {
			return fmt.Errorf("port %s twice", rail.Port)
		}
		seen[rail.Port] = true
	}
	return nil
}

func (r Rail) check() error {
	if err := r.Port.check(); err != nil {
		return err
	}
	if r.State < 0 || r.MTU < 0 || r.Rate < 0 || math.IsInf(r.Rate, 0) || len(r.GPUs) > mostGPUs {
		return fmt.Errorf("port %s with state %d, MTU %d, rate %g, %d GPUs", r.Port, r.State, r.MTU, r.Rate, len(r.GPUs))
	}
	for _, gpu := range r.GPUs {
		if err := checkText("GPU", gpu, 32); err != nil {
			return err
		}
	}
	if err := checkText("link layer", r.LinkLayer, 32); err != nil {
		return err
	}
	if addr, err := netip.ParseAddr(r.IP); r.IP != "" && (err != nil || addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast()) {
		return fmt.Errorf("port %s with the IP address %.64q", r.Port, r.IP)
	}
	return checkText("rail", r.Label, 128)
}

// check takes names that the kernel gives devices.
func (p Port) check() error {
	const most = 64 // IB_DEVICE_NAME_MAX
	if p.Device == "" || p.Device == "." || p.Device == ".." || strings.ContainsAny(p.Device, "/ ") || p.Port < 1 || p.Port > 255 {
		return fmt.Errorf("no port: %.64q, %d", p.Device, p.Port)
	}
	return checkText("device", p.Device, most)
}

// String is the port as people write it.
func (p Port) String() string { return fmt.Sprintf("%s/%d", p.Device, p.Port) }

// checkText refuses what is not to be seen: names become labels and parts of logs.
func checkText(what, text string, most int) error {
	if len(text) > most || printable(text, most) != text {
		return fmt.Errorf("%s %.64q", what, text)
	}
	return nil
}

func (o *open) check() error {
	if err := checkText("id", o.ID, 32); err != nil {
		return err
	}
	if err := checkText("GPU", o.GPU, 32); err != nil {
		return err
	}
	for _, p := range []Port{o.From, o.Rail} {
		if err := p.check(); err != nil {
			return err
		}
	}
	if o.Deadline < 1 || o.Deadline > int64(mostDeadline/time.Millisecond) {
		return fmt.Errorf("a deadline of %d ms", o.Deadline)
	}
	if len(o.Address) == 0 {
		return errors.New("no address")
	}
	return checkMeasurement(o.Kind, o.Memory, o.Directions, o.Shape)
}

// mostDeadline is the longest that anybody can ask for.
const mostDeadline = 10 * time.Minute

// checkMeasurement is for plans of this side and wishes of the other.
func checkMeasurement(kind Kind, memory Memory, directions []Direction, s Shape) error {
	switch {
	case kind != Ping && kind != Bandwidth:
		return fmt.Errorf("kind %.32q: %w", kind, syscall.EINVAL)
	case memory != Host && memory != GPU && memory != Staged, kind == Ping && memory != Host:
		return fmt.Errorf("%s of memory %.32q: %w", kind, memory, syscall.EINVAL)
	case len(directions) < 1 || len(directions) > mostRounds:
		return fmt.Errorf("%d rounds: %w", len(directions), syscall.EINVAL)
	}
	for _, d := range directions {
		if d != Write && d != Reverse && d != Both {
			return fmt.Errorf("direction %.32q: %w", d, syscall.EINVAL)
		}
	}
	for _, size := range []struct {
		value, most int
	}{{s.Buffer, 1 << 34}, {s.Message, 1 << 30}, {s.Chunk, 1 << 30}, {s.QueuePairs, 64}, {s.Depth, 1 << 14}} {
		if size.value < 0 || size.value > size.most {
			return fmt.Errorf("sizes %+v: %w", s, syscall.EINVAL)
		}
	}
	return nil
}

func (o *opened) check() error {
	if f := o.Facts; f.MTU < 0 || f.QueuePairs < 0 || f.MessageSize < 0 {
		return fmt.Errorf("MTU %d, %d queue pairs, messages of %d bytes", f.MTU, f.QueuePairs, f.MessageSize)
	}
	if len(o.Address) == 0 {
		return errors.New("no address")
	}
	return nil
}

func (b *begin) check() error {
	if b.Within < 0 || b.Within > int64(mostDeadline/time.Millisecond) || b.Pings < 0 || b.Pings > mostPings {
		return fmt.Errorf("within %d ms, %d pings", b.Within, b.Pings)
	}
	return nil
}

// checkPings is for plans of this side and rounds of the other.
func checkPings(kind Kind, memory Memory, pings int) error {
	if pings < 0 || pings > mostPings || pings == 0 && kind == Ping || pings > 0 && memory == Staged {
		return fmt.Errorf("%d pings of %s with %s memory: %w", pings, kind, memory, syscall.EINVAL)
	}
	return nil
}

func (d *done) check() error {
	if d.Elapsed < 0 || d.Elapsed > mostDeadline || d.CPU < 0 || len(d.Extents) > mostExtents {
		return fmt.Errorf("%v, CPU %v, %d extents", d.Elapsed, d.CPU, len(d.Extents))
	}
	if l := d.Latency; l != nil && (l.Count < 0 || l.Count > mostPings || l.Lost < 0 || l.Lost > 1 || l.Median < 0 || l.P99 < l.Median) {
		return fmt.Errorf("latency %+v", *l)
	}
	for _, e := range d.Extents {
		if e.Offset < 0 || e.Length < 0 || e.Offset > math.MaxInt-e.Length {
			return fmt.Errorf("%d bytes at %d", e.Length, e.Offset)
		}
	}
	return nil
}

// speak fails unless both sides know a version. Its text says the same on both.
func speak(own, peer Hello) *Failure {
	if peer.oldest() <= own.Protocol && own.oldest() <= peer.Protocol {
		return nil
	}
	return failf(ReasonVersion, StageHello, "no version of the protocol in common: %s, %s: %w", own.versions(), peer.versions(), syscall.EPROTONOSUPPORT)
}

func (h Hello) oldest() int {
	if h.Oldest == 0 {
		return h.Protocol
	}
	return h.Oldest
}

func (h Hello) versions() string {
	who := "a node"
	for _, name := range []string{h.Name, h.Address} {
		if name != "" {
			who = name
			break
		}
	}
	if h.Build != "" {
		who += " (build " + h.Build + ")"
	}
	if h.oldest() == h.Protocol {
		return fmt.Sprintf("%s speaks version %d", who, h.Protocol)
	}
	return fmt.Sprintf("%s speaks versions %d to %d", who, h.oldest(), h.Protocol)
}

// ofNow is what a node says of itself, with what the protocol adds.
func ofNow(h Hello, received time.Time) *Hello {
	h.Protocol, h.Oldest, h.Received = Protocol, Protocol, 0
	if !received.IsZero() {
		h.Received = received.UnixNano()
	}
	h.Sent = time.Now().UnixNano()
	return &h
}
