package prober

import (
	"fmt"
	"slices"
	"time"
)

// known is what was seen last of the host. What was never seen is zero.
type known struct {
	kernel                  string
	driver, peermem         string
	driverSeen, peermemSeen bool
	confidential            bool
	ports                   map[Port]PortSighting
	gpus                    map[string]GPUSighting
	gpusSeen                bool
	unsure                  map[string]bool // GPUs of which nobody knew at the last look whether they are usable
	devices                 []string
	devicesSeen             bool
}

// identity is that of a pair as the host is now.
func (k *known) identity(at Pair) Identity {
	port := k.ports[Port{at.Device, at.Port}]
	return Identity{UUID: k.gpus[at.GPU].UUID, NodeGUID: port.NodeGUID, Firmware: port.Firmware, Driver: k.driver, Kernel: k.kernel}
}

// Saw takes what was seen of the host: what appeared, what makes results say
// nothing any more, and what makes pairs due at once. It keeps the Sighting's maps.
func (p *Prober) Saw(s Sighting) {
	now := time.Now()
	p.mu.Lock()
	// What happened first, to all pairs that are known: one whose NIC is gone is
	// none of those to be measured any more.
	events := p.sawModules(&s, now)
	events = append(events, p.sawPorts(&s, now)...)
	events = append(events, p.sawGPUs(&s, now)...)
	appeared := s.Pairs.Known && p.setPairs(s.Pairs.Value, now)
	events = append(events, p.checkIdentity(now)...)
	if s.Confidential.Known {
		p.host.confidential = s.Confidential.Value
	}
	if s.Pairs.Known && s.GPUs.Known && len(s.Ports) > 0 {
		p.looked = now
	}
	p.unsaved = p.unsaved || len(events) > 0
	hurried := slices.ContainsFunc(events, func(e Event) bool { return e.Kind == eventDue })
	p.mu.Unlock()
	p.tell(slices.DeleteFunc(events, func(e Event) bool { return e.Kind == eventDue }))
	if appeared || hurried || len(events) > 0 {
		p.nudge()
	}
}

// eventDue says that a pair is due at once. It is for the loop alone.
const eventDue EventKind = "due"

// setPairs takes the pairs there are, and reports whether one appeared: it may be
// due before the loop would look again. One whose NIC or GPU is gone goes on being
// shown for as long as a result would stand: that it is not measured is news. What
// is known of others that go is kept for when they come back.
func (p *Prober) setPairs(candidates []Candidate, now time.Time) (appeared bool) {
	seen := map[Pair]bool{}
	for _, c := range candidates {
		seen[c.Pair] = true
		if known := p.pairs[c.Pair]; known != nil {
			known.class(c)
			known.seen = now
			continue
		}
		known := p.rest[c.Pair]
		delete(p.rest, c.Pair)
		if known == nil {
			known = newPair(c, p.options.Rand.Float64())
		}
		known.class(c)
		known.seen = now
		p.hungBefore(known)
		known.first(now, &p.options)
		p.pairs[c.Pair] = known
		appeared = true
	}
	for at, gone := range p.pairs {
		if !seen[at] && gone.hung.IsZero() && (!p.host.lacks(at) || now.Sub(gone.seen) > p.options.MaxAge) {
			p.rest[at] = gone
			delete(p.pairs, at)
		}
	}
	return appeared
}

// hungBefore notes that a run of the pair hung in the process before this one.
func (p *Prober) hungBefore(pair *pair) {
	for _, run := range p.options.Hung {
		if run.Pair == pair.Pair {
			pair.hung, pair.hungStage = run.Since, run.Stage
		}
	}
}

// lacks reports whether a pair's RDMA device or GPU is known to be gone.
func (k *known) lacks(at Pair) bool {
	_, port := k.ports[Port{at.Device, at.Port}]
	_, gpu := k.gpus[at.GPU]
	return k.devicesSeen && !port && !slices.Contains(k.devices, at.Device) || k.gpusSeen && !gpu
}

// every is what there is to tell of all pairs of which matches is true, those of
// the state file that were not seen yet too.
func (p *Prober) every(matches func(Pair) bool, do func(*pair) []Event) []Event {
	var events []Event
	for _, of := range []map[Pair]*pair{p.pairs, p.rest} {
		for at, pair := range of {
			if matches(at) {
				events = append(events, do(pair)...)
			}
		}
	}
	return events
}

func anyPair(Pair) bool { return true }

// invalidates drops the results of pairs and makes them due.
func invalidates(now time.Time, withdrawn, text string) func(*pair) []Event {
	return func(pair *pair) []Event {
		events := pair.invalidate(withdrawn, text)
		pair.hurry(now, 0)
		return append(events, Event{Kind: eventDue, Pair: pair.Pair})
	}
}

// hurries makes pairs due.
func hurries(now time.Time, gap time.Duration) func(*pair) []Event {
	return func(pair *pair) []Event {
		pair.hurry(now, gap)
		return []Event{{Kind: eventDue, Pair: pair.Pair}}
	}
}

// sawModules notices another driver or peer memory module.
func (p *Prober) sawModules(s *Sighting, now time.Time) []Event {
	var events []Event
	k := &p.host
	if s.Driver.Known {
		if k.driverSeen && k.driver != s.Driver.Value {
			events = append(events, p.every(anyPair, invalidates(now, WithdrawnDriver, changed("driver", k.driver, s.Driver.Value)))...)
			p.driverChanged()
		}
		k.driver, k.driverSeen = s.Driver.Value, true
	}
	if s.Peermem.Known {
		if k.peermemSeen && k.peermem != s.Peermem.Value {
			events = append(events, p.every(anyPair, invalidates(now, WithdrawnPeermem, changed("peer memory module", k.peermem, s.Peermem.Value)))...)
		}
		k.peermem, k.peermemSeen = s.Peermem.Value, true
	}
	return events
}

func changed(what, before, after string) string {
	name := func(version string) string {
		if version == "" {
			return "not loaded"
		}
		return version
	}
	return fmt.Sprintf("%s changed: %s, was %s", what, name(after), name(before))
}

// driverChanged: the libcuda that this process has loaded does not fit any more,
// and cannot be exchanged.
func (p *Prober) driverChanged() {
	if p.cudaLoaded && p.isolation() == InProcess {
		p.cudaUnusable = true
		go p.options.Restart("the driver changed and this process has the old libcuda loaded")
	}
}

// sawPorts notices ports that come, go and change.
func (p *Prober) sawPorts(s *Sighting, now time.Time) []Event {
	var events []Event
	if p.host.ports == nil {
		p.host.ports = map[Port]PortSighting{}
	}
	for port, seen := range s.Ports {
		before, known := p.host.ports[port]
		at := func(pair Pair) bool { return pair.Device == port.Device && pair.Port == port.Number }
		was, is := before.State.Value == portActive, seen.State.Value == portActive
		switch {
		case !seen.State.Known:
			seen.State = before.State
		case known && before.State.Known && was && !is:
			events = append(events, p.every(at, func(pair *pair) []Event { return pair.invalidate(WithdrawnPort, "the port is not ACTIVE any more") })...)
		case known && before.State.Known && !was && is:
			events = append(events, p.every(at, func(pair *pair) []Event {
				pair.portUp(now, p.options.interval())
				return []Event{{Kind: eventDue, Pair: pair.Pair}}
			})...)
		}
		if seen.Firmware == "" {
			seen.Firmware = before.Firmware
		}
		if seen.NodeGUID == "" {
			seen.NodeGUID = before.NodeGUID
		}
		p.host.ports[port] = seen
		if seen.State.Value == portActive {
			p.sawActive(port, seen.NodeGUID, now)
		}
	}
	if s.Devices.Known {
		p.host.devices, p.host.devicesSeen = s.Devices.Value, true
		for port := range p.host.ports {
			if !slices.Contains(s.Devices.Value, port.Device) {
				delete(p.host.ports, port)
				events = append(events, p.every(func(pair Pair) bool { return pair.Device == port.Device },
					func(pair *pair) []Event { return pair.invalidate(WithdrawnNICGone, "the RDMA device is gone") })...)
			}
		}
	}
	return events
}

// sawActive notes that a port was ACTIVE, for the state file.
func (p *Prober) sawActive(port Port, guid string, now time.Time) {
	record, known := p.ports[port]
	if !known || record.NodeGUID != guid && guid != "" {
		p.unsaved = true
	}
	if guid != "" {
		record.NodeGUID = guid
	}
	record.Active = now
	p.ports[port] = record
}

// sawGPUs notices GPUs that come, go, are exchanged or are left by the last process.
func (p *Prober) sawGPUs(s *Sighting, now time.Time) []Event {
	if !s.GPUs.Known {
		return nil
	}
	var events []Event
	p.host.unsure = map[string]bool{}
	for address, seen := range s.GPUs.Value {
		before, known := p.host.gpus[address]
		at := func(pair Pair) bool { return pair.GPU == address }
		if !seen.Processes.Known || p.touched(address, s.Time) {
			seen.Processes = before.Processes
		}
		if known {
			events = append(events, p.sawGPU(at, before, seen, now)...)
		}
		if seen.UUID == "" {
			seen.UUID = before.UUID
		}
		if p.host.unsure[address] = !seen.Usable.Known; !seen.Usable.Known {
			seen.Usable = before.Usable
		}
		s.GPUs.Value[address] = seen
	}
	for address := range p.host.gpus {
		if _, there := s.GPUs.Value[address]; !there {
			events = append(events, p.every(func(pair Pair) bool { return pair.GPU == address },
				func(pair *pair) []Event { return pair.invalidate(WithdrawnGPUGone, "the GPU is gone") })...)
		}
	}
	p.host.gpus, p.host.gpusSeen = s.GPUs.Value, true
	return events
}

// touched reports whether a run of ours was on a GPU when it was looked at: its
// context is among the processes then.
func (p *Prober) touched(gpu string, looked time.Time) bool {
	const cached = 5 * time.Second // that what NVML said may be
	last, ever := p.lastRun[gpu]
	running := p.running != nil && p.running.GPU == gpu
	return ever && (running || looked.Sub(last) < cached)
}

func (p *Prober) sawGPU(at func(Pair) bool, before, seen GPUSighting, now time.Time) []Event {
	usable := func(g GPUSighting) (is, known bool) { return g.Usable.Value, g.Usable.Known }
	was, wasKnown := usable(before)
	is, isKnown := usable(seen)
	switch {
	case wasKnown && isKnown && was && !is:
		return p.every(at, func(pair *pair) []Event {
			return pair.invalidate(WithdrawnGPULost, "the GPU was lost, or waits for a reset")
		})
	case wasKnown && isKnown && !was && is:
		return p.every(at, hurries(now, 0))
	case before.Processes.Known && seen.Processes.Known && before.Processes.Value > 0 && seen.Processes.Value == 0:
		return p.every(at, hurries(now, leastGap))
	}
	return nil
}

// checkIdentity drops results of other hardware, firmware or software than there
// is now: also those of the state file that something changed under.
func (p *Prober) checkIdentity(now time.Time) []Event {
	return p.every(anyPair, func(pair *pair) []Event {
		is := p.host.identity(pair.Pair)
		for _, c := range []*Completed{pair.full, pair.registration} {
			if c == nil {
				continue
			}
			if withdrawn, text := c.Identity.differs(is); withdrawn != "" {
				return invalidates(now, withdrawn, text)(pair)
			}
		}
		return nil
	})
}

// differs says what is another now, "" if nothing that is known on both sides is.
func (i Identity) differs(now Identity) (withdrawn, text string) {
	for _, part := range []struct{ withdrawn, what, before, after string }{
		{WithdrawnGPU, "GPU", i.UUID, now.UUID}, {WithdrawnNIC, "RDMA device", i.NodeGUID, now.NodeGUID}, {WithdrawnFirmware, "firmware", i.Firmware, now.Firmware},
		{WithdrawnDriver, "driver", i.Driver, now.Driver}, {WithdrawnKernel, "kernel", i.Kernel, now.Kernel},
	} {
		if part.before != "" && part.after != "" && part.before != part.after {
			return part.withdrawn, changed(part.what, part.before, part.after)
		}
	}
	return "", ""
}
