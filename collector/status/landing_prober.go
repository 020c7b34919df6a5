package status

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// mostPairs bounds the pairs shown; the metrics have them all.
const mostPairs = 256

// pairRow is one measured pair on the landing page.
type pairRow struct {
	GPU, Device, Port, Distance, Result, Class, Rate, Ratio, Age, Note string
}

// proberSentences say what the prober does, as far as that is not the usual.
func proberSentences(s *snapshot.Snapshot) []string {
	if s.Prober == nil {
		return nil
	}
	var all []string
	if until := s.Prober.QuiescedUntil; !until.IsZero() {
		all = append(all, fmt.Sprintf("Quiesced until %s: nothing is measured, and NVML is not asked.", until.UTC().Format("15:04:05 UTC")))
	}
	switch {
	case s.Prober.Interval == 0:
		all = append(all, "No measurements are scheduled.")
	case len(s.Prober.Pairs) == 0:
		all = append(all, "There is no pair of GPU and RDMA device to measure.")
	}
	if s.Prober.IsolationReason != "" {
		all = append(all, fmt.Sprintf("Measurements are made in child processes: %s.", s.Prober.IsolationReason))
	}
	return all
}

// pairRows are the pairs that are measured, and how many more there are.
func pairRows(s *snapshot.Snapshot) (rows []pairRow, more int) {
	if s.Prober == nil {
		return nil, 0
	}
	pairs := s.Prober.Pairs
	if len(pairs) > mostPairs {
		pairs, more = pairs[:mostPairs], len(pairs)-mostPairs
	}
	for i := range pairs {
		rows = append(rows, newPairRow(&pairs[i], s))
	}
	return rows, more
}

func newPairRow(p *prober.PairStatus, s *snapshot.Snapshot) pairRow {
	row := pairRow{GPU: p.GPU, Device: p.Device, Port: strconv.Itoa(p.Port), Distance: p.Distance}
	row.Result, row.Class = "not known", ""
	known := p.Standing()
	if known != nil {
		row.Result, row.Class = resultOf(known)
		row.Age = age(s.Taken.Sub(known.Time))
	}
	if p.Full != nil && p.Withdrawn == "" {
		for i := range p.Full.Result.Paths {
			path := &p.Full.Result.Paths[i]
			if path.Path != loopback.PathGPU || !path.BytesPerSecond.Known || path.Mismatches.Value > 0 {
				continue
			}
			row.Rate = gigabytes(&path.BytesPerSecond.Value)
			if path.Ratio.Known {
				row.Ratio = fmt.Sprintf("%.2f", path.Ratio.Value)
			}
		}
	}
	row.Note = strings.Join(pairNotes(p, known, s), "; ")
	return row
}

// resultOf is a result in a word or two, and its look.
func resultOf(c *prober.Completed) (text, class string) {
	switch {
	case c.Good() && c.Depth == prober.DepthRegister:
		return "registration works", ""
	case c.Good():
		return string(c.Judgement.Outcome), "good"
	case c.Judgement.Outcome == loopback.Unsupported:
		return string(c.Judgement.Outcome), ""
	default:
		return string(c.Judgement.Outcome), "bad"
	}
}

// pairNotes tell why there is no newer or better result.
func pairNotes(p *prober.PairStatus, known *prober.Completed, s *snapshot.Snapshot) []string {
	var all []string
	if running := s.Prober.Running; running != nil && *running == p.Pair {
		all = append(all, "being measured now")
	}
	if !p.Hung.IsZero() {
		all = append(all, fmt.Sprintf("a measurement hangs since %s in stage %s; its GPU and NIC are left alone until a restart", age(s.Taken.Sub(p.Hung)), p.HungStage))
	}
	if p.Skip != prober.ReasonNone && p.Hung.IsZero() {
		all = append(all, "due, but kept back: "+strings.ReplaceAll(string(p.Skip), "_", " "))
	}
	if p.Withdrawn != "" {
		all = append(all, "no rate any more: "+strings.ReplaceAll(p.Withdrawn, "_", " "))
	}
	if p.Unconfirmed != nil {
		all = append(all, fmt.Sprintf("%s, to be confirmed", p.Unconfirmed.Judgement.Outcome))
	}
	if known != nil {
		if known.Depth == prober.DepthFull && !known.Idle {
			all = append(all, "measured under load")
		}
		all = append(all, known.Judgement.Reasons...)
	}
	return all
}

// age is a duration for people: its largest unit is enough.
func age(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", max(int(d.Seconds()), 0))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	default:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	}
}
