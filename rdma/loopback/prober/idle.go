package prober

import "context"

// Idleness is the schedule's gate of load, for runs that it does not make: those of a
// command that must disturb no job.
type Idleness struct {
	prober *Prober // of which only the host is used
	seen   map[Pair]*watched
	pairs  map[Pair]*pair
}

// WatchIdle looks at the load of pairs for ten seconds, as the schedule does before
// traffic. A pair without GPU is of host memory alone. It returns early if ctx is done.
func WatchIdle(ctx context.Context, host Host, pairs []Pair) *Idleness {
	i := &Idleness{&Prober{options: Options{Host: host}}, map[Pair]*watched{}, map[Pair]*pair{}}
	watch := make([]*pair, len(pairs))
	for n, at := range pairs {
		watch[n] = &pair{Pair: at}
		i.pairs[at] = watch[n]
	}
	for pair, seen := range i.prober.watchLoad(ctx, watch) {
		i.seen[pair.Pair] = seen
	}
	return i
}

// Busy says what keeps a pair from a run now, ReasonNone if nothing does. Other pairs
// may have run since the load was looked at, so it looks once more.
func (i *Idleness) Busy(ctx context.Context, at Pair) Reason {
	seen := i.seen[at]
	switch {
	case ctx.Err() != nil, seen == nil:
		return ReasonStopped
	case at.GPU != "" && seen.err != nil:
		return ReasonLoadUnknown // nobody could tell that a job comes
	}
	return i.prober.busyNow(ctx, i.pairs[at], seen)
}

// Guard returns a context for a run of a pair in the process with the id own, which
// ends when another process comes to the GPU; came reports, at last, whether one did.
func (i *Idleness) Guard(ctx context.Context, at Pair, own int) (guarded context.Context, came func() bool) {
	guarded, cancel := context.WithCancel(ctx)
	seen := i.seen[at]
	if at.GPU == "" || seen == nil {
		return guarded, func() bool { cancel(); return false }
	}
	watcher := &watcher{host: i.prober.options.Host, gpu: at.GPU, before: seen.processes, pid: own}
	found := make(chan bool, 1)
	go func() {
		found <- watcher.newcomer(guarded)
		cancel()
	}()
	return guarded, func() bool { cancel(); return <-found }
}
