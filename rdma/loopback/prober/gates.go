package prober

import "slices"

// Numbers of nvmlComputeMode_t.
const (
	computeProhibited = 2
	computeExclusive  = 3
)

// contextSize is the GPU memory that a CUDA context takes, beside which MinFree
// must be free: 527 MiB on an H200, 555 MiB on the largest GPU known.
const contextSize = 640 << 20

// gate says what keeps a pair from a run of a depth, load aside. The lock is not
// held.
func (p *Prober) gate(pair *pair, depth Depth) (Reason, error) {
	p.mu.Lock()
	reason := p.gateSeen(pair, depth)
	spec := p.spec(pair, depth, true)
	p.mu.Unlock()
	if reason != ReasonNone {
		return reason, nil
	}
	return p.options.Host.Blocked(pair.Pair, spec.Registers())
}

// gateSeen are the gates that what was seen answers. What is not known closes
// none of them but that of the GPU itself: the run has gates of its own.
func (p *Prober) gateSeen(pair *pair, depth Depth) Reason {
	gpu := p.host.gpus[pair.GPU]
	port := p.host.ports[Port{pair.Device, pair.Port}]
	switch {
	case p.hungBeside(pair):
		return ReasonHung
	case !p.quiescedUntil.IsZero():
		return ReasonQuiesced
	case !gpu.Usable.Value, p.host.unsure[pair.GPU]:
		return ReasonGPU
	case p.host.confidential:
		return ReasonConfidential
	case gpu.ComputeMode.Value == computeProhibited, gpu.ComputeMode.Value == computeExclusive:
		return ReasonComputeMode
	case gpu.MIG.Value:
		return ReasonMIG
	case gpu.Persistence.Known && !gpu.Persistence.Value && gpu.Processes.Value == 0:
		return ReasonPersistence // a context would initialise the GPU, its end the opposite
	case gpu.Free.Known && gpu.Free.Value < p.options.MinFree+contextSize:
		return ReasonMemory
	case depth == DepthFull && port.State.Value != portActive:
		return ReasonPort
	case !p.budget.allows(&p.options, p.expected(pair, depth)):
		return ReasonBudget
	}
	return ReasonNone
}

// hungBeside reports whether a run of the pair's GPU or RDMA device hangs.
func (p *Prober) hungBeside(pair *pair) bool {
	for at, other := range p.pairs {
		if !other.hung.IsZero() && (at.GPU == pair.GPU || at.Device == pair.Device) {
			return true
		}
	}
	return slices.ContainsFunc(p.options.Hung, func(run HungRun) bool { return run.GPU == pair.GPU || run.Device == pair.Device })
}

// skipped notes why a pair was not measured, and counts and tells it if it is
// news. The lock is not held.
func (p *Prober) skipped(pair *pair, reason Reason, err error) {
	p.mu.Lock()
	before := pair.skip
	news := pair.setSkip(reason)
	if news && reason != ReasonNone {
		p.skips[reason]++
	}
	p.mu.Unlock()
	if flips := before.load() && reason.load(); news && !flips { // it may change with every look
		p.tell([]Event{{Kind: EventSkip, Pair: pair.Pair, Text: string(reason), Err: err}})
	}
}
