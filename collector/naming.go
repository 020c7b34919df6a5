package collector

import (
	"strings"
	"sync"

	dto "github.com/prometheus/client_model/go"

	"gdr_exporter/rdma"
)

// The names that come from counter files:
//
//	ports/N/counters/X      gdr_rdma_port_X_total (a leading port_ of X is not doubled)
//	ports/N/counters_ext/X  gdr_rdma_port_ext_X_total
//	ports/N/hw_counters/X   gdr_rdma_port_hw_X_total
//	hw_counters/X           gdr_rdma_device_hw_X_total
//
// Name, type and help depend on directory and file name alone. X is made lower
// case and anything but a-z, 0-9 becomes _. Whenever X cannot be read off the
// family's name again, the series carries X in the label counter: so two files
// that come out alike stay two series, and users find a counter by its
// vendor's name.

// namedFamily is the family of a counter file, and the value of its label
// counter, "" if it has none.
type namedFamily struct {
	*family
	label string
	// saturates: the counter sticks at its largest value.
	saturates bool
}

var prefixes = map[rdma.Source]struct{ family, where string }{
	rdma.SourceCounters:    {"gdr_rdma_port_", "ports/*/counters/"},
	rdma.SourceCountersExt: {"gdr_rdma_port_ext_", "ports/*/counters_ext/"},
	rdma.SourceHW:          {"gdr_rdma_port_hw_", "ports/*/hw_counters/"},
	rdma.SourceDeviceHW:    {"gdr_rdma_device_hw_", "hw_counters/ of the device, "},
}

// namer gives counter files their families. Families are interned by name.
type namer struct {
	mu       sync.RWMutex
	byInfo   map[*rdma.CounterInfo]namedFamily
	families map[string]*family
}

func newNamer() *namer {
	n := &namer{byInfo: map[*rdma.CounterInfo]namedFamily{}, families: map[string]*family{}}
	for _, info := range rdma.Infos() {
		n.family(info)
	}
	return n
}

// family returns the file's family.
func (n *namer) family(info *rdma.CounterInfo) namedFamily {
	n.mu.RLock()
	named, found := n.byInfo[info]
	n.mu.RUnlock()
	if found {
		return named
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	named = nameOf(info)
	if known := n.families[named.name]; known != nil {
		named.family = known
	} else {
		n.families[named.name] = named.family
	}
	n.byInfo[info] = named
	return named
}

// nameOf is family without the interning.
func nameOf(info *rdma.CounterInfo) namedFamily {
	if info.Known {
		return nameOfKnown(info)
	}
	return nameOfUnknown(info)
}

func nameOfKnown(info *rdma.CounterInfo) namedFamily {
	prefix := prefixes[info.Source]
	stem := stem(info)
	f := &family{prefix.family + stem + unitSuffix(info, stem), help(info, prefix.where, info.File), dto.MetricType_GAUGE}
	if !info.Gauge {
		f.name += "_total"
		f.kind = dto.MetricType_COUNTER
	}
	return namedFamily{f, label(info), info.Width > 0}
}

func nameOfUnknown(info *rdma.CounterInfo) namedFamily {
	prefix := prefixes[info.Source]
	stem := stem(info)
	name := prefix.family + stem + "_total"
	if taken(info.Source, name) {
		name = prefix.family + "file_" + stem + "_total"
	}
	f := &family{name, help(info, prefix.where, stem), dto.MetricType_COUNTER}
	if name == prefix.family+info.File+"_total" {
		return namedFamily{f, "", false}
	}
	return namedFamily{f, info.File, false}
}

// stem is the part of the family's name that comes from the file's.
func stem(info *rdma.CounterInfo) string {
	stem := strings.TrimSuffix(sanitise(info.File), "_total")
	if info.Source == rdma.SourceCounters || info.Source == rdma.SourceCountersExt {
		stem = strings.TrimPrefix(stem, "port_")
	}
	return stem
}

// label returns the label counter of a known file: only where its name is not
// plain lower case, since users then look for the vendor's spelling.
func label(info *rdma.CounterInfo) string {
	if strings.ToLower(info.File) == info.File || info.Source == rdma.SourceCounters {
		return ""
	}
	return info.File
}

// taken reports whether an unknown file must keep off that name: it is a family
// with a fixed name, one of a known file, or looks like one of another directory.
func taken(source rdma.Source, name string) bool {
	if declared[name] != nil || knownNames()[name] {
		return true
	}
	return source == rdma.SourceCounters &&
		(strings.HasPrefix(name, prefixes[rdma.SourceHW].family) || strings.HasPrefix(name, prefixes[rdma.SourceCountersExt].family))
}

var knownNames = sync.OnceValue(func() map[string]bool {
	names := map[string]bool{}
	for _, info := range rdma.Infos() {
		names[nameOfKnown(info).name] = true
	}
	return names
})

func unitSuffix(info *rdma.CounterInfo, stem string) string {
	switch info.Unit {
	case rdma.UnitBytes, rdma.UnitWords:
		if strings.HasSuffix(stem, "_bytes") {
			return ""
		}
		return "_bytes"
	case rdma.UnitMilliseconds:
		return "_seconds"
	default:
		return ""
	}
}

// help names the file, so that a search for the vendor's name finds it. For
// unknown files it depends on the family's name alone, since several files may
// share one.
func help(info *rdma.CounterInfo, where, file string) string {
	var b strings.Builder
	if info.Known {
		b.WriteString(upperFirst(info.Help))
	} else {
		b.WriteString("Counted by the driver")
	}
	b.WriteString(" (" + where + file)
	switch info.Unit {
	case rdma.UnitWords:
		b.WriteString(", 4-byte words made bytes")
	case rdma.UnitMilliseconds:
		b.WriteString(", milliseconds made seconds")
	}
	b.WriteString(").")
	if info.Width > 0 {
		b.WriteString(" Sticks at its largest value, see gdr_rdma_port_counter_saturated.")
	}
	if info.Slow {
		b.WriteString(slowNote)
	}
	return b.String()
}

// slowNote tells that a value is measured on a timer.
const slowNote = " Read on a timer, see gdr_rdma_device_slow_read_timestamp_seconds."

func upperFirst(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// sanitise makes a file name part of a metric name.
func sanitise(file string) string {
	name := []byte(strings.ToLower(file))
	for i, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			name[i] = '_'
		}
	}
	if len(name) > maxStem {
		name = name[:maxStem]
	}
	return string(name)
}

// maxStem bounds the part of a metric name that comes from a file name (which
// the kernel bounds at 255 bytes).
const maxStem = 100
