package nccllog

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	prettytext "github.com/jedib0t/go-pretty/v6/text"
)

// mostShown is how many rows of a table the text has; JSON has all.
const mostShown = 16

// WriteJSON writes all of the report.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// WriteTable writes the report for people: the answer, what it rests on, and what
// to do.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintln(&b, r.Headline)
	r.writeFindings(&b)
	r.writeEvidence(&b)
	r.writeRails(&b)
	r.writePairs(&b)
	r.writeFailures(&b)
	r.writeBenchmarks(&b)
	r.writeNode(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// section begins a part of the text.
func section(b *strings.Builder, title string) { fmt.Fprintf(b, "\n%s\n", title) }

func newTable(b *strings.Builder, header ...any) table.Writer {
	out := table.NewWriter()
	out.SetOutputMirror(b)
	style := table.StyleLight
	style.Options = table.OptionsNoBordersAndSeparators
	style.Format.Header = prettytext.FormatDefault
	out.SetStyle(style)
	out.AppendHeader(header)
	return out
}

// more says how many rows are not shown.
func more(b *strings.Builder, total int) {
	if total > mostShown {
		fmt.Fprintf(b, " and %d more (--output json has all)\n", total-mostShown)
	}
}

func (r *Report) writeFindings(b *strings.Builder) {
	if len(r.Findings) == 0 {
		return
	}
	section(b, "Findings")
	for i, finding := range r.Findings {
		if i == mostShown {
			break
		}
		fmt.Fprintf(b, " %-8s %s\n", finding.Severity, finding.Seen)
		if finding.Hint != "" {
			fmt.Fprintf(b, "          do: %s\n", finding.Hint)
		}
	}
	more(b, len(r.Findings))
}

func (r *Report) writeEvidence(b *strings.Builder) {
	section(b, "Seen in the log")
	fact := func(name string, format string, args ...any) {
		fmt.Fprintf(b, " %-13s %s\n", name, fmt.Sprintf(format, args...))
	}
	in := &r.Input
	fact("log", "%s with %s of NCCL, by %s on %s", counting(in.Lines, "line", "lines"), counting(in.NCCLLines, "entry", "entries"),
		counting(in.Processes, "process", "processes"), counting(in.Hosts, "host", "hosts"))
	for _, list := range []struct {
		name    string
		tallies []Tally
	}{{"NCCL", r.NCCLVersions}, {"CUDA", r.CUDAVersions}, {"CUDA driver", r.DriverVersions}, {"plugin", r.Plugins}, {"network", r.Networks}} {
		if len(list.tallies) > 0 {
			fact(list.name, "%s", values(list.tallies))
		}
	}
	if s := &r.Summary; s.MostRanks > 0 {
		fact("communicator", "of up to %d ranks%s", s.MostRanks, onNodes(s.MostNodes))
	}
	r.writeFeatures(fact)
	r.writeDevices(fact)
	c := &r.Connections
	fact("connections", "%d direct, %d staged, %d TCP, %d unclear; %d by PXN; within nodes: %s", c.Direct, c.Staged, c.Socket, c.Unclear, c.PXN, cmp.Or(counted(c.Local), "none"))
	if s := &r.Summary; s.Rings > 0 {
		fact("rings", "connected %d times; NCCL says GDR 1 %d times, GDR 0 %d times", s.Rings, s.RingsDirect, s.RingsStaged)
	}
	if len(r.Warnings) > 0 {
		fact("warnings", "%s", counted(r.Warnings[:min(len(r.Warnings), 5)]))
	}
}

func (r *Report) writeFeatures(fact func(name, format string, args ...any)) {
	s := &r.Summary
	if s.MostChannels > 0 {
		fact("channels", "up to %d", s.MostChannels)
	}
	if s.DMABUF > 0 {
		fact("dma-buf", "available on %d GPUs", s.DMABUF)
	}
	if s.NVLS+s.NoNVLS > 0 {
		fact("NVLS", "available on %d GPUs, not on %d", s.NVLS, s.NoNVLS)
	}
}

// writeDevices sums the NICs up.
func (r *Report) writeDevices(fact func(name, format string, args ...any)) {
	if len(r.Devices) == 0 {
		return
	}
	names := set{}
	var capable, incapable, relaxed, strict int
	for i := range r.Devices {
		device := &r.Devices[i]
		names[device.Name] = true
		if device.Capable != nil && *device.Capable {
			capable++
		} else if device.Capable != nil {
			incapable++
		}
		if device.RelaxedOrdering != nil && *device.RelaxedOrdering {
			relaxed++
		} else if device.RelaxedOrdering != nil {
			strict++
		}
	}
	fact("NICs", "%s", some(slices.Sorted(maps.Keys(names))))
	fact("", "GPU Direct RDMA enabled for %d, disabled for %d, not said of %d", capable, incapable, len(r.Devices)-capable-incapable)
	fact("", "relaxed ordering [RO] on for %d, off for %d, not said of %d", relaxed, strict, len(r.Devices)-relaxed-strict)
}

func onNodes(nodes int) string {
	if nodes == 0 {
		return ""
	}
	return fmt.Sprintf(" on %d nodes", nodes)
}

// values lists texts with their counts if there are several.
func values(list []Tally) string {
	if len(list) == 1 {
		return list[0].Value
	}
	return counted(list[:min(len(list), 4)])
}

func counted(list []Tally) string {
	var parts []string
	for _, tally := range list {
		parts = append(parts, fmt.Sprintf("%s (%d)", tally.Value, tally.Count))
	}
	return strings.Join(parts, ", ")
}

// railSum is the connections through NICs of a name.
type railSum struct {
	network, device, host          string
	hosts                          set
	sendDirect, sendStaged         uint64
	receiveDirect, receiveStaged   uint64
	otherDirect, otherStaged, sock uint64
}

func (s *railSum) add(r *Rail) {
	s.network, s.device = r.Network, r.Device
	if s.hosts == nil {
		s.hosts = set{}
	}
	s.hosts[r.Host] = true
	s.sock += r.Socket
	direct, staged := &s.otherDirect, &s.otherStaged
	switch r.Direction {
	case "send":
		direct, staged = &s.sendDirect, &s.sendStaged
	case "receive":
		direct, staged = &s.receiveDirect, &s.receiveStaged
	}
	*direct += r.Direct
	*staged += r.Staged
}

func (s *railSum) staged() uint64 { return s.sendStaged + s.receiveStaged + s.otherStaged }

func (s *railSum) row(place any) table.Row {
	return table.Row{s.network, s.device, place, s.sendDirect + s.otherDirect, s.sendStaged + s.otherStaged, s.receiveDirect, s.receiveStaged, s.sock}
}

// writeRails shows the connections by NIC, and where only some are staged those by
// host too.
func (r *Report) writeRails(b *strings.Builder) {
	if len(r.Rails) == 0 {
		return
	}
	section(b, "Connections by NIC")
	sums := r.sums(func(*Rail) string { return "" })
	out := newTable(b, "network", "NIC", "nodes", "send direct", "staged", "receive direct", "staged", "TCP")
	for _, sum := range sums[:min(len(sums), mostShown)] {
		out.AppendRow(sum.row(len(sum.hosts)))
	}
	out.Render()
	more(b, len(sums))
	if r.Connections.Staged == 0 || r.Connections.Direct == 0 {
		return
	}
	section(b, "Where they are staged")
	byHost := slices.DeleteFunc(r.sums(func(rail *Rail) string { return rail.Host }), func(s *railSum) bool { return s.staged() == 0 })
	out = newTable(b, "network", "NIC", "node", "send direct", "staged", "receive direct", "staged", "TCP")
	for _, sum := range byHost[:min(len(byHost), mostShown)] {
		out.AppendRow(sum.row(cmp.Or(sum.hosts.only(), "?")))
	}
	out.Render()
	more(b, len(byHost))
}

// sums adds rails up by network, NIC and a part, the most staged first.
func (r *Report) sums(part func(*Rail) string) []*railSum {
	sums := map[[3]string]*railSum{}
	for i := range r.Rails {
		rail := &r.Rails[i]
		key := [3]string{rail.Network, rail.Device, part(rail)}
		if sums[key] == nil {
			sums[key] = &railSum{host: key[2]}
		}
		sums[key].add(rail)
	}
	return slices.SortedFunc(maps.Values(sums), func(a, b *railSum) int {
		return cmp.Or(cmp.Compare(b.staged(), a.staged()), cmp.Compare(a.network, b.network), cmp.Compare(a.device, b.device), cmp.Compare(a.host, b.host))
	})
}

// writePairs shows between which nodes connections are staged.
func (r *Report) writePairs(b *strings.Builder) {
	staged := slices.DeleteFunc(slices.Clone(r.Pairs), func(p Pair) bool { return p.SendStaged+p.ReceiveStaged == 0 })
	if len(staged) == 0 {
		return
	}
	section(b, "Between which nodes")
	out := newTable(b, "from", "to", "send direct", "staged", "receive direct", "staged")
	for _, p := range staged[:min(len(staged), mostShown)] {
		out.AppendRow(table.Row{p.From, p.To, p.SendDirect, p.SendStaged, p.ReceiveDirect, p.ReceiveStaged})
	}
	out.Render()
	more(b, len(staged))
}

func (r *Report) writeFailures(b *strings.Builder) {
	if len(r.Failures) == 0 {
		return
	}
	section(b, "Errors")
	out := newTable(b, "kind", "node", "NIC or call", "code", "vendor error", "times")
	for _, f := range r.Failures[:min(len(r.Failures), mostShown)] {
		out.AppendRow(table.Row{f.Kind, cmp.Or(f.Host, "?"), cmp.Or(f.Subject, "-"), cmp.Or(f.Code, "-"), cmp.Or(f.Vendor, "-"), f.Count})
	}
	out.Render()
	more(b, len(r.Failures))
}

func (r *Report) writeBenchmarks(b *strings.Builder) {
	for i := range r.Benchmarks[:min(len(r.Benchmarks), mostShown)] {
		bench := &r.Benchmarks[i]
		title := "nccl-tests"
		if bench.Collective != "" {
			title += " " + bench.Collective
		}
		if bench.Ranks > 0 {
			title += fmt.Sprintf(", %d ranks on %d hosts", bench.Ranks, bench.Hosts)
		}
		section(b, title)
		average := "not in the log"
		if bench.Average != nil {
			average = fmt.Sprintf("%.2f GB/s", *bench.Average/1e9)
		}
		fmt.Fprintf(b, " bus bandwidth %.2f GB/s at best, average over all sizes %s; wrong values: %d; out of bounds: %s\n",
			bench.Peak/1e9, average, bench.WrongValues, cmp.Or(bench.OutOfBounds, "not said"))
		fmt.Fprintf(b, " %s\n", bench.Meaning)
	}
}

func (r *Report) writeNode(b *strings.Builder) {
	if len(r.NodeFindings) == 0 {
		return
	}
	section(b, "Findings of this node")
	for _, finding := range r.NodeFindings {
		fmt.Fprintf(b, " %s\n", finding)
	}
}

// counting writes a number of things.
func counting[T int | uint64](n T, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}
