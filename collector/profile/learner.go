package profile

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"gdr_exporter/rdma/loopback/prober"
)

// What must hold before it is learned: a port that comes up for a moment, or a GPU
// that is listed before its driver is there, is not what a node has.
const (
	learnSightings = 3
	learnFor       = time.Minute
	learnEvery     = 10 * time.Second // sightings closer to each other count as one
)

// Options say how a Book expects.
type Options struct {
	Site      *Site      // the file of --profile, nil for none
	Platforms []*Profile // nil: nothing is matched
	Selection Selection
	// Learn: the best that is seen is kept, in StateDir unless that is "".
	Learn    bool
	StateDir string
	// Tell is called with what happens to what was learned, once each; nil: nobody is told.
	Tell func(text string, err error)
}

// Book says what a node should have. Its methods may be called concurrently.
type Book struct {
	options Options

	mu      sync.Mutex
	learned *Learned
	growing map[string]*streak // by what is becoming better
	unsaved bool               // there is news that is not in the file
	saving  bool               // the file is being written
	broken  bool               // it cannot be, which was told
	writes  sync.WaitGroup
}

// streak is how long something better than what is known has held.
type streak struct {
	first, last time.Time
	n           int
	value       uint64 // the least of it
}

// New returns a Book with what was learned before.
func New(options Options) *Book {
	if options.Tell == nil {
		options.Tell = func(string, error) {}
	}
	b := &Book{options: options, learned: &Learned{Version: learnedVersion}, growing: map[string]*streak{}}
	if options.Learn && options.StateDir != "" {
		b.load()
	}
	return b
}

// load takes what was learned before. A damaged file is set aside.
func (b *Book) load() {
	learned, err := ReadLearned(b.options.StateDir)
	if err == nil {
		b.learned = learned
		return
	}
	if errors.Is(err, errDamaged) {
		err = errors.Join(err, setAside(b.options.StateDir))
	}
	b.options.Tell("learning afresh what this node should have", err)
}

// Expect takes in what was seen and returns what the node should have.
func (b *Book) Expect(f *Facts) Expectation {
	b.mu.Lock()
	defer b.mu.Unlock()
	platform := Match(b.options.Platforms, f, b.learned.Platform)
	if b.options.Learn {
		b.learn(f, platform)
	} else if platform != nil {
		b.learned.Platform = platform.Name
	}
	e := Merge(b.options.Site, platform, b.learned)
	e.only(&b.options.Selection, f)
	return e
}

// Learned returns what was learned.
func (b *Book) Learned() *Learned {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.learned.clone()
}

// Forget is Learned.Forget, and has it written when it returns.
func (b *Book) Forget(gpu, device string) int {
	defer b.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.growing)
	forgotten := b.learned.Forget(gpu, device)
	b.unsaved = b.unsaved || forgotten > 0
	b.save()
	return forgotten
}

// learn takes in what was seen.
func (b *Book) learn(f *Facts, platform *Profile) {
	b.machine(f)
	if name := nameOf(platform); platform != nil && b.learned.Platform != name || platform == nil && f.identified() && b.learned.Platform != "" {
		b.learned.Platform, b.unsaved = name, true
	}
	if f.Listed.Known && !f.Foreign {
		b.known(f)
		b.ports(f)
		b.count(f.Time, FieldDevices, f.Devices.Known, f.Devices.Value, &b.learned.Devices)
		b.count(f.Time, FieldDirectPairs, f.DirectPairs.Known, f.DirectPairs.Value, &b.learned.DirectPairs)
	}
	b.count(f.Time, FieldGPUs, f.GPUs.Known, f.GPUs.Value, &b.learned.GPUs)
	b.count(f.Time, FieldNVLinks, f.NVLinks.Known, f.NVLinks.Value, &b.learned.NVLinks)
	b.save()
}

func nameOf(p *Profile) string {
	if p == nil {
		return ""
	}
	return p.Name
}

// identified reports whether everything is known by which a platform is.
func (f *Facts) identified() bool {
	return f.Product.Known && len(f.Models.Value) > 0 && f.GPUs.Known
}

// machine forgets what was learned of another machine, whose disk this is.
func (b *Book) machine(f *Facts) {
	product := f.Product.Value
	switch {
	case !f.Product.Known || product == b.learned.Product:
		return
	case b.learned.Product != "":
		b.options.Tell(fmt.Sprintf("learning afresh what this node should have: it was %.80q, and is %.80q", b.learned.Product, product), nil)
		*b.learned = Learned{Version: learnedVersion}
		clear(b.growing)
	}
	b.learned.Product, b.unsaved = product, true
}

// known has the ports that were learned follow their devices: one that was renamed
// is the same, one that was replaced under its name is another, and one that has
// got another role is not expected any more.
func (b *Book) known(f *Facts) {
	name := map[string]string{} // of the device by its GUID, "" of several
	for i := range f.Ports {
		p := &f.Ports[i]
		if other, seen := name[p.NodeGUID]; seen && other != p.Device {
			name[p.NodeGUID] = ""
		} else if p.NodeGUID != "" {
			name[p.NodeGUID] = p.Device
		}
	}
	kept := make([]LearnedPort, 0, len(b.learned.Ports))
	changed := false
	for _, p := range b.learned.Ports {
		if now := name[p.NodeGUID]; now != "" && now != p.Device {
			p.Device, changed = now, true
		}
		if why := stale(f, &p); why != "" {
			b.options.Tell(fmt.Sprintf("the port %d of %s is not expected any more: %s", p.Port, p.Device, why), nil)
			changed = true
			continue
		}
		kept = append(kept, p)
	}
	if changed {
		b.learned.Ports, b.unsaved = kept, true
		b.learned.sort()
		b.learned.Ports = slices.CompactFunc(b.learned.Ports, func(a, b LearnedPort) bool { return a.at() == b.at() })
	}
}

// stale says why what was learned of a port does not hold any more, "" if it does.
func stale(f *Facts, p *LearnedPort) string {
	for _, now := range f.of(p.Device) {
		switch {
		case now.Never:
			return "its device is none that is learned of"
		case p.NodeGUID != "" && now.NodeGUID != "" && now.NodeGUID != p.NodeGUID:
			return "its device was replaced"
		}
	}
	return ""
}

// ports learns which ports are ACTIVE, and at what rate.
func (b *Book) ports(f *Facts) {
	seen := map[string]bool{}
	for i := range f.Ports {
		p := &f.Ports[i]
		key := portKey(p.Port)
		if !p.Compute || p.Never || !p.Active.Known {
			seen[key] = p.Compute && !p.Never // it says nothing, or nothing any more
			continue
		}
		known := b.learned.port(p.Port)
		better := p.Active.Value && (known == nil || p.Rate.Known && p.Rate.Value > known.Rate)
		seen[key] = better
		if !better {
			continue
		}
		if steady := b.hold(key, f.Time, p.Rate.Value); steady != nil {
			b.learnPort(p, known, steady.value)
			delete(b.growing, key)
		}
	}
	for key := range b.growing {
		if isPort(key) && !seen[key] && !b.silent(f, key) {
			delete(b.growing, key)
		}
	}
}

// learnPort learns a port, or a better rate of one.
func (b *Book) learnPort(p *Port, known *LearnedPort, rate uint64) {
	b.unsaved = true
	if known != nil {
		known.Rate = max(known.Rate, rate)
		return
	}
	if len(b.learned.Ports) >= mostCount {
		return
	}
	b.learned.Ports = append(b.learned.Ports, LearnedPort{Device: p.Device, Port: p.Number, NodeGUID: p.NodeGUID, Rate: rate})
	b.learned.sort()
}

// Keys of growing: those of ports have a blank.
func portKey(p prober.Port) string { return fmt.Sprint(p.Device, " ", p.Number) }
func isPort(key string) bool       { return slices.Contains([]byte(key), ' ') }

// silent reports whether the device of a port is listed and did not answer.
func (b *Book) silent(f *Facts, key string) bool {
	return slices.ContainsFunc(f.Listed.Value, func(device string) bool {
		return len(key) > len(device) && key[:len(device)] == device && key[len(device)] == ' ' && len(f.of(device)) == 0
	})
}

// count learns a number that is larger than the one that is known.
func (b *Book) count(now time.Time, field Field, known bool, value int, best *int) {
	switch key := string(field); {
	case !known:
	case value <= *best:
		delete(b.growing, key)
	default:
		if steady := b.hold(key, now, uint64(value)); steady != nil {
			*best, b.unsaved = min(int(steady.value), mostCount), true
			delete(b.growing, key)
		}
	}
}

// hold notes that something better holds now, and returns it once it has held for
// long enough.
func (b *Book) hold(key string, now time.Time, value uint64) *streak {
	s := b.growing[key]
	if s == nil || now.Before(s.last) {
		b.growing[key] = &streak{first: now, last: now, n: 1, value: value}
		return nil
	}
	s.value = min(s.value, value)
	if now.Sub(s.last) >= learnEvery {
		s.last = now
		s.n++
	}
	if s.n < learnSightings || now.Sub(s.first) < learnFor {
		return nil
	}
	return s
}

// save has the file written if anything changed. Whoever holds the lock does not
// wait for the disk: a scrape must not hang with it.
func (b *Book) save() {
	if !b.options.Learn || b.options.StateDir == "" {
		b.unsaved = false
	}
	if !b.unsaved || b.saving {
		return
	}
	b.saving = true
	b.writes.Go(b.write)
}

// write writes the file until there is nothing new, and tells of a failure once.
func (b *Book) write() {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer func() { b.saving = false }()
	for b.unsaved {
		learned := b.learned.clone()
		b.unsaved = false
		b.mu.Unlock()
		err := learned.Write(b.options.StateDir)
		b.mu.Lock()
		if err != nil {
			if !b.broken {
				b.options.Tell("what is learned of this node does not outlive the exporter", err)
			}
			b.broken, b.unsaved = true, true
			return // the next change, or sighting, tries again
		}
		b.broken = false
	}
}

// Wait waits until what was learned is written, or could not be.
func (b *Book) Wait() { b.writes.Wait() }
