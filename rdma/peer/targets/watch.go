package targets

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Options say where the list comes from. Zero values stand for the defaults of the
// package documentation.
type Options struct {
	Files   []string // names, or patterns as of filepath.Match
	Queries []Query
	Ports   Ports
	// Self says how this node is recognised; nil: it is not. It is asked at every new
	// list, and as long as the node is not found, since addresses come and go.
	Self func() Self

	Most         int           // targets
	FileInterval time.Duration // between two looks at the files
	DNSInterval  time.Duration // between two questions
	DNSTimeout   time.Duration // for an answer
	Resolver     Resolver
}

func (o Options) withDefaults() Options {
	orDefault(&o.Most, DefaultMost)
	orDefault(&o.FileInterval, 5*time.Second)
	orDefault(&o.DNSInterval, 30*time.Second)
	orDefault(&o.DNSTimeout, 10*time.Second)
	if o.Resolver == nil {
		o.Resolver = systemResolver
	}
	if o.Self == nil {
		o.Self = func() Self { return Self{} }
	}
	return o
}

func orDefault[T comparable](value *T, standard T) {
	var zero T
	if *value == zero {
		*value = standard
	}
}

// Source is a file or a DNS query, and how it is doing.
type Source struct {
	Name    string
	Targets int       // that it contributes, repetitions included
	Good    time.Time // when it was read well last; zero: never
	Err     error     // why it is not as good as now; what it said last stands
}

// Status is the list and how its sources are doing.
type Status struct {
	List    *List // the last good one
	Looked  time.Time
	Sources []Source
	Err     error // why the list does not follow its sources
}

// sourced is a source with what it contributes.
type sourced struct {
	Source
	targets []Target
}

// Watcher keeps the list. Its methods may be called at any time.
type Watcher struct {
	options Options
	files   *files // of the goroutine that looks at files

	mu       sync.Mutex
	lookups  []*lookup
	fromFile []sourced
	awaited  int // sources that have not been looked at
	status   Status
	changed  chan struct{}
}

// New is a watcher, once it was told to run.
func New(options Options) (*Watcher, error) {
	o := options.withDefaults()
	if len(o.Files) == 0 && len(o.Queries) == 0 {
		return nil, errors.New("targets: neither files nor DNS names are given")
	}
	for _, pattern := range o.Files {
		if err := checkPattern(pattern); err != nil {
			return nil, err
		}
	}
	if o.Most < 1 || o.FileInterval < 0 || o.DNSInterval < 0 || o.DNSTimeout < 0 {
		return nil, errors.New("targets: numbers and times below zero")
	}
	w := &Watcher{options: o, files: &files{patterns: o.Files, ports: o.Ports, known: map[string]*file{}}, changed: make(chan struct{})}
	for _, q := range o.Queries {
		w.lookups = append(w.lookups, &lookup{query: q})
	}
	w.awaited = len(w.lookups)
	if len(o.Files) > 0 {
		w.awaited++
	}
	w.status.List = NewList(nil, Self{})
	return w, nil
}

// Run follows the sources until the context ends. It is run once.
func (w *Watcher) Run(ctx context.Context) {
	var all sync.WaitGroup
	if len(w.options.Files) > 0 {
		all.Go(func() { every(ctx, w.options.FileInterval, w.lookAtFiles) })
	}
	for _, l := range w.lookups {
		all.Go(func() { every(ctx, w.options.DNSInterval, func(ctx context.Context) { w.ask(ctx, l) }) })
	}
	all.Wait()
}

// every calls a function at once and then at an interval, a tenth more or less.
func every(ctx context.Context, interval time.Duration, do func(context.Context)) {
	for ctx.Err() == nil {
		do(ctx)
		timer := time.NewTimer(time.Duration((0.9 + 0.2*rand.Float64()) * float64(interval)))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// List is the list that holds now; it has no targets until each source was looked
// at once. It is never nil.
func (w *Watcher) List() *List { return w.Status().List }

// Status is the list and how its sources are doing.
func (w *Watcher) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// Changed is closed when there is something new in Status. Whoever waits for it
// asks for it before looking at Status.
func (w *Watcher) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

func (w *Watcher) lookAtFiles(context.Context) {
	first := !w.files.looked
	changed := w.files.look() || first // without the lock: a file system may hang
	found := w.files.sources()
	w.mu.Lock()
	defer w.mu.Unlock()
	if first {
		w.awaited--
	}
	w.fromFile = found
	w.compose(changed)
}

func (w *Watcher) ask(ctx context.Context, l *lookup) {
	asking, cancel := context.WithTimeout(ctx, w.options.DNSTimeout)
	defer cancel()
	targets, err := l.query.resolve(asking, w.options.Resolver, w.options.Ports)
	if ctx.Err() != nil {
		return // an answer to a question that was given up says nothing
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !l.looked {
		w.awaited--
	}
	w.compose(l.take(targets, err))
}

// compose brings Status up to date after a look, of which it is told whether
// anything in it was new.
func (w *Watcher) compose(changed bool) {
	w.status.Looked = time.Now()
	if w.awaited > 0 {
		return
	}
	sources := w.sources()
	w.status.Sources = make([]Source, len(sources))
	for i, s := range sources {
		w.status.Sources[i] = s.Source
	}
	if changed {
		w.renew(sources)
	} else if !w.search() {
		return
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// renew makes the list of what the sources say.
func (w *Watcher) renew(sources []sourced) {
	var targets []Target
	for _, s := range sources {
		targets = append(targets, s.targets...)
	}
	list := NewList(targets, w.options.Self())
	if list.Len() > w.options.Most {
		w.status.Err = fmt.Errorf("%d targets are more than %d: the list before stands", list.Len(), w.options.Most)
		return
	}
	w.status.List, w.status.Err = list, nil
}

// search looks for this node again in a list that it was not found in. It reports
// whether that came out differently.
func (w *Watcher) search() bool {
	_, before := w.status.List.Self()
	if before == nil {
		return false
	}
	list := w.status.List.withSelf(w.options.Self())
	if _, now := list.Self(); sameText(before, now) {
		return false
	}
	w.status.List = list
	return true
}

func (w *Watcher) sources() []sourced {
	all := append([]sourced(nil), w.fromFile...)
	for _, l := range w.lookups {
		all = append(all, sourced{Source{Name: l.query.String(), Targets: len(l.targets), Good: l.good, Err: l.err}, l.targets})
	}
	return all
}
