package peer

import (
	"context"
	"slices"
	"time"

	"gdr_exporter/rdma/peer/rails"
	"gdr_exporter/rdma/peer/session"
)

// pair are two ports that are measured against each other.
type pair struct {
	own, peer session.Rail
	basis     rails.Basis
}

// pairs are those of the meeting, the first one being another from time to time: of a
// slot that ends early it is not always the same rail that is left out. Lonely are the
// own ports that have no counterpart.
func (m *meeting) pairs(own, theirs []session.Rail) (pairs []pair, lonely []session.Rail) {
	theirs = slices.Clone(theirs)
	m.setting.label(m.target, theirs)
	match := rails.Match
	if m.all {
		match = rails.All
	}
	paired := make([]bool, len(own))
	for _, p := range match(forms(own), forms(theirs)) {
		pairs = append(pairs, pair{own[p.Mine], theirs[p.Theirs], p.Basis})
		paired[p.Mine] = true
	}
	for i, rail := range own {
		if !paired[i] {
			lonely = append(lonely, rail)
		}
	}
	if n := int64(len(pairs)); n > 0 {
		first := ((m.rotate % n) + n) % n
		pairs = append(pairs[first:len(pairs):len(pairs)], pairs[:first]...)
	}
	return pairs, lonely
}

func forms(all []session.Rail) []rails.Rail {
	matched := make([]rails.Rail, len(all))
	for i, rail := range all {
		matched[i] = rail.Match()
	}
	return matched
}

// label fills in the rails' names that the list has.
func (s *setting) label(address string, all []session.Rail) {
	i := s.list.Find(address)
	if i < 0 {
		return
	}
	target := s.list.At(i)
	for j := range all {
		if all[j].Label == "" {
			all[j].Label = target.Rail(all[j].Device, all[j].Port.Port)
		}
	}
}

const (
	// looking is how long a look at the host may take.
	looking = 5 * time.Second
	// What a hello may have.
	mostRails = 256
	mostGPUs  = 64
)

// look is what can be measured of this host now.
func (r *Runner) look(ctx context.Context, s *setting) []session.Rail {
	ctx, cancel := context.WithTimeout(ctx, looking)
	defer cancel()
	seen := r.options.Host.Rails(ctx)
	all := make([]session.Rail, min(len(seen), mostRails))
	copy(all, seen)
	addresses := r.options.Host.Addresses(ctx)
	for i := range all {
		if addr, known := addresses[all[i].Port]; known && all[i].IP == "" {
			all[i].IP = addr.Unmap().WithZone("").String()
		}
		all[i].GPUs = all[i].GPUs[:min(len(all[i].GPUs), mostGPUs)]
	}
	s.label(s.own(), all)
	if ctx.Err() == nil {
		r.book.saw(all, r.clock.now())
	}
	return all
}
