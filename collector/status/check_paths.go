package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// results are the results that stand, of all pairs.
func (n *checkNode) results() []*prober.Completed {
	var all []*prober.Completed
	if n.s.Prober != nil {
		for i := range n.s.Prober.Pairs {
			if standing := n.s.Prober.Pairs[i].Standing(); standing != nil {
				all = append(all, standing)
			}
		}
	}
	return all
}

// checkProbeAdvice is what to do where nothing was measured.
const checkProbeAdvice = "gdr_exporter check --probe measures now, the exporter as a service does every hour"

func (n *checkNode) seeMeasurement() (string, bool) {
	parts := []string{}
	results := n.results()
	if len(results) > 0 {
		oldest, newest := results[0].Time, results[0].Time
		for _, c := range results {
			if c.Time.Before(oldest) {
				oldest = c.Time
			}
			if c.Time.After(newest) {
				newest = c.Time
			}
		}
		parts = append(parts, fmt.Sprintf("results of %s, %s old", checkPlural(len(results), "pair"), n.ages(newest, oldest)))
	}
	if n.options.Results != "" {
		parts = append(parts, "from "+n.options.Results)
	}
	if len(results) == 0 {
		parts = append(parts, "no results")
	}
	if tried := n.options.Tried; tried != nil {
		var came []string
		for i := range tried.Attempts {
			came = append(came, tried.Attempts[i].came())
		}
		parts = append(parts, "measured now: "+cmp.Or(checkTally(came), "no pair"))
	}
	return strings.Join(parts, "; "), len(results) > 0 || len(n.d.Paths) == 0
}

// came says what came of an attempt.
func (a *Attempt) came() string {
	if a.Skip != "" {
		return "skipped (" + a.Skip + ")"
	}
	return a.Result
}

func (n *checkNode) ages(newest, oldest time.Time) string {
	young, old := span(n.s.Taken.Sub(newest)), span(n.s.Taken.Sub(oldest))
	if young == old {
		return young
	}
	return young + " to " + old
}

func (n *checkNode) seeVerdicts() (string, bool) {
	if len(n.d.Paths) == 0 {
		return n.noPairs(), false
	}
	var states []string
	for i := range n.d.Paths {
		states = append(states, string(n.d.Paths[i].State))
	}
	known := slices.ContainsFunc(n.d.Paths, func(p diagnosis.Path) bool { return p.State != diagnosis.StateUnknown })
	return checkTally(states), known
}

// pathLines is a line for each pair that is expected or measured.
func (n *checkNode) pathLines() []CheckLine {
	var lines []CheckLine
	for i := range n.d.Paths {
		lines = append(lines, n.pathLine(&n.d.Paths[i]))
	}
	return lines
}

// checkPathStates are the statuses of lines of pairs. A finding about one says more.
var checkPathStates = map[diagnosis.State]CheckStatus{
	diagnosis.StateDirect: CheckOK, diagnosis.StateDegraded: CheckWarning, diagnosis.StateStaged: CheckCritical,
	diagnosis.StateUnsupported: CheckInfo, diagnosis.StateUnknown: CheckNotJudged,
}

func (n *checkNode) pathLine(p *diagnosis.Path) CheckLine {
	line := CheckLine{
		ID: fmt.Sprintf("path/%s/%s/%d", cleaned(p.GPU), printable(p.Device), p.Port), Title: cleaned(p.GPU) + " " + printable(p.Device),
		Status: checkPathStates[p.State], Rules: []CheckRule{},
	}
	if !p.Expected && line.Status != CheckOK {
		line.Status = CheckInfo // libraries do not use it by default
	}
	seen := fmt.Sprintf("%s, %s", p.Distance, p.State)
	if p.Evidence != diagnosis.EvidenceNone {
		seen += " (" + string(p.Evidence) + ")"
	}
	if !p.Expected {
		seen += ", not used by libraries by default"
	}
	if rates := n.rates(p); rates != "" {
		seen += ": " + rates
	}
	if len(p.Reasons) > 0 {
		seen += "; " + p.Reasons[0]
	}
	line.Seen = seen
	if p.State == diagnosis.StateUnknown && n.options.Results == "" && n.options.Replay == "" {
		line.Do = checkProbeAdvice
	}
	n.mark(&line, func(f *diagnosis.Finding) bool { return f.Subject.GPU == p.GPU && f.Subject.Device == p.Device })
	return line
}

// rates are what the standing full run measured of a pair, with its age.
func (n *checkNode) rates(p *diagnosis.Path) string {
	if n.s.Prober == nil {
		return ""
	}
	for i := range n.s.Prober.Pairs {
		pair := &n.s.Prober.Pairs[i]
		if pair.GPU != p.GPU || pair.Device != p.Device || pair.Full == nil {
			continue
		}
		var parts []string
		for j := range pair.Full.Result.Paths {
			path := &pair.Full.Result.Paths[j]
			if !path.BytesPerSecond.Known {
				continue
			}
			text := fmt.Sprintf("%s %s", path.Path, gigabytes(&path.BytesPerSecond.Value))
			if path.Ratio.Known && path.Path != loopback.PathHost {
				text += fmt.Sprintf(" (%.2f)", path.Ratio.Value)
			}
			parts = append(parts, text)
		}
		if len(parts) == 0 {
			return ""
		}
		return fmt.Sprintf("%s, %s ago", strings.Join(parts, ", "), span(n.s.Taken.Sub(pair.Full.Time)))
	}
	return ""
}

// noPairs says why there is no pair to judge.
func (n *checkNode) noPairs() string {
	switch listing, why := n.tree(); {
	case listing == nil:
		return why
	case n.s.RDMA == nil:
		return "RDMA devices are not read"
	case n.s.RDMA.Err != nil:
		return "the RDMA devices cannot be listed"
	case len(n.gpus.All) == 0 && len(n.s.RDMA.Units) == 0:
		return "this host has no NVIDIA GPU and no RDMA device"
	case len(n.gpus.All) == 0:
		return "this host has no NVIDIA GPU"
	case len(n.s.RDMA.Units) == 0:
		return "this host has no RDMA device"
	case len(n.near()) == 0:
		return "no RDMA device is known to be near to a GPU (the PCIe tree is hidden, as in many virtual machines, or the devices have no PCI function); --probe.pairs names pairs"
	case len(n.answering()) == 0:
		return "no GPU answers, and no pair is known to be measured"
	default:
		return "libraries use GPUDirect RDMA on none of the pairs here by default, by their distance, and none was measured; --probe.pairs names pairs"
	}
}

// checkNeeded are the collectors without whose answer there is no answer.
var checkNeeded = []string{snapshot.CollectorRDMA, snapshot.CollectorGPU, snapshot.CollectorDriver, snapshot.CollectorAffinity}

// checkMostUnjudged bounds what is named of what could not be judged.
const checkMostUnjudged = 64

// unjudged says what keeps the answer from being whole: a pair of which nothing is
// known, no pair at all, and devices that do not answer. A rule that is not judged
// for want of a privilege is not among it: the answer comes from measurements.
func (n *checkNode) unjudged(pairs CheckPairs) []string {
	why := slices.Clone(n.options.Unfinished)
	for _, status := range n.s.Status() {
		if !slices.Contains(checkNeeded, status.Collector) {
			continue
		}
		if status.Err != nil {
			why = append(why, fmt.Sprintf("collector %s: %v", status.Collector, status.Err))
		}
		for _, device := range status.Devices {
			if device.StuckFor > 0 {
				why = append(why, fmt.Sprintf("reading %s (%s) does not return", printable(device.Name), status.Collector))
			}
		}
	}
	if pairs.Total == 0 {
		why = append(why, n.noPairs())
	}
	why = append(why, n.unknownPairs(pairs.Expected)...)
	for i := range why {
		why[i] = cleaned(why[i])
	}
	return why[:min(len(why), checkMostUnjudged)]
}

// unknownPairs says of which pairs nothing is known, those of one reason together.
func (n *checkNode) unknownPairs(expected bool) []string {
	var reasons []string
	of := map[string][]string{}
	for i := range n.d.Paths {
		p := &n.d.Paths[i]
		if p.State != diagnosis.StateUnknown || p.Expected != expected || !expected && p.Evidence == diagnosis.EvidenceNone {
			continue
		}
		reason := cmp.Or(strings.Join(p.Reasons[:min(len(p.Reasons), 1)], ""), "no reason is known")
		if of[reason] == nil {
			reasons = append(reasons, reason)
		}
		of[reason] = append(of[reason], p.GPU+" "+printable(p.Device))
	}
	for i, reason := range reasons {
		pairs := of[reason]
		reasons[i] = fmt.Sprintf("nothing is known of %s (%s): %s", checkPlural(len(pairs), "pair"), checkSome(pairs, 8), reason)
		if n.options.Results == "" && n.options.Replay == "" {
			reasons[i] += "; " + checkProbeAdvice
		}
	}
	return reasons
}
