package gpu

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
)

// pairState is a pair of GPUs between reads. A pair whose GPU has a new handle
// is a new one.
type pairState struct {
	pair Pair
	read time.Time // zero: never
}

// pairIntervals are the slow intervals after which a pair is read again: what it
// says changes with a driver or a fabric, not with traffic.
const pairIntervals = 5

// readPairs reads what NVML says of pairs of GPUs. A status takes 2 ms for each
// pair and capability, so that after the first read, which reads all, one pair
// is read at a time: the one that was read longest ago.
func (r *Reader) readPairs(now time.Time, v *visit) []Pair {
	states := map[[2]*device]*pairState{}
	pairs := []Pair{}
	var oldest *pairState
	var oldestOf [2]*device
	for i, a := range r.devices {
		for _, b := range r.devices[i+1:] {
			of := [2]*device{a, b}
			state := r.pairs[of]
			if state == nil {
				state = &pairState{pair: Pair{A: a.address, B: b.address}}
			}
			states[of] = state
			switch {
			case a.wasLost || b.wasLost:
				continue
			case state.read.IsZero():
				r.readPair(now, v, of, state)
			case now.Sub(state.read) >= pairIntervals*r.options.SlowInterval && (oldest == nil || state.read.Before(oldest.read)):
				oldest, oldestOf = state, of
			}
			pairs = append(pairs, state.pair)
		}
	}
	if oldest != nil {
		r.readPair(now, v, oldestOf, oldest)
	}
	r.pairs = states
	return pairs
}

// peerGone are returns that may be either GPU's fault; each is asked about
// itself all the time.
var peerGone = []nvml.Return{nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED, nvml.ERROR_INVALID_ARGUMENT}

// readPair reads one pair. The common ancestor is asked for once: it cannot
// change while both are there, and the first time takes 19 ms.
func (r *Reader) readPair(now time.Time, session *visit, of [2]*device, state *pairState) {
	if session.down {
		return
	}
	a, b := of[0], of[1]
	v := &visit{calls: session.calls, address: a.address}
	if !state.pair.Ancestor.Known {
		level := ask(v, "nvmlDeviceGetTopologyCommonAncestor", func() (nvml.GpuTopologyLevel, nvml.Return) {
			return a.handle.GetTopologyCommonAncestor(b.handle)
		}, peerGone...)
		state.pair.Ancestor = sysread.Maybe[int]{Value: int(level.Value), Known: level.Known}
	}
	for capability := range P2PCapabilities {
		status := ask(v, "nvmlDeviceGetP2PStatus", func() (nvml.GpuP2PStatus, nvml.Return) {
			return a.handle.GetP2PStatus(b.handle, nvml.GpuP2PCapsIndex(capability))
		}, peerGone...)
		state.pair.P2P[capability] = sysread.Maybe[int]{Value: int(status.Value), Known: status.Known}
	}
	state.read = now
	session.absorb(v)
}
