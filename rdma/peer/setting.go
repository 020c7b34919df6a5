package peer

import (
	"fmt"
	"time"

	"gdr_exporter/rdma/peer/schedule"
	"gdr_exporter/rdma/peer/targets"
)

// setting is the list and the plan of a frame. It does not change.
type setting struct {
	list      *targets.List
	addresses []string // of the targets, in order
	version   string
	self      int    // -1: not known
	why       string // no part is taken in the schedule
	plan      *schedule.Plan
	// start and end are of the frame that they hold in.
	start, end time.Time
}

func newSetting(list *targets.List, options schedule.Options) *setting {
	s := &setting{list: list, version: list.Version(), addresses: make([]string, list.Len())}
	for i := range s.addresses {
		s.addresses[i] = list.At(i).Address()
	}
	if len(s.addresses) == 0 {
		s.self, s.why = -1, "there are no targets"
		return s
	}
	var err error
	if s.self, err = list.Self(); err != nil {
		s.self, s.why = -1, err.Error()
		return s
	}
	if s.plan, err = schedule.New(list.Len(), s.self, options); err != nil {
		s.why = err.Error()
	}
	return s
}

// at is the setting for the frame that a time is in.
func (s *setting) at(now time.Time, options schedule.Options) *setting {
	if s.plan == nil {
		return s
	}
	other := *s
	other.end = s.plan.FrameEnd(now)
	other.start = other.end.Add(-options.Frame)
	return &other
}

// holds reports whether the frame is one that a time is in. Without a plan there is none.
func (s *setting) holds(now time.Time) bool {
	return s.plan != nil && !now.Before(s.start) && now.Before(s.end)
}

// own is this node's address in the list, "" if it is not known.
func (s *setting) own() string {
	if s.self < 0 {
		return ""
	}
	return s.addresses[s.self]
}

// String says what the list is, for the log.
func (s *setting) String() string {
	if s.why != "" {
		return fmt.Sprintf("%d targets (version %s): %s", len(s.addresses), s.version, s.why)
	}
	return fmt.Sprintf("%d targets (version %s), this node is %s", len(s.addresses), s.version, s.own())
}

// coverage is how long it takes until each pair has had its turn.
func (s *setting) coverage() (ping, bandwidth time.Duration) {
	if s.plan == nil {
		return 0, 0
	}
	return s.plan.Coverage()
}

// ages are for how long results count: until the pair has had two more turns in which
// this node begins, which is every other one, since one may be refused; and not for ever.
func (s *setting) ages(o *Options) (ping, bandwidth time.Duration) {
	if o.MaxAge > 0 {
		return o.MaxAge, o.MaxAge
	}
	ping, bandwidth = s.coverage()
	age := func(cover time.Duration) time.Duration {
		return min(max(4*cover+2*o.Schedule.Frame, 2*o.Schedule.Round), oldest)
	}
	return age(ping), age(bandwidth)
}
