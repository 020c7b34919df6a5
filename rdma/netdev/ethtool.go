package netdev

import (
	"fmt"

	"gdr_exporter/collector/sysread"
)

// maxStats bounds the statistics taken from one interface. mlx5 with 128
// queues has about 10,000.
const maxStats = 1 << 16

// statistics is what is remembered of an interface's ethtool statistics: which
// of them are in the table, by position. The names, 32 bytes each and thousands
// of them, are fetched again only when their number changes and with the
// configuration, on which they depend.
type statistics struct {
	count   int
	slots   []slot
	values  []uint64
	refused sysread.Backoff
	status  Status
}

// slot is a statistic that is in the table.
type slot struct {
	position int
	meaning  *Meaning
	label    string
	// seen: it has been other than 0.
	seen bool
}

// readStats reads the ethtool statistics: one call for their number, which asks
// the driver only, and one for their values.
func (p *pass) readStats() {
	if p.stats.refused.Waiting(p.now) {
		p.reading.EthtoolStatus = p.stats.status
		return
	}
	err := p.fetchStats()
	switch {
	case err == nil:
		p.stats.status = StatusRead
		p.stats.refused.Reset()
		p.show()
	case unsupported(err):
		p.stats.status = StatusUnsupported
		p.stats.refused.Refuse(p.now, 0, refusedFirst, refusedMost)
	case gone(err):
		p.stats = statistics{status: StatusHidden}
	default:
		p.fail("ethtool", err)
		p.stats.status = StatusUnknown
		if sysread.Refused(err) {
			p.stats.refused.Refuse(p.now, 0, refusedFirst, refusedMost)
		}
	}
	p.reading.EthtoolStatus = p.stats.status
}

// fetchStats brings names and values up to date.
func (p *pass) fetchStats() error {
	count, err := p.ask().StatCount(p.name)
	if err != nil {
		return fmt.Errorf("number of statistics of %s: %w", p.name, err)
	}
	if count <= 0 || count > maxStats {
		return fmt.Errorf("%s has %d statistics: %w", p.name, count, sysread.ErrInvalid)
	}
	if count != p.stats.count {
		names, err := p.ask().StatNames(p.name, count)
		if err != nil {
			return fmt.Errorf("names of statistics of %s: %w", p.name, err)
		}
		p.stats.count = count
		p.stats.slots = match(p.reading.Driver, names, p.stats.slots)
		p.stats.values = make([]uint64, count)
	}
	if len(p.stats.slots) == 0 {
		return nil // no use to ask the driver for values
	}
	if err := p.ask().Stats(p.name, p.stats.values); err != nil {
		p.stats.count = 0 // the number may have changed meanwhile
		return fmt.Errorf("statistics of %s: %w", p.name, err)
	}
	return nil
}

// match finds the table's statistics among a driver's names. Of several that
// mean the same the first counts. What old slots have seen is kept.
func match(driver string, names []string, old []slot) []slot {
	type key struct {
		meaning *Meaning
		label   string
	}
	seen := map[key]bool{}
	for _, s := range old {
		seen[key{s.meaning, s.label}] = s.seen
	}
	taken := map[key]bool{}
	var slots []slot
	for position, name := range names {
		meaning, label := lookup(driver, name)
		k := key{meaning, label}
		if meaning == nil || taken[k] {
			continue
		}
		taken[k] = true
		slots = append(slots, slot{position, meaning, label, seen[k]})
	}
	return slots
}

// show puts the values that are worth a series into the reading.
func (p *pass) show() {
	p.reading.StatCount = p.stats.count
	if !p.reading.PFC.Known {
		p.reading.PFC = p.pfcFromNames()
	}
	for i := range p.stats.slots {
		s := &p.stats.slots[i]
		raw := p.stats.values[s.position]
		value, valid := s.meaning.Scale(raw)
		if !valid {
			p.fail("ethtool/"+s.meaning.Name, sysread.Invalid(fmt.Sprint(raw)))
			continue
		}
		s.seen = s.seen || raw != 0
		if s.worth(p.reading.PFC) && (p.options.Extra || !s.meaning.Extra) {
			p.reading.Stats = append(p.reading.Stats, Stat{s.meaning, s.label, raw, value})
		}
	}
}

// worth reports whether the statistic is worth a series. Of the eight
// priorities usually one or two have flow control; the others' counters stay 0.
func (s *slot) worth(pfc sysread.Maybe[PrioritySet]) bool {
	if s.meaning.Rare {
		return s.seen
	}
	if s.meaning.Label != LabelPriority {
		return true
	}
	enabled := pfc.Known && pfc.Value.Has(int(s.label[0]-'0'))
	if s.meaning.PFC && pfc.Known {
		return enabled
	}
	return enabled || s.seen
}

// pfcFromNames is the set of PFC-enabled priorities as mlx5's statistics tell
// it: it lists rx_prio<N>_pause for these alone (mlx5e_query_pfc_combined).
func (p *pass) pfcFromNames() sysread.Maybe[PrioritySet] {
	if p.reading.Driver != driverMLX5 || len(p.stats.slots) == 0 {
		return sysread.Maybe[PrioritySet]{}
	}
	var set PrioritySet
	for _, s := range p.stats.slots {
		if s.meaning.PFC {
			set |= 1 << (s.label[0] - '0')
		}
	}
	return sysread.Some(set)
}

// driverMLX5 is the name of NVIDIA's driver, in the kernel and out of it.
const driverMLX5 = "mlx5_core"
