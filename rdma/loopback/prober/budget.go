package prober

import "time"

// budget bounds runs and bytes of the last hour.
type budget struct{ spent []spending }

type spending struct {
	at    time.Time
	bytes uint64
}

// allows reports whether there is room for one more run that moves bytes.
func (b *budget) allows(o *Options, bytes uint64) bool {
	b.forget(time.Now())
	used := bytes
	for _, s := range b.spent {
		used += s.bytes
	}
	return (o.RunsPerHour == 0 || len(b.spent) < o.RunsPerHour) && (o.BytesPerHour == 0 || used <= o.BytesPerHour)
}

// spend counts a run.
func (b *budget) spend(now time.Time, bytes uint64) {
	b.forget(now)
	b.spent = append(b.spent, spending{now, bytes})
}

func (b *budget) forget(now time.Time) {
	old := 0
	for old < len(b.spent) && now.Sub(b.spent[old].at) >= time.Hour {
		old++
	}
	b.spent = b.spent[old:]
}
