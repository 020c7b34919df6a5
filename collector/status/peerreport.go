package status

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/session"
)

// PeerReport is what the command peer measured with one other node.
type PeerReport struct {
	Target  string        `json:"target"`            // host:port
	Contact *peer.Contact `json:"contact,omitempty"` // what its listener said; absent if it did not answer
	// Failure is why nothing, or not all, was measured: of the connection, not of a path.
	Failure *session.Failure `json:"failure,omitempty"`
	Paths   []peer.Path      `json:"paths"`
	Outcome string           `json:"outcome"` // fine, bad or not_measured
	// Sums are what the rails do together, in bytes per second each way while both are
	// in use; absent where a rail was not measured.
	Sums map[session.Memory]float64 `json:"sum_bytes_per_second"`
}

// Outcomes of a PeerReport.
const (
	PeerFine        = "fine"
	PeerBad         = "bad"          // unreachable, or a path failed, is slow or corrupts data
	PeerNotMeasured = "not_measured" // refused, or nothing to measure
)

// Conclude works out outcome and sums.
func (r *PeerReport) Conclude() {
	if r.Paths == nil {
		r.Paths = []peer.Path{}
	}
	r.Sums = map[session.Memory]float64{}
	for _, memory := range []session.Memory{session.Host, session.GPU, session.Staged} {
		if sum, whole := r.sum(memory); whole {
			r.Sums[memory] = sum
		}
	}
	r.Outcome = r.outcome()
}

func (r *PeerReport) outcome() string {
	measured, skipped := 0, false
	for i := range r.Paths {
		p := &r.Paths[i]
		for _, m := range append([]*peer.Measurement{p.Ping}, p.Bandwidth...) {
			switch {
			case m == nil:
			case m.Class.Bad():
				return PeerBad
			case m.Class.Judged():
				measured++
			}
		}
		if p.Reached != nil && !p.Reached.OK {
			return PeerBad
		}
		skipped = skipped || p.Skipped != ""
	}
	switch {
	case r.Failure != nil && r.Contact == nil && !refusal(r.Failure):
		return PeerBad
	case r.Failure != nil || measured == 0 || skipped:
		return PeerNotMeasured
	}
	return PeerFine
}

// refusal reports whether a failure says nothing of the path.
func refusal(f *session.Failure) bool {
	switch f.Reason {
	case session.ReasonBusy, session.ReasonLocked, session.ReasonGate, session.ReasonBudget, session.ReasonStopped:
		return true
	}
	return false
}

// sum adds up the rails' rates of a memory: of both directions at once if they were
// measured, the lesser of the two. Each rail counts once, by its first path.
func (r *PeerReport) sum(memory session.Memory) (sum float64, whole bool) {
	seen := map[session.Port]bool{}
	for i := range r.Paths {
		p := &r.Paths[i]
		if seen[p.Own] {
			continue
		}
		seen[p.Own] = true
		rate := 0.0
		for _, m := range p.Bandwidth {
			if m.Memory == memory {
				rate = oneWay(m.Result)
			}
		}
		if rate == 0 {
			return 0, false
		}
		sum += rate
	}
	return sum, len(seen) > 0
}

// oneWay is the rate that each direction has at the same time.
func oneWay(r *session.Result) float64 {
	rate := 0.0
	for _, direction := range []session.Direction{session.Both, session.Write} {
		if ways := waysOf(r, direction); len(ways) > 0 && rate == 0 {
			rate = ways[0].BytesPerSecond
			for _, w := range ways {
				rate = min(rate, w.BytesPerSecond)
			}
		}
	}
	return rate
}

// waysOf is what was written in a round of a direction.
func waysOf(r *session.Result, direction session.Direction) []*session.Way {
	var ways []*session.Way
	if r == nil {
		return nil
	}
	for i := range r.Rounds {
		if r.Rounds[i].Direction != direction {
			continue
		}
		for _, w := range []*session.Way{r.Rounds[i].Written, r.Rounds[i].Back} {
			if w != nil && w.BytesPerSecond > 0 {
				ways = append(ways, w)
			}
		}
	}
	return ways
}

// WritePeerJSON writes reports as a JSON array.
func WritePeerJSON(w io.Writer, reports []PeerReport) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(reports)
}

// WriteTable writes a report for a terminal.
func (r *PeerReport) WriteTable(w io.Writer) error {
	var b strings.Builder
	b.WriteString(r.title() + "\n")
	if len(r.Paths) > 0 {
		out := newTable(&b, "rail", "to", "address", "latency", "99 %", "memory", "there", "back", "both", "result")
		for i := range r.Paths {
			appendPath(out, &r.Paths[i])
		}
		out.Render()
	}
	for _, line := range r.conclusions() {
		b.WriteString(" " + line + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *PeerReport) title() string {
	if r.Contact == nil {
		return cleaned(r.Target) + ": no session"
	}
	c := r.Contact
	return fmt.Sprintf("%s, gdr_exporter %s, listener answers in %v, its clock is %v off", cleaned(r.Target), cleaned(c.Build), c.RTT.Round(time.Microsecond), c.Clock.Abs().Round(time.Millisecond))
}

func appendPath(out table.Writer, p *peer.Path) {
	address, latency, worst, ping := "-", "-", "-", "-"
	if p.Reached != nil {
		address = "answers"
		if !p.Reached.OK {
			address = "NO ANSWER"
		}
	}
	if m := p.Ping; m != nil {
		ping = string(m.Class)
		if l := latencyOf(m.Result); l != nil {
			latency, worst = shortTime(l.Median), shortTime(l.P99)
		}
	}
	rail, to := cleaned(p.Own.String()), cleaned(p.Peer.String())
	if p.Rail != "" {
		rail += " (" + cleaned(p.Rail) + ")"
	}
	if len(p.Bandwidth) == 0 {
		out.AppendRow(table.Row{rail, to, address, latency, worst, "-", "-", "-", "-", ping})
	}
	for i, m := range p.Bandwidth {
		row := table.Row{"", "", "", "", "", string(m.Memory), wayRate(m, session.Write), wayRate(m, session.Reverse), wayRate(m, session.Both), string(m.Class)}
		if i == 0 {
			row[0], row[1], row[2], row[3], row[4] = rail, to, address, latency, worst
		}
		out.AppendRow(row)
	}
}

func latencyOf(r *session.Result) *session.Latency {
	if r == nil {
		return nil
	}
	for i := range r.Rounds {
		for _, w := range []*session.Way{r.Rounds[i].Written, r.Rounds[i].Back} {
			if w != nil && w.Latency != nil {
				return w.Latency
			}
		}
	}
	return nil
}

func shortTime(d time.Duration) string {
	return fmt.Sprintf("%.1f us", float64(d)/float64(time.Microsecond))
}

func wayRate(m *peer.Measurement, direction session.Direction) string {
	rate, known := peer.RateOf(m.Result, direction)
	if !known {
		return "-"
	}
	return fmt.Sprintf("%.2f GB/s", rate/1e9)
}

// conclusions are what the table cannot say.
func (r *PeerReport) conclusions() []string { return append(r.troubles(), r.totals()...) }

// troubles are what is not well, or was not measured.
func (r *PeerReport) troubles() []string {
	var lines []string
	if f := r.Failure; f != nil {
		lines = append(lines, cleaned(f.Error()))
	}
	for i := range r.Paths {
		p := &r.Paths[i]
		at := cleaned(p.Own.String() + " to " + p.Peer.String())
		for _, m := range append([]*peer.Measurement{p.Ping}, p.Bandwidth...) {
			if m != nil && m.Text != "" {
				lines = append(lines, cleaned(fmt.Sprintf("%s, %s, %s memory: %s", at, m.Kind, m.Memory, m.Text)))
			}
		}
		if p.Reached != nil && !p.Reached.OK {
			lines = append(lines, cleaned(fmt.Sprintf("%s: %s does not answer: %s", at, p.Reached.Address, p.Reached.Text)))
		}
		if p.Skipped != "" {
			lines = append(lines, cleaned(fmt.Sprintf("%s: not measured: %s", at, p.SkippedText)))
		}
	}
	return lines
}

// totals are the sums of rails, and what a collective library can make of them.
func (r *PeerReport) totals() []string {
	var lines []string
	for _, memory := range []session.Memory{session.Host, session.GPU, session.Staged} {
		if sum, has := r.Sums[memory]; has {
			lines = append(lines, fmt.Sprintf("%s memory, all rails: %.2f GB/s each way", memory, sum/1e9))
		}
	}
	if sum, has := r.Sums[session.GPU]; has {
		lines = append(lines, fmt.Sprintf("a ring all_reduce over these two nodes has a bus bandwidth of %.1f GB/s at most, as nccl-tests define it (below)", sum/1e9))
	}
	return lines
}

// PeerLegend says what the numbers of a table mean.
const PeerLegend = "there: this node writes.  back: the other one writes.  both: both at once, the sum of the two.  All are RDMA writes that were verified where they arrived.\n" +
	"host: host memory to host memory.  gpu: GPU memory to GPU memory, as jobs do with GPUDirect RDMA.  staged: through copies in host memory, as jobs do without it.\n" +
	"Bus bandwidth, as nccl-tests define it for all_reduce, is size / time x 2(n-1)/n with n ranks. With one rank on each of two nodes the factor is 1, and the number is the rate of one direction\n" +
	"while both are in use, not twice the link's rate. With more ranks a ring gives the sum of the rails; a tree sends each byte once each way only, so that the same formula shows up to 2(n-1)/n of the sum.\n"
