package diagnosis

import (
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// portActive is IB_PORT_ACTIVE of enum ib_port_state, portInit IB_PORT_INIT.
const (
	portInit   = 2
	portActive = 4
	portDefer  = 5 // IB_PORT_ACTIVE_DEFER
)

// mostSeen bounds each kind of thing that is remembered: names come and go with
// virtual functions.
const mostSeen = 4096

// history is what earlier Snapshots said, as far as a later one is judged by it.
type history struct {
	direct  map[pairKey]bool
	states  map[pairKey]pathSince
	nics    map[string]dmabufTest
	pairs   map[pairKey]dmabufTest
	active  map[prober.Port]bool // compute ports that have been ACTIVE
	traffic map[prober.Port]traffic
	devices map[string]seenDevice        // compute devices, none that come and go
	errors  map[string]*aerSeen          // of PCI functions
	loaded  bool                         // the driver has been
	held    map[string]map[Subject]*held // by rule
	round   uint64                       // of judging
	// patience is that of EngineOptions.
	patience time.Duration
}

func newHistory() *history {
	return &history{
		direct: map[pairKey]bool{}, states: map[pairKey]pathSince{}, nics: map[string]dmabufTest{}, pairs: map[pairKey]dmabufTest{},
		active: map[prober.Port]bool{}, traffic: map[prober.Port]traffic{}, devices: map[string]seenDevice{},
		errors: map[string]*aerSeen{}, held: map[string]map[Subject]*held{},
	}
}

// put remembers a value, unless there are too many.
func put[K comparable, V any](m map[K]V, key K, value V) {
	if _, there := m[key]; there || len(m) < mostSeen {
		m[key] = value
	}
}

type pairKey struct{ gpu, device string }

func (p *way) key() pairKey { return pairKey{p.GPU, p.Device} }

type pathSince struct {
	state    State
	evidence Evidence
	since    time.Time
}

// dmabufTest is what a run found of dma-buf, and with which hardware and software.
type dmabufTest struct {
	at       time.Time
	refusal  string // "" if it works
	identity prober.Identity
}

// traffic is how much a port moved until a time, and whether it was busy then.
type traffic struct {
	at    time.Time
	bytes float64
	busy  bool
}

type seenDevice struct {
	address string
	driver  string
}

// aerSeen are the uncorrectable errors of a function.
type aerSeen struct {
	count uint64
	grown time.Time // when they grew last; zero: never
	by    uint64    // that they grew by within the last growthFor
}

// growthFor is how long it is told of that errors grew.
const growthFor = time.Hour

// learn takes what a Snapshot says.
func (h *history) learn(n *node) {
	for i := range n.paths {
		if status := n.paths[i].status; status != nil {
			h.learnRuns(n.paths[i].key(), status)
		}
	}
	n.computeDevices(func(d *rdma.Device) { h.learnDevice(n, d) })
	for address, f := range n.functions {
		h.learnErrors(n.now, address, f)
	}
	if n.driver != nil && n.driver.Loaded.Value {
		h.loaded = true
	}
}

func (h *history) learnRuns(key pairKey, status *prober.PairStatus) {
	if len(status.LastSuccess) > 0 {
		put(h.direct, key, true)
	}
	for _, c := range []*prober.Completed{status.Full, status.Registration} {
		if c == nil {
			continue
		}
		if works := c.Result.NICDMABuf; works.Known && !c.Time.Before(h.nics[key.device].at) {
			test := dmabufTest{at: c.Time, identity: c.Identity}
			if !works.Value {
				test.refusal = sysread.ErrnoName(c.Result.NICDMABufErr)
			}
			put(h.nics, key.device, test)
		}
		if tried := registration(c, loopback.MethodDMABuf); tried != nil && !c.Time.Before(h.pairs[key].at) {
			if refusal, says := refuses(tried.Err); says {
				put(h.pairs, key, dmabufTest{c.Time, refusal, c.Identity})
			}
		}
	}
}

// refuses says whether an attempt to register a dma-buf tells that it works, or
// that this kernel, driver and NIC cannot: other failures pass.
func refuses(err error) (refusal string, says bool) {
	if err == nil {
		return "", true
	}
	switch name := sysread.ErrnoName(err); name {
	case "EOPNOTSUPP", "EPROTONOSUPPORT", "ENOTSUPP":
		return name, true
	}
	return "", false
}

// holds reports whether a test is of the hardware and software of now. What is not
// known of either is taken to be the same.
func (t *dmabufTest) holds(n *node, device string) bool {
	same := func(then, now string) bool { return then == "" || now == "" || then == now }
	firmware := ""
	if d := n.devices[device]; d != nil {
		firmware = d.Firmware
	}
	if n.driver == nil {
		return same(t.identity.Firmware, firmware)
	}
	return same(t.identity.Firmware, firmware) && same(t.identity.Kernel, n.driver.Kernel.Value) && same(t.identity.Driver, n.driver.Version.Value)
}

// nicDMABuf is whether a NIC can register a dma-buf, as far as runs found.
func (h *history) nicDMABuf(n *node, device string) (supports, known bool) {
	test, found := h.nics[device]
	return test.refusal == "", found && test.holds(n, device)
}

// pairDMABuf is why a dma-buf of a pair's GPU could not be registered, "" if it could.
func (h *history) pairDMABuf(n *node, p *way) (refusal string, known bool) {
	test, found := h.pairs[p.key()]
	return test.refusal, found && test.holds(n, p.Device)
}

func (h *history) wasDirect(p *way) bool { return h.direct[p.key()] }

func (h *history) learnDevice(n *node, d *rdma.Device) {
	if d.Function != rdma.FunctionVirtual && d.Function != rdma.FunctionSub {
		put(h.devices, d.Name, seenDevice{d.PCIAddress, d.Driver})
	}
	for i := range d.Ports {
		port := &d.Ports[i]
		key := prober.Port{Device: d.Name, Number: port.Number}
		if port.State.Known && port.State.Value == portActive {
			put(h.active, key, true)
		}
		h.learnTraffic(n.now, key, port)
	}
}

// busyShare is the share of a port's rate from which it is busy.
const busyShare = 0.05

func (h *history) learnTraffic(now time.Time, key prober.Port, port *rdma.Port) {
	if !port.TransmitBytes.Known || !port.ReceiveBytes.Known {
		delete(h.traffic, key)
		return
	}
	seen := traffic{at: now, bytes: port.TransmitBytes.Value + port.ReceiveBytes.Value}
	last, known := h.traffic[key]
	if elapsed := now.Sub(last.at).Seconds(); known && elapsed > 0 && port.Rate.Known {
		seen.busy = seen.bytes-last.bytes > busyShare*elapsed*float64(port.Rate.Value.BytesPerSecond)
	} else if known && elapsed <= 0 {
		seen = last
	}
	put(h.traffic, key, seen)
}

// busy reports whether a GPU works with a NIC that moves bytes.
func (h *history) busy(g *gpu.GPU, p *way) bool {
	return g != nil && g.Procs.Value > 0 && h.traffic[prober.Port{Device: p.Device, Number: p.Port}].busy
}

func (h *history) learnErrors(now time.Time, address string, f *affinity.Function) {
	if f.AER == nil || !f.AER.Fatal.Total.Known || !f.AER.NonFatal.Total.Known {
		return
	}
	count := f.AER.Fatal.Total.Value + f.AER.NonFatal.Total.Value
	seen := h.errors[address]
	switch {
	case seen == nil:
		put(h.errors, address, &aerSeen{count: count})
		return
	case now.Sub(seen.grown) >= growthFor:
		seen.by = 0
	}
	if count > seen.count {
		seen.by += count - seen.count
		seen.grown = now
	}
	seen.count = count
}
