package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/rdma/loopback"
)

// judgedPairs are the pairs of which something is said or measured.
func judgedPairs(doc *Document) []*DocPair {
	var pairs []*DocPair
	for i := range doc.Pairs {
		if p := &doc.Pairs[i]; p.State != nil || p.Measured != nil {
			pairs = append(pairs, p)
		}
	}
	return pairs
}

// pairSection shows what is said of each pair, and what it rests on.
func pairSection(doc *Document) pageSection {
	s := pageSection{ID: "pairs", Title: "Pairs: verdicts and measurements", Intro: proberSentences(doc)}
	verdicts := &grid{ID: "verdicts", Caption: "What is said of each pair, and why", Columns: []string{"GPU", "NIC", "Distance", "Verdict", "Rests on", "Why", "Since"}}
	rates := &grid{
		ID: "rates", Caption: "What was measured: RDMA writes of the NIC to itself, which say nothing of cable, switch and peer",
		Columns: []string{"GPU", "NIC", "Result", "Age", "GPU to GPU", "Usual", "Host control", "GPU read", "GPU write", "Staged", "Latency", "Registration", "Note"},
	}
	pairs := judgedPairs(doc)
	if len(pairs) > mostShownPairs {
		verdicts.More = len(pairs) - mostShownPairs
		rates.More, pairs = verdicts.More, pairs[:mostShownPairs]
	}
	for _, pair := range pairs {
		if pair.State != nil {
			verdicts.add(verdictRow(doc, pair)...)
		}
		if pair.Measured != nil {
			rates.add(rateRow(doc, pair)...)
		}
	}
	s.put(verdicts)
	s.put(rates)
	return s
}

// proberSentences say what the prober does, as far as that is not the usual.
func proberSentences(doc *Document) []string {
	p := doc.Prober
	if p == nil {
		return nil
	}
	var all []string
	if p.QuiescedUntil != nil {
		all = append(all, fmt.Sprintf("Quiesced until %s: nothing is measured, and NVML is not asked.", p.QuiescedUntil.Format("15:04:05 UTC")))
	}
	measured := slices.ContainsFunc(doc.Pairs, func(pair DocPair) bool { return pair.Measured != nil })
	switch {
	case p.IntervalSeconds == 0:
		all = append(all, "No measurements are scheduled.")
	case !measured:
		all = append(all, "There is no pair of GPU and RDMA device to measure.")
	}
	if p.IsolationReason != nil {
		all = append(all, fmt.Sprintf("Measurements are made in child processes: %s.", *p.IsolationReason))
	}
	return all
}

func verdictRow(doc *Document, p *DocPair) []cell {
	expected := ""
	if !p.Expected {
		expected = " (not expected)"
	}
	l := stateLooks[*p.State]
	since := cell{}
	if p.Since != nil {
		since = textCell(age(doc.Taken.Sub(*p.Since)))
	}
	why := longCell(strings.Join(p.Reasons, "; "))
	if p.Cause != nil {
		why.Link, why.LinkText = runbookPath(*p.Cause), titleOf(*p.Cause)
	}
	return []cell{
		textCell(p.GPU), textCell(p.Device), textCell(p.Distance), lookCell(l, l.Word+expected), optional(p.Evidence), why, since,
	}
}

// titleOf is what a rule says is wrong.
func titleOf(rule string) string {
	if title := titles[rule]; title != "" {
		return title
	}
	return rule
}

func rateRow(doc *Document, p *DocPair) []cell {
	m := p.Measured
	rate := func(path loopback.Path) cell {
		r := p.rate(path)
		if r == nil || r.BytesPerSecond == nil {
			return cell{}
		}
		c := textCell(gigabytes(r.BytesPerSecond))
		if r.Ratio != nil && path != loopback.PathHost {
			c.Text += fmt.Sprintf(" (%.2f)", *r.Ratio)
		}
		return c
	}
	usual := cell{}
	if m.Baseline != nil {
		usual = textCell(gigabytes(m.Baseline))
	}
	standing := m.standing()
	result, since := textCell("not measured"), cell{}
	if standing != nil {
		result, since = resultCell(standing), textCell(age(seconds(standing.AgeSeconds)))
	}
	return []cell{
		textCell(p.GPU), textCell(p.Device), result, since,
		rate(loopback.PathGPU), usual, rate(loopback.PathHost), rate(loopback.PathGPURead), rate(loopback.PathGPUWrite), rate(loopback.PathStaged),
		latencyCell(p), registrationCell(standing), longCell(strings.Join(measuredNotes(doc, m, standing), "; ")),
	}
}

// standing is the run that says how the pair is: the full one, unless a registration
// failed after it.
func (m *DocMeasured) standing() *DocRun {
	switch {
	case m.Full == nil:
		return m.Registration
	case m.Registration != nil && m.Registration.Time.After(m.Full.Time) && !m.Registration.good():
		return m.Registration
	}
	return m.Full
}

func (r *DocRun) good() bool { return r.Outcome == string(loopback.Fine) }

// resultCell is a result in a word or two.
func resultCell(r *DocRun) cell {
	switch {
	case r.good() && r.Depth == "register":
		return lookCell(lookGood, "registration works")
	case r.good():
		return lookCell(lookGood, r.Outcome)
	case r.Outcome == string(loopback.Unsupported):
		return lookCell(lookPlain, r.Outcome)
	case r.Outcome == string(loopback.NotJudged):
		return lookCell(lookOpen, r.Outcome)
	}
	return lookCell(lookBad, r.Outcome)
}

func latencyCell(p *DocPair) cell {
	r := p.rate(loopback.PathGPU)
	if r == nil || r.LatencyMedian == nil {
		return cell{}
	}
	c := textCell(microseconds(*r.LatencyMedian))
	if r.LatencyP99 != nil {
		c.Text += " (99 %: " + microseconds(*r.LatencyP99) + ")"
	}
	return c
}

func microseconds(s float64) string { return fmt.Sprintf("%.1f µs", s*1e6) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// registrationCell says which ways of registering GPU memory work.
func registrationCell(r *DocRun) cell {
	if r == nil || len(r.Registrations) == 0 {
		return cell{}
	}
	var parts []string
	l := lookBad
	for i := range r.Registrations {
		g := &r.Registrations[i]
		if g.Works {
			l = lookGood
			parts = append(parts, g.Method)
		} else {
			parts = append(parts, "not "+g.Method)
		}
	}
	return lookCell(l, strings.Join(parts, ", "))
}

// registrationNotes say why a way of registering GPU memory does not work beside one
// that does. Where none works that is the reason of the result.
func registrationNotes(r *DocRun) []string {
	if !r.good() {
		return nil
	}
	var all []string
	for i := range r.Registrations {
		if g := &r.Registrations[i]; !g.Works && g.Error != nil {
			all = append(all, g.Method+": "+*g.Error)
		}
	}
	return all
}

// measuredNotes tell why there is no newer or better result.
func measuredNotes(doc *Document, m *DocMeasured, standing *DocRun) []string {
	var all []string
	if m.Running {
		all = append(all, "being measured now")
	}
	if m.HungSince != nil {
		stage := "of unknown name"
		if m.HungStage != nil {
			stage = *m.HungStage
		}
		all = append(all, fmt.Sprintf("a measurement hangs since %s in stage %s; its GPU and NIC are left alone until a restart", age(doc.Taken.Sub(*m.HungSince)), stage))
	}
	if m.Skip != nil && m.HungSince == nil {
		all = append(all, "due, but kept back: "+*m.Skip)
	}
	if m.Withdrawn != nil {
		all = append(all, "no rate any more: "+*m.Withdrawn)
	}
	if m.Unconfirmed != nil {
		all = append(all, m.Unconfirmed.Outcome+", to be confirmed")
	}
	if m.Mismatches > 0 {
		all = append(all, fmt.Sprintf("%d words arrived wrong since the exporter started", m.Mismatches))
	}
	if standing != nil {
		if standing.Depth == "full" && !standing.Idle {
			all = append(all, "measured under load")
		}
		all = append(append(all, standing.Reasons...), registrationNotes(standing)...)
	}
	return all
}

// liveSection says whether jobs use GPUDirect RDMA now.
func liveSection(doc *Document) pageSection {
	s := pageSection{ID: "live", Title: "In use now"}
	g := &grid{ID: "live-table", Caption: "Whether jobs use GPUDirect RDMA through each compute NIC", Columns: []string{"NIC", "Use", "What was seen, or is missing"}}
	looks := map[diagnosis.Live]look{
		diagnosis.LiveInUse: lookGood, diagnosis.LiveSuspect: lookBad, diagnosis.LiveIdle: {Class: "none", Sign: "–"}, diagnosis.LiveCannotTell: lookOpen,
	}
	words := map[diagnosis.Live]string{
		diagnosis.LiveInUse: "in use", diagnosis.LiveSuspect: "a job seems to stage", diagnosis.LiveIdle: "idle", diagnosis.LiveCannotTell: "cannot be told",
	}
	// Devices of which the same is said are one row.
	for _, names := range grouped(doc.Devices, func(d *DocDevice) (name, key string, ok bool) {
		if d.Live == nil {
			return "", "", false
		}
		return d.Name, string(*d.Live) + "\x00" + strings.Join(d.LiveReasons, "\x00"), true
	}) {
		d := &doc.Devices[slices.IndexFunc(doc.Devices, func(d DocDevice) bool { return d.Name == names[0] })]
		g.add(longCell(strings.Join(names, " ")), lookCell(looks[*d.Live], words[*d.Live]), longCell(strings.Join(d.LiveReasons, "; ")))
	}
	s.put(g)
	return s
}

// grouped are the names of things with the same key, in the order of the first ones.
// What is not ok is left out.
func grouped[T any](all []T, of func(*T) (name, key string, ok bool)) [][]string {
	var groups [][]string
	at := map[string]int{}
	for i := range all {
		name, key, ok := of(&all[i])
		if !ok {
			continue
		}
		n, known := at[key]
		if !known {
			n, groups = len(groups), append(groups, nil)
			at[key] = n
		}
		groups[n] = append(groups[n], name)
	}
	return groups
}

// librarySection says what libraries would do: pairs for which a rule decides alike
// are one row.
func librarySection(doc *Document) pageSection {
	s := pageSection{ID: "libraries", Title: "What NCCL and UCX would do"}
	g := &grid{
		ID: "library-table", Caption: "Whether a job's library would use GPUDirect RDMA on the expected pairs, by the library's own rules and without variables",
		Columns: []string{"Library", "Versions", "Would use it", "Pairs", "Why"},
	}
	type group struct {
		choice DocChoice
		pairs  []string
	}
	var groups []*group
	for i := range doc.Pairs {
		for _, c := range doc.Pairs[i].Libraries {
			at := slices.IndexFunc(groups, func(g *group) bool { return sameChoice(&g.choice, &c) })
			if at < 0 {
				at, groups = len(groups), append(groups, &group{choice: c})
			}
			groups[at].pairs = append(groups[at].pairs, doc.Pairs[i].GPU+" "+doc.Pairs[i].Device)
		}
	}
	slices.SortStableFunc(groups, func(a, b *group) int { return generation(&a.choice) - generation(&b.choice) })
	for _, group := range groups {
		pairs := textCell(fmt.Sprintf("all %d", len(group.pairs)))
		if len(group.pairs) < doc.Summary.Expected {
			pairs = longCell(strings.Join(group.pairs, ", "))
		}
		c := &group.choice
		g.add(textCell(strings.ToUpper(c.Library)), textCell(c.Versions), yesNo(c.Uses, lookGood, lookBad), pairs, longCell(c.Reason))
	}
	s.put(g)
	return s
}

func sameChoice(a, b *DocChoice) bool {
	same := a.Uses == nil && b.Uses == nil || a.Uses != nil && b.Uses != nil && *a.Uses == *b.Uses
	return same && a.Library == b.Library && a.Rule == b.Rule && a.Reason == b.Reason
}

// generation is where a choice's rule stands among all.
func generation(c *DocChoice) int {
	return slices.IndexFunc(diagnosis.Generations, func(g diagnosis.Generation) bool { return g.Library == c.Library && g.Rule == c.Rule })
}
