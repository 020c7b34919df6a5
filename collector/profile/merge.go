package profile

import (
	"slices"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback/prober"
)

// Merge puts an Expectation together: what the site's file says, then what the
// platform's profile says of what is still open, then what was learned. Each may
// be nil. With a file nothing else is taken unless it says learn.
func Merge(site *Site, platform *Profile, learned *Learned) Expectation {
	e := Expectation{Source: SourceNone, From: map[Field]Source{}}
	if site != nil {
		e.Name, e.Source = site.Name, SourceFile
		e.want(&site.Want, SourceFile)
		e.sitePorts(site)
		if !site.Learn {
			return e
		}
	}
	if platform != nil {
		if e.Source == SourceNone {
			e.Name, e.Source = platform.Name, SourceEmbedded
		}
		e.want(&platform.Want, SourceEmbedded)
	}
	if learned != nil && !learned.empty() {
		if e.Source == SourceNone {
			e.Source = SourceLearned
		}
		e.learned(learned)
	}
	return e
}

// fill fills a field that is open.
func fill[T any](e *Expectation, field Field, to *sysread.Maybe[T], value sysread.Maybe[T], from Source) {
	if !to.Known && value.Known {
		*to, e.From[field] = value, from
	}
}

// want fills what is open from a profile.
func (e *Expectation) want(w *Want, from Source) {
	fill(e, FieldGPUs, &e.GPUs, number(w.GPUs), from)
	fill(e, FieldDevices, &e.Devices, number(w.Devices), from)
	fill(e, FieldNVLinks, &e.NVLinks, number(w.NVLinks), from)
	fill(e, FieldDirectPairs, &e.DirectPairs, number(w.DirectPairs), from)
	fill(e, FieldPortRate, &e.PortRate, rate(w.PortGbps), from)
	if w.Loopback != nil {
		fill(e, FieldLoopback, &e.Loopback, sysread.Some(*w.Loopback*bytesPerGbps), from)
	}
}

func number(n *Count) sysread.Maybe[int] {
	if n == nil {
		return sysread.Maybe[int]{}
	}
	return sysread.Some(int(*n))
}

// sitePorts takes the ports of a site's file.
func (e *Expectation) sitePorts(site *Site) {
	if len(site.Ports) == 0 {
		return
	}
	e.Ports, e.From[FieldPorts] = map[prober.Port]sysread.Maybe[uint64]{}, SourceFile
	for _, p := range site.Ports {
		expected := rate(p.Gbps)
		if !expected.Known {
			expected = e.PortRate
		}
		e.Ports[prober.Port{Device: p.Device, Number: int(p.Port)}] = expected
	}
}

// learned fills what is open from what was learned. A rate that the platform
// promises counts for more than the one that was seen.
func (e *Expectation) learned(l *Learned) {
	fill(e, FieldGPUs, &e.GPUs, known(l.GPUs), SourceLearned)
	fill(e, FieldDevices, &e.Devices, known(l.Devices), SourceLearned)
	fill(e, FieldNVLinks, &e.NVLinks, known(l.NVLinks), SourceLearned)
	fill(e, FieldDirectPairs, &e.DirectPairs, known(l.DirectPairs), SourceLearned)
	if e.Ports != nil || len(l.Ports) == 0 {
		return
	}
	e.Ports, e.From[FieldPorts] = map[prober.Port]sysread.Maybe[uint64]{}, SourceLearned
	for _, p := range l.Ports {
		expected := e.PortRate
		if !expected.Known && p.Rate > 0 {
			expected = sysread.Some(p.Rate)
		}
		e.Ports[prober.Port{Device: p.Device, Number: p.Port}] = expected
	}
}

func known(n int) sysread.Maybe[int] {
	if n <= 0 {
		return sysread.Maybe[int]{}
	}
	return sysread.Some(n)
}

// without takes a field out.
func without[T any](e *Expectation, field Field, value *sysread.Maybe[T]) {
	*value = sysread.Maybe[T]{}
	delete(e.From, field)
}

// Selection is what the command line leaves out of a node. What is left out is
// not missing.
type Selection struct {
	// Device reports whether an RDMA device is read; nil: all are.
	Device func(name string) bool
	// SomeDevices: the command line leaves devices out, or gives them roles.
	// SomeGPUs: it leaves GPUs out.
	SomeDevices, SomeGPUs bool
}

// only leaves out of an Expectation what is not there for a reason. What a site's
// file says it says of this node and this command line.
func (e *Expectation) only(s *Selection, f *Facts) {
	if s.SomeDevices || f.Private || f.Foreign {
		for field, value := range map[Field]*sysread.Maybe[int]{FieldDevices: &e.Devices, FieldDirectPairs: &e.DirectPairs} {
			if e.From[field] != SourceFile {
				without(e, field, value)
			}
		}
	}
	if s.SomeGPUs {
		for field, value := range map[Field]*sysread.Maybe[int]{FieldGPUs: &e.GPUs, FieldDirectPairs: &e.DirectPairs} {
			if e.From[field] != SourceFile {
				without(e, field, value)
			}
		}
	}
	if e.From[FieldPorts] == SourceFile {
		return
	}
	for port := range e.Ports {
		away := (f.Private || f.Foreign) && f.Listed.Known && !slices.Contains(f.Listed.Value, port.Device)
		if away || s.Device != nil && !s.Device(port.Device) {
			delete(e.Ports, port)
		}
	}
	if len(e.Ports) == 0 {
		e.Ports = nil
		delete(e.From, FieldPorts)
	}
}
