package peer

import (
	"maps"
	"slices"
	"time"

	"gdr_exporter/rdma/peer/session"
	"gdr_exporter/rdma/peer/targets"
)

// showing is for how long a Status stands if nothing is measured: it says what is next,
// and how many bytes were spent in the last hour.
const showing = 10 * time.Second

// Status is what there is to show. It is shared: nobody changes it. It is made anew when
// there is something new in it.
func (r *Runner) Status() *Status {
	r.building.Lock()
	defer r.building.Unlock()
	now := r.clock.now()
	r.book.mu.Lock()
	defer r.book.mu.Unlock()
	if s := r.shown; s != nil && r.version == r.book.version && r.follows == r.setting.Load() && !now.Before(s.Taken) && now.Sub(s.Taken) < showing {
		return s
	}
	r.version, r.follows = r.book.version, r.setting.Load()
	r.shown = r.status(r.follows, now)
	return r.shown
}

// status makes a Status. The book's lock is held.
func (r *Runner) status(s *setting, now time.Time) *Status {
	st := &Status{
		Taken: now, Self: s.own(), SelfText: s.why, Name: r.name(s), Targets: len(s.addresses), List: s.version,
		Options: r.options.Schedule.Version(), Spent: r.budget.Spent(), Budget: r.options.BytesPerHour,
		Bytes: maps.Clone(r.book.bytes), Sessions: maps.Clone(r.book.sessions),
	}
	r.sources(st)
	st.CoverPing, st.CoverBandwidth = s.coverage()
	neighbours := map[int]bool{}
	if s.plan != nil {
		st.Round = s.plan.RoundStart(now)
		if turn, found := s.plan.Next(now); found {
			st.Next = turn.Begin
		}
		for _, turn := range s.plan.Neighbours(now) {
			neighbours[turn.Partner] = true
		}
	}
	if others := len(s.addresses) - 1; others > 0 {
		st.Peers = make([]Peer, 0, others+1)
	}
	own := r.book.names(s)
	for i, address := range s.addresses {
		if i == s.self {
			continue
		}
		p := Peer{Target: address, Name: s.list.At(i).Name(), Neighbour: neighbours[i]}
		if k := r.book.peers[address]; k != nil {
			if name := own[i]; name != "" {
				p.Name = name
			}
			p.Contact, p.Listener, p.Tried, p.Failure, p.Paths = k.contact, k.listener, k.tried, k.failure, k.paths
		}
		st.Peers = append(st.Peers, p)
	}
	st.Rails = r.book.tallies()
	return st
}

// name is this node's, as the list calls it.
func (r *Runner) name(s *setting) string {
	if s.self < 0 || r.options.Name != "" && nameless(s.list.At(s.self)) {
		return r.options.Name
	}
	return s.list.At(s.self).Name()
}

// nameless reports whether the list has but an address for a node, as DNS gives it.
func nameless(t targets.Target) bool { return t.Addr.IsValid() && t.Name() == t.Host }

// names are what nodes call themselves of which the list has but an address, by their
// number. A name that two of them have tells neither. The lock is held.
func (b *book) names(s *setting) map[int]string {
	of, number := map[int]string{}, map[string]int{}
	for target, k := range b.peers {
		i := s.list.Find(target)
		if i >= 0 && k.contact != nil && k.contact.Name != "" && nameless(s.list.At(i)) {
			of[i] = k.contact.Name
			number[k.contact.Name]++
		}
	}
	maps.DeleteFunc(of, func(_ int, name string) bool { return number[name] > 1 })
	return of
}

func (r *Runner) sources(st *Status) {
	if r.options.Watcher == nil {
		return
	}
	watched := r.options.Watcher.Status()
	if watched.Err != nil {
		st.ListText = watched.Err.Error()
	}
	for _, source := range watched.Sources {
		s := Source{Name: source.Name, Targets: source.Targets, Good: source.Good}
		if source.Err != nil {
			s.Text = source.Err.Error()
		}
		st.Sources = append(st.Sources, s)
	}
}

// summing is what is added up of an own port.
type summing struct {
	rail      OwnRail
	latencies []time.Duration
	rates     map[session.Memory]map[session.Direction][]float64
}

// tallies are what the results of all peers add up to, by own port. The lock is held.
func (b *book) tallies() []OwnRail {
	all := make([]*summing, 0, len(b.rails))
	byPort := map[session.Port]*summing{}
	for _, rail := range b.rails {
		s := &summing{
			rail:  OwnRail{Port: rail.Port, Rail: rail.Label, Rate: rail.Rate, Bandwidth: map[session.Memory]*Tally{}},
			rates: map[session.Memory]map[session.Direction][]float64{},
		}
		all, byPort[rail.Port] = append(all, s), s
	}
	for _, k := range b.peers {
		for i := range k.paths {
			if s := byPort[k.paths[i].Own]; s != nil {
				s.add(&k.paths[i])
			}
		}
	}
	rails := make([]OwnRail, 0, len(all))
	for _, s := range all {
		rails = append(rails, s.sum())
	}
	return rails
}

func (s *summing) add(p *Path) {
	if p.Ping != nil {
		s.rail.Pings.add(p.Ping)
		if latency := LatencyOf(p.Ping.Result); latency != nil {
			s.latencies = append(s.latencies, latency.Median)
		}
	}
	for _, m := range p.Bandwidth {
		tally := s.rail.Bandwidth[m.Memory]
		if tally == nil {
			tally = &Tally{}
			s.rail.Bandwidth[m.Memory] = tally
			s.rates[m.Memory] = map[session.Direction][]float64{}
		}
		tally.add(m)
		for _, d := range []session.Direction{session.Write, session.Reverse, session.Both} {
			if rate, known := RateOf(m.Result, d); known {
				s.rates[m.Memory][d] = append(s.rates[m.Memory][d], rate)
			}
		}
	}
}

func (t *Tally) add(m *Measurement) {
	if m.Class.Bad() {
		t.Bad++
	} else {
		t.Good++
	}
}

func (s *summing) sum() OwnRail {
	if n := len(s.latencies); n > 0 {
		slices.Sort(s.latencies)
		s.rail.Pings.Worst = s.latencies[n-1]
		s.rail.Pings.Median = (s.latencies[(n-1)/2] + s.latencies[n/2]) / 2
	}
	for memory, directions := range s.rates {
		tally := s.rail.Bandwidth[memory]
		tally.Rates = map[session.Direction]Rates{}
		for d, rates := range directions {
			slices.Sort(rates)
			n := len(rates)
			tally.Rates[d] = Rates{Count: n, Least: rates[0], Median: (rates[(n-1)/2] + rates[n/2]) / 2}
		}
	}
	return s.rail
}
