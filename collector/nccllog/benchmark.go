package nccllog

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Limits of what is kept of nccl-tests. What is beyond them still counts for
// WrongValues and the peak.
const (
	mostBenchmarks = 16
	mostSizes      = 64
)

// Benchmark is a table of nccl-tests.
type Benchmark struct {
	Collective string `json:"collective"` // all_reduce_perf; "" if the log does not say
	Ranks      int    `json:"ranks"`      // "#  Rank  0 ...", 0 if the log does not say
	Hosts      int    `json:"hosts"`
	Sizes      []Size `json:"sizes"`
	LeftOut    int    `json:"sizes_left_out"`
	// Average is "# Avg bus bandwidth" in bytes per second, over all sizes, the
	// small ones too; nil if the table did not end.
	Average *float64 `json:"average_bus_bytes_per_second"`
	Peak    float64  `json:"peak_bus_bytes_per_second"`
	// Factor is bus bandwidth by algorithm bandwidth where it is largest, 0 if
	// there was nothing to divide.
	Factor      float64 `json:"bus_factor"`
	WrongValues uint64  `json:"wrong_values"` // the column #wrong, summed
	OutOfBounds string  `json:"out_of_bounds"`
	Meaning     string  `json:"meaning"`
}

// Size is a row of the table.
type Size struct {
	Bytes      uint64  `json:"bytes"`
	Count      uint64  `json:"count"` // elements
	Type       string  `json:"type"`
	OutOfPlace Timing  `json:"out_of_place"`
	InPlace    *Timing `json:"in_place"` // nil where the table has none
}

// Timing is one half of a row.
type Timing struct {
	Seconds float64 `json:"seconds"`
	Algo    float64 `json:"algorithm_bytes_per_second"`
	Bus     float64 `json:"bus_bytes_per_second"`
	Wrong   *uint64 `json:"wrong"` // values, nil where they were not checked or the column is another
}

// benchmarks reads tables of nccl-tests.
type benchmarks struct {
	list    []Benchmark
	leftOut uint64
	next    Benchmark // what is known before the table begins
	hosts   *bounded[string, bool]
	halves  int  // out-of-place and in-place, by the header
	counts  bool // the last column of a half is a number of values
	open    bool // the last table still takes rows
	spill   Benchmark
}

// elementTypes are the names in the column type.
var elementTypes = []string{"float", "half", "bfloat16", "double", "int8", "uint8", "int32", "uint32", "int64", "uint64", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2", "int", "char"}

// collectives are the programs of nccl-tests with the factor from algorithm to bus
// bandwidth.
var collectives = []struct {
	program, factor string
	of              func(n float64) float64
}{
	{"all_reduce_perf", "2(n-1)/n", func(n float64) float64 { return 2 * (n - 1) / n }},
	{"all_gather_perf", "(n-1)/n", func(n float64) float64 { return (n - 1) / n }},
	{"reduce_scatter_perf", "(n-1)/n", func(n float64) float64 { return (n - 1) / n }},
	{"alltoall_perf", "(n-1)/n", func(n float64) float64 { return (n - 1) / n }},
	{"gather_perf", "(n-1)/n", func(n float64) float64 { return (n - 1) / n }},
	{"scatter_perf", "(n-1)/n", func(n float64) float64 { return (n - 1) / n }},
	{"broadcast_perf", "1", func(float64) float64 { return 1 }},
	{"reduce_perf", "1", func(float64) float64 { return 1 }},
	{"sendrecv_perf", "1", func(float64) float64 { return 1 }},
}

// line takes a line, and says whether it was of a table.
func (b *benchmarks) line(text string) bool {
	if at := strings.Index(text, "_perf"); at >= 0 {
		b.program(text)
	}
	if at := strings.IndexByte(text, '#'); at >= 0 && b.comment(strings.TrimSpace(text[at+1:])) {
		return true
	}
	return b.row(text)
}

// program finds the name of the test, which old versions do not print: it is then
// in the command line if that is in the log. The longest names come first in
// collectives, since gather_perf is within all_gather_perf.
func (b *benchmarks) program(text string) {
	for i := range collectives {
		if strings.Contains(text, collectives[i].program) {
			b.next.Collective = collectives[i].program
			return
		}
	}
}

func (b *benchmarks) comment(text string) bool {
	switch {
	case strings.Contains(text, "busbw"):
		b.header(text)
	case strings.HasPrefix(text, "Rank "):
		b.rank(strings.Fields(text))
	case strings.HasPrefix(text, "Avg bus bandwidth"):
		_, value, _ := strings.Cut(text, ":")
		if last := b.last(); last != nil {
			if fields := strings.Fields(value); len(fields) > 0 {
				if average, err := gigabytes(fields[0]); err == nil {
					last.Average = &average
				}
			}
			b.open = false
		}
	case strings.HasPrefix(text, "Out of bounds values"):
		_, value, _ := strings.Cut(text, ":")
		if last := b.last(); last != nil {
			last.OutOfBounds = clean(value)
		}
	default:
		return false
	}
	return true
}

// rank reads "Rank  0 Group  0 Pid  23491 on node-a device  0 [0000:36:00] NVIDIA H100".
func (b *benchmarks) rank(fields []string) {
	if len(fields) < 2 {
		return
	}
	if rank, ok := number(fields[1]); ok && rank < 1<<20 {
		if b.open || rank == 0 {
			b.open, b.hosts, b.next.Ranks = false, newBounded[string, bool](mostHosts), 0
		}
		b.next.Ranks = max(b.next.Ranks, rank+1)
	}
	if on := slices.Index(fields, "on"); on > 0 && on+1 < len(fields) && b.hosts != nil {
		*b.hosts.at(clean(fields[on+1])) = true
	}
}

// header begins a table. Old versions have a column "error", the largest relative
// error, where newer ones have "#wrong", a number of values.
func (b *benchmarks) header(text string) {
	b.halves = strings.Count(text, "busbw")
	b.counts = strings.Contains(text, "#wrong")
	if last := b.last(); last != nil && b.open && len(last.Sizes) == 0 {
		return // printed twice
	}
	b.open = true
	if len(b.list) >= mostBenchmarks {
		b.leftOut++
		return // last is spill now, for all tables from here
	}
	b.next.Hosts = 0
	if b.hosts != nil {
		b.next.Hosts = len(b.hosts.rows)
	}
	b.next.Sizes = []Size{}
	b.list = append(b.list, b.next)
}

// last is the table that takes rows, nil before the first.
func (b *benchmarks) last() *Benchmark {
	switch {
	case len(b.list) == 0:
		return nil
	case b.leftOut > 0:
		return &b.spill
	}
	return &b.list[len(b.list)-1]
}

// row reads
//
//	1073741824     268435456     float     sum      -1   9187.8  116.87  219.12      0   9073.4  118.34  221.89      0
//
// with whatever a launcher puts before it.
func (b *benchmarks) row(text string) bool {
	last := b.last()
	if !b.open || last == nil || b.halves < 1 || b.halves > 2 {
		return false
	}
	if at := strings.LastIndex(text, ">:"); at >= 0 { // [1,0]<stdout>:
		text = text[at+2:]
	}
	fields := strings.Fields(text)
	first := slices.IndexFunc(fields, func(field string) bool { return slices.Contains(elementTypes, field) }) - 2
	if first < 0 || len(fields) > 64 {
		return false
	}
	fields = fields[first:]
	size := Size{Type: clean(fields[2])}
	var err error
	if size.Bytes, err = strconv.ParseUint(fields[0], 10, 64); err != nil {
		return false
	}
	if size.Count, err = strconv.ParseUint(fields[1], 10, 64); err != nil {
		return false
	}
	timings := fields[3:]
	if len(timings) < 4*b.halves {
		return false // cut off
	}
	timings = timings[len(timings)-4*b.halves:]
	if size.OutOfPlace, err = b.timing(timings); err != nil {
		return false
	}
	if b.halves == 2 {
		inPlace, err := b.timing(timings[4:])
		if err != nil {
			return false
		}
		size.InPlace = &inPlace
	}
	last.add(&size)
	return true
}

func (b *benchmarks) timing(fields []string) (Timing, error) {
	var t Timing
	micros, err := strconv.ParseFloat(fields[0], 64)
	if err != nil || !finite(micros) {
		return t, fmt.Errorf("time %q", fields[0])
	}
	t.Seconds = micros / 1e6
	if t.Algo, err = gigabytes(fields[1]); err != nil {
		return t, err
	}
	if t.Bus, err = gigabytes(fields[2]); err != nil {
		return t, err
	}
	if wrong, err := strconv.ParseUint(fields[3], 10, 64); err == nil && b.counts {
		t.Wrong = &wrong
	}
	return t, nil
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) && f >= 0 }

// gigabytes reads a rate in GB/s, as bytes per second.
func gigabytes(text string) (float64, error) {
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil || !finite(rate) || rate > 1e9 {
		return 0, fmt.Errorf("rate %q", text)
	}
	return rate * 1e9, nil
}

func (b *Benchmark) add(size *Size) {
	for _, timing := range []*Timing{&size.OutOfPlace, size.InPlace} {
		if timing == nil {
			continue
		}
		if timing.Wrong != nil {
			b.WrongValues += *timing.Wrong
		}
		if timing.Bus > b.Peak && timing.Algo > 0 {
			b.Peak, b.Factor = timing.Bus, timing.Bus/timing.Algo
		}
	}
	if len(b.Sizes) < mostSizes {
		b.Sizes = append(b.Sizes, *size)
	} else {
		b.LeftOut++
	}
}

// corrupt says whether values arrived wrong.
func (b *Benchmark) corrupt() bool {
	return b.WrongValues > 0 || strings.Contains(b.OutOfBounds, "FAILED")
}

// explain says what the bus bandwidth is.
func (b *Benchmark) explain() string {
	text := "Bus bandwidth is algorithm bandwidth (size / time) times a factor of the collective, so that it can be compared with the hardware whatever the number of ranks."
	for i := range collectives {
		row := &collectives[i]
		if row.program != b.Collective {
			continue
		}
		text += fmt.Sprintf(" Here the factor is %s", row.factor)
		if b.Ranks > 1 && row.factor != "1" {
			text += fmt.Sprintf(", %.3g for %d ranks", row.of(float64(b.Ranks)), b.Ranks)
		}
		text += "."
	}
	if b.Hosts != 1 {
		text += " Between nodes compare it with the sum of a node's NICs in one direction: eight of 400 Gb/s are 400 GB/s, on two nodes as on a hundred, and not twice that."
	}
	return text
}
