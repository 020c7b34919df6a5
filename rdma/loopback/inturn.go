package loopback

import (
	"slices"
	"time"

	"gdr_exporter/collector/sysread"
)

// slicedPath is a path whose rate is measured in parts, in turn with other paths.
type slicedPath struct {
	*pathRun
	total moved
	rates []sysread.Maybe[float64] // of each round
}

// pathsInTurn measures the rates of several paths in rounds, each of one part of
// each path. What is measured once comes before, and so does the verification:
// the paths have destinations in common, and what lies there after a round is not
// a path's own. All queue pairs stay until the last round is over.
func (r *run) pathsInTurn(paths []Path) {
	var all []*slicedPath
	for _, path := range paths {
		p := &slicedPath{pathRun: r.newPath(path)}
		p.step(StageConnect, p.connect)
		p.step(StageWarmUp, p.warmUp)
		p.step(StageMeasure, p.measureOthers)
		p.step(StageVerify, p.verify)
		all = append(all, p)
	}
	for range r.spec.Slices {
		for _, p := range all {
			p.again(StageMeasure, p.measurePart)
		}
	}
	for _, p := range slices.Backward(all) {
		p.end()
	}
	for _, p := range all {
		if p.whole() {
			p.result.Bytes, p.result.BytesPerSecond, p.result.Ratio = p.total.bytes, p.total.rate(), p.ratioTo(all[0])
		}
		r.result.Paths = append(r.result.Paths, p.result)
	}
}

// measurePart measures the rate of one part.
func (p *slicedPath) measurePart() error {
	l := p.limits
	l.enough = min(l.deadline, monotonic()+p.spec.PhaseTime/time.Duration(p.spec.Slices))
	m, err := p.move(p.spec.part(), l, false)
	if err != nil {
		return err
	}
	p.total.bytes += m.bytes
	p.total.elapsed += m.elapsed
	p.rates = append(p.rates, m.rate())
	return nil
}

// again does a step as one more part of a stage: a stage of a path comes once in
// the result, however often it was entered.
func (p *slicedPath) again(stage Stage, do func() error) {
	before := len(p.run.result.Stages)
	p.step(stage, do)
	stages := p.run.result.Stages
	if len(stages) == before {
		return
	}
	added := stages[before]
	for i := range stages[:before] {
		if s := &stages[i]; s.Stage == stage && s.Path == added.Path {
			s.Duration += added.Duration
			s.Err = added.Err
			p.run.result.Stages = stages[:before]
			return
		}
	}
}

// whole reports whether the path was measured in every round.
func (p *slicedPath) whole() bool { return len(p.rates) == p.spec.Slices }

// ratioTo is the median of the ratios to the host path's rate in the same round.
func (p *slicedPath) ratioTo(host *slicedPath) sysread.Maybe[float64] {
	if host.result.Path != PathHost || !host.whole() {
		return sysread.Maybe[float64]{}
	}
	var ratios []float64
	for round := range p.rates {
		if r := ratio(p.rates[round], host.rates[round]); r.Known {
			ratios = append(ratios, r.Value)
		}
	}
	if len(ratios) == 0 {
		return sysread.Maybe[float64]{}
	}
	slices.Sort(ratios)
	middle := len(ratios) / 2
	if len(ratios)%2 == 0 {
		return sysread.Some((ratios[middle-1] + ratios[middle]) / 2)
	}
	return sysread.Some(ratios[middle])
}

// ratio is that of two rates, if both are known.
func ratio(rate, host sysread.Maybe[float64]) sysread.Maybe[float64] {
	if !rate.Known || !host.Known || host.Value <= 0 {
		return sysread.Maybe[float64]{}
	}
	return sysread.Some(rate.Value / host.Value)
}

// compare fills in the ratios of paths that were not measured in turn.
func (r *run) compare() {
	var host sysread.Maybe[float64]
	for i := range r.result.Paths {
		if r.result.Paths[i].Path == PathHost {
			host = r.result.Paths[i].BytesPerSecond
		}
	}
	for i := range r.result.Paths {
		if p := &r.result.Paths[i]; r.spec.Slices == 1 || p.Path == PathStaged {
			p.Ratio = ratio(p.BytesPerSecond, host)
		}
	}
}
