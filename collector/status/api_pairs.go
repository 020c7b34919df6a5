package status

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// pairKey names a pair: of a device one port at most is judged.
type pairKey struct{ gpu, device string }

// pairs are all pairs that the PCIe tree, the prober or a verdict names.
func (b *builder) pairs() []DocPair {
	of := map[pairKey]*DocPair{}
	at := func(gpu, device string) *DocPair {
		key := pairKey{gpu, device}
		if of[key] == nil {
			of[key] = &DocPair{GPU: gpu, Device: device, Distance: affinity.Unknown.String(), Reasons: []string{}, Libraries: []DocChoice{}}
		}
		return of[key]
	}
	b.addTree(at)
	b.addMeasured(at)
	for i := range b.d.Paths {
		path := &b.d.Paths[i]
		pair := at(path.GPU, path.Device)
		pair.Port, pair.Expected = pointer(path.Port > 0, path.Port), path.Expected
		pair.Distance = cmp.Or(path.Distance, pair.Distance)
		pair.State, pair.Evidence, pair.Cause = some(path.State), some(path.Evidence), some(path.Cause)
		pair.Reasons, pair.Since = list(path.Reasons), moment(path.Since)
	}
	b.addChoices(at)
	pairs := make([]DocPair, 0, len(of))
	for _, pair := range of {
		pairs = append(pairs, *pair)
	}
	slices.SortFunc(pairs, func(a, b DocPair) int { return cmp.Or(strings.Compare(a.GPU, b.GPU), natural(a.Device, b.Device)) })
	return pairs
}

// addTree adds the pairs of the PCIe tree.
func (b *builder) addTree(at func(gpu, device string) *DocPair) {
	if b.s.Affinity == nil {
		return
	}
	functions := snapshot.Functions(b.s.Affinity)
	for i := range b.s.Affinity.Listing.Pairs {
		p := &b.s.Affinity.Listing.Pairs[i]
		pair := at(p.GPU, p.Device)
		pair.Distance, pair.Nearest = p.Distance.String(), p.Nearest
		path := affinity.PathOf(p, functions)
		pair.Link = &DocLink{
			Common: some(p.Common), BytesPerSecond: known(path.BytesPerSecond), Possible: known(path.PossibleBytesPerSecond), Redirected: known(path.Redirected), IOMMU: string(path.IOMMU),
		}
	}
}

// addMeasured adds what the prober knows.
func (b *builder) addMeasured(at func(gpu, device string) *DocPair) {
	if b.s.Prober == nil {
		return
	}
	for i := range b.s.Prober.Pairs {
		p := &b.s.Prober.Pairs[i]
		pair := at(p.GPU, p.Device)
		pair.Port, pair.Distance = pointer(p.Port > 0, p.Port), cmp.Or(p.Distance, pair.Distance)
		running := b.s.Prober.Running
		pair.Measured = &DocMeasured{
			Full: b.run(p.Full), Registration: b.run(p.Registration), Unconfirmed: b.run(p.Unconfirmed),
			LastAttempt: moment(p.LastAttempt), Due: moment(p.Due), Skip: spaced(string(p.Skip)), Withdrawn: spaced(p.Withdrawn),
			HungSince: moment(p.Hung), HungStage: some(string(p.HungStage)), Running: running != nil && *running == p.Pair,
			Baseline: known(p.Baseline), Mismatches: p.Mismatches,
		}
	}
}

// spaced is a name as words, nil if it is empty.
func spaced(name string) *string { return some(strings.ReplaceAll(name, "_", " ")) }

// run is a completed run, nil if there is none.
func (b *builder) run(c *prober.Completed) *DocRun {
	if c == nil {
		return nil
	}
	run := &DocRun{
		Depth: string(c.Depth), Time: c.Time.UTC(), AgeSeconds: max(b.s.Taken.Sub(c.Time).Seconds(), 0), Outcome: string(c.Judgement.Outcome), Reasons: list(c.Judgement.Reasons), Idle: c.Idle,
		Method: some(string(c.Result.Method)), NCCLMethod: some(string(c.Result.NCCLMethod)), Registrations: []DocRegistration{}, Paths: []DocPathRate{},
	}
	for i := range c.Result.Registrations {
		r := &c.Result.Registrations[i]
		run.Registrations = append(run.Registrations, DocRegistration{Method: string(r.Method), Works: r.Err == nil, Error: message(r.Err)})
	}
	for i := range c.Result.Paths {
		run.Paths = append(run.Paths, pathRate(&c.Result.Paths[i]))
	}
	return run
}

func pathRate(p *loopback.PathResult) DocPathRate {
	seconds := func(known bool, d time.Duration) *float64 { return pointer(known, d.Seconds()) }
	return DocPathRate{
		Path: string(p.Path), BytesPerSecond: known(p.BytesPerSecond), Ratio: known(p.Ratio),
		LatencyMedian: seconds(p.LatencyMedian.Known, p.LatencyMedian.Value), LatencyP99: seconds(p.LatencyP99.Known, p.LatencyP99.Value),
		CPUSecondsGB: known(p.CPUSecondsPerGB), Mismatches: known(p.Mismatches), Error: message(p.Err),
	}
}

// addChoices adds what libraries would do, and what cannot be told of that.
func (b *builder) addChoices(at func(gpu, device string) *DocPair) {
	var expected []prober.Pair
	for i := range b.d.Paths {
		if path := &b.d.Paths[i]; path.Expected {
			expected = append(expected, prober.Pair{GPU: path.GPU, Device: path.Device, Port: path.Port})
		}
	}
	if len(expected) == 0 {
		return
	}
	choices, open := diagnosis.ChoicesOf(b.s, expected, nil)
	for i := range choices {
		c := &choices[i]
		pair := at(c.GPU, c.Device)
		pair.Libraries = append(pair.Libraries, DocChoice{Library: c.Library, Rule: c.Rule, Versions: versions(c.Library, c.Rule), Uses: &c.Uses, Reason: c.Reason})
	}
	for i := range open {
		c := &open[i]
		pair := at(c.GPU, c.Device)
		pair.Libraries = append(pair.Libraries, DocChoice{Library: c.Library, Rule: c.Rule, Versions: versions(c.Library, c.Rule), Reason: c.Missing})
	}
}

// versions says of which versions of a library a rule holds.
func versions(library, rule string) string {
	for i := range diagnosis.Generations {
		if g := &diagnosis.Generations[i]; g.Library == library && g.Rule == rule {
			return g.Versions
		}
	}
	return rule
}

// natural orders names as people do: mlx5_2 before mlx5_10.
func natural(a, b string) int {
	for a != "" && b != "" {
		left, right := digits(a), digits(b)
		if left == 0 || right == 0 {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		x, y := strings.TrimLeft(a[:left], "0"), strings.TrimLeft(b[:right], "0")
		if order := cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y), cmp.Compare(left, right)); order != 0 {
			return order
		}
		a, b = a[left:], b[right:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits is the length of the number that a text begins with.
func digits(text string) int {
	n := 0
	for n < len(text) && text[n] >= '0' && text[n] <= '9' {
		n++
	}
	return n
}
