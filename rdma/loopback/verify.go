package loopback

import (
	"fmt"

	"gdr_exporter/collector/sysread"
)

// verify compares what arrived with the pattern, read in two ways: by the NIC,
// which also pushes writes that are still on their way to the end of it, and by
// whom the memory belongs to.
func (p *pathRun) verify() error {
	total := 0
	for _, e := range p.written {
		wrong, err := p.verifyByRead(e)
		if err != nil {
			return err
		}
		total += wrong
		if wrong, err = p.verifyByOwner(e); err != nil {
			return err
		}
		total += wrong
		p.result.Verified += uint64(e.Length)
	}
	p.result.Mismatches = sysread.Some(total)
	if total > 0 {
		return fmt.Errorf("%w: %d words of 8 bytes in %d bytes", ErrCorrupt, total, p.result.Verified)
	}
	return nil
}

// verifyByRead reads the extent's share of ReadBack by RDMA READ. The staged path
// may well have a destination that no NIC reaches.
func (p *pathRun) verifyByRead(e Extent) (int, error) {
	if p.result.Path == PathStaged {
		return 0, nil
	}
	share := min(e.Length, len(p.scratch.bytes)/len(p.written)) / 8 * 8
	if share == 0 {
		return 0, nil
	}
	clear(p.scratch.bytes[:share])
	t := p.base
	t.read, t.signalEvery, t.qps = true, 1, t.qps[:1]
	t.local, t.lkey = p.scratch.address(), p.scratchRegion.lkey
	t.remote += uintptr(e.Offset)
	t.size = min(share, p.spec.MessageSize)
	t.slice = share / t.size * t.size
	t.bytes = uint64(t.slice)
	l := p.limits // all of it: half a verification is none
	progress, err := p.verbs.transfer(t, l)
	p.run.result.TransferredBytes += progress.completed * uint64(t.size)
	if err != nil {
		return 0, fmt.Errorf("RDMA READ: %w", err)
	}
	return mismatches(p.scratch.bytes[:t.slice], p.seed, e.Offset), nil
}

func (p *pathRun) verifyByOwner(e Extent) (int, error) {
	if !p.result.Path.toGPU() {
		return mismatches(p.destination.host.bytes[e.Offset:e.Offset+e.Length], p.seed, e.Offset), nil
	}
	total := 0
	for done := 0; done < e.Length; {
		if err := p.ended(); err != nil {
			return 0, err
		}
		part := p.scratch.bytes[:min(len(p.scratch.bytes), e.Length-done)]
		if err := p.destination.gpu.Read(e.Offset+done, part); err != nil {
			return 0, fmt.Errorf("GPU: %w", err)
		}
		total += mismatches(part, p.seed, e.Offset+done)
		done += len(part)
	}
	return total, nil
}
