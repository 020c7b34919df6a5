package rdma

import "sync"

// Source is a kind of counter directory.
type Source string

// The counter directories, by their name in sysfs. The last one stands beside
// ports/, the others below ports/N/.
const (
	SourceCounters    Source = "counters"     // InfiniBand PMA counters
	SourceCountersExt Source = "counters_ext" // their 64-bit form before Linux 4.5
	SourceHW          Source = "hw_counters"  // the driver's own counters, per port
	SourceDeviceHW    Source = "device_hw"    // <dev>/hw_counters, the driver's own, per device
)

// dir is the directory's path below its port (below the device for SourceDeviceHW).
func (s Source) dir() string {
	if s == SourceDeviceHW {
		return "hw_counters"
	}
	return string(s)
}

// Unit is what a counter file counts in.
type Unit uint8

// Units. UnitWords are the 4-byte words of port_xmit_data and port_rcv_data.
const (
	UnitNone Unit = iota
	UnitBytes
	UnitWords
	UnitMilliseconds
)

// CounterInfo says what a counter file means. It depends on the directory and
// the file's name alone, never on the driver or on which other files exist, so
// that a metric family means the same on every node.
type CounterInfo struct {
	Source Source
	File   string // the vendor's name, exactly
	Known  bool   // listed in the table of meanings
	Help   string // what it counts; "" where not Known
	Gauge  bool   // a level, a register or a setting rather than a counter
	Unit   Unit
	// Width is the counter's width in bits where it sticks at its largest
	// value instead of wrapping (InfiniBand PortCounters), else 0.
	Width int
	// Slow counters belong to the group that is read on a timer: each costs a
	// firmware command of its own on mlx5 and moves rarely.
	Slow bool
}

// Setting reports whether the file is a setting of the kernel's rather than
// something that the driver counts.
func (i *CounterInfo) Setting() bool { return i.Unit == UnitMilliseconds }

// Counter is one counter file's value, in the file's own unit.
type Counter struct {
	Info  *CounterInfo
	Value uint64
}

// Scaled returns the value in base units: words become bytes in integers, so
// that nothing is lost before the one conversion to floating point.
func (c Counter) Scaled() float64 {
	switch c.Info.Unit {
	case UnitWords:
		return words(c.Value)
	case UnitMilliseconds:
		return float64(c.Value) / 1000
	default:
		return float64(c.Value)
	}
}

// words converts 4-byte words to bytes. Past 2^62 words (18 EB) the product
// no longer fits in 64 bits and is made in floating point.
func words(n uint64) float64 {
	if n > 1<<62-1 {
		return float64(n) * 4
	}
	return float64(n * 4)
}

// Saturated reports whether a counter of known width has reached the value at
// which it sticks until it is cleared.
func (c Counter) Saturated() bool {
	return c.Info.Width > 0 && c.Value >= 1<<c.Info.Width-1
}

type counterKey struct {
	source Source
	file   string
}

// infos interns CounterInfo, so that views can key what they prepare by pointer.
var infos sync.Map // counterKey -> *CounterInfo

// Info returns what the file of that name means. Equal arguments give the same
// pointer.
func Info(source Source, file string) *CounterInfo {
	key := counterKey{source, file}
	if info, found := infos.Load(key); found {
		return info.(*CounterInfo)
	}
	info, _ := infos.LoadOrStore(key, newInfo(source, file))
	return info.(*CounterInfo)
}

func newInfo(source Source, file string) *CounterInfo {
	info := &CounterInfo{Source: source, File: file}
	if row, known := meanings[source][file]; known {
		*info = row
		info.Source, info.File, info.Known = source, file, true
	} else {
		// What an unknown file of the PMA directories costs is unknown too.
		info.Slow = source == SourceCounters || source == SourceCountersExt
	}
	return info
}

// Infos returns the meaning of every file in the table.
func Infos() []*CounterInfo {
	var all []*CounterInfo
	for source, rows := range meanings {
		for file := range rows {
			all = append(all, Info(source, file))
		}
	}
	return all
}
