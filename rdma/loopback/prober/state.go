package prober

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// stateVersion is the version of the state file's form. A file of another one is
// not read.
const stateVersion = 1

// Names in the state directory.
const (
	stateFile = "state.json"
	stateLock = "lock"
)

// mostState bounds the state file: 64 pairs are some 600 KiB.
const mostState = 64 << 20

// State is what outlives the process.
type State struct {
	Version int       `json:"version"`
	Written time.Time `json:"written"`
	BootID  string    `json:"boot_id"` // results do not outlive a boot
	// Driver and Peermem are the versions of the modules when it was written, nil
	// if they were not seen.
	Driver  *string `json:"driver"`
	Peermem *string `json:"peermem"`
	// QuiescedUntil is when the quiesce in force ends, nil for none.
	QuiescedUntil *time.Time `json:"quiesced_until"`
	// Running is a run in progress in the exporter's own process: if it is there at
	// a start, the exporter ended during it.
	Running *Pair `json:"running"`
	// Isolated is why no run is made in the exporter's own process during this boot.
	Isolated  string       `json:"isolated"`
	Pairs     []PairState  `json:"pairs"`
	Ports     []PortRecord `json:"ports"`
	Baselines []*Baseline  `json:"baselines"`
}

// PairState is what is kept of a pair.
type PairState struct {
	Candidate
	Attempted    map[Depth]time.Time `json:"attempted"`
	Succeeded    map[Depth]time.Time `json:"succeeded"`
	Full         *Completed          `json:"full"`
	Registration *Completed          `json:"registration"` // nil if it is that of Full
	Withdrawn    string              `json:"withdrawn"`
}

// Standing is PairStatus.Standing of what is kept.
func (s *PairState) Standing() *Completed { return standing(s.Full, s.Registration) }

// PortRecord says that a port was ACTIVE.
type PortRecord struct {
	Device   string    `json:"device"`
	Port     int       `json:"port"`
	NodeGUID string    `json:"node_guid"`
	Active   time.Time `json:"active"` // when it was seen so last, as of the file's writing
}

// ErrStateInUse says that a running exporter holds the state.
var ErrStateInUse = errors.New("a running exporter holds the state")

// LockState keeps a state directory for this process, or fails with
// ErrStateInUse. It makes the directory.
func LockState(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, stateLock)
	file, err := os.OpenFile(filepath.Clean(path), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrStateInUse, path)
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return func() { _ = file.Close() }, nil
}

// ReadState reads the state file of a directory. That there is none is no error:
// the State is empty. Nor is it with an error, for a fresh start.
func ReadState(dir string) (*State, error) {
	path := filepath.Join(dir, stateFile)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &State{Version: stateVersion}, nil
	case err != nil:
		return &State{Version: stateVersion}, err
	case !info.Mode().IsRegular() || info.Size() > mostState:
		return &State{Version: stateVersion}, fmt.Errorf("%s: no file of at most %d bytes", path, mostState)
	}
	text, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return &State{Version: stateVersion}, err
	}
	s, err := parseState(text)
	if err != nil {
		return &State{Version: stateVersion}, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

func parseState(text []byte) (*State, error) {
	var head struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, err
	}
	if head.Version == nil || *head.Version != stateVersion {
		return nil, fmt.Errorf("no state of version %d", stateVersion)
	}
	var s State
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	s.Pairs = slices.DeleteFunc(s.Pairs, func(p PairState) bool { return p.GPU == "" || p.Device == "" })
	s.Baselines = slices.DeleteFunc(s.Baselines, func(b *Baseline) bool { return b == nil || len(b.Rates) > baselineRuns })
	return &s, nil
}

// Write puts the state file in place at once: a reader sees the old one or the
// new one, also after a power failure.
func (s *State) Write(dir string) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(s); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(dir, stateFile), text.Bytes(), 0o600, renameio.WithTempDir(dir))
}

// Forget drops results and baselines of matching pairs, "" matching any, and
// returns of how many pairs there were some.
func (s *State) Forget(gpu, device string) int {
	matches := func(at Pair) bool { return (gpu == "" || gpu == at.GPU) && (device == "" || device == at.Device) }
	forgotten := map[Pair]bool{}
	s.Pairs = slices.DeleteFunc(s.Pairs, func(p PairState) bool {
		if matches(p.Pair) {
			forgotten[p.Pair] = true
		}
		return matches(p.Pair)
	})
	s.Baselines = slices.DeleteFunc(s.Baselines, func(b *Baseline) bool {
		if matches(b.Pair) {
			forgotten[b.Pair] = true
		}
		return matches(b.Pair)
	})
	return len(forgotten)
}

// load takes what the state file holds. It is called before there are others.
func (p *Prober) load() {
	if p.options.StateDir == "" {
		return
	}
	s, err := ReadState(p.options.StateDir)
	if err != nil {
		p.tell([]Event{{Kind: EventState, Text: "beginning afresh", Err: err}})
	}
	sameBoot := s.BootID != "" && s.BootID == p.options.BootID
	now := time.Now()
	for i := range s.Pairs {
		kept := s.Pairs[i].pair(p.options.Rand.Float64())
		kept.notAfter(now)
		if !sameBoot {
			kept.invalidate(WithdrawnReboot, "reboot")
		}
		p.rest[kept.Pair] = kept
	}
	for _, record := range s.Ports {
		p.ports[Port{record.Device, record.Port}] = record
	}
	for _, line := range s.Baselines {
		p.baselines[baselineKey{line.Pair, line.Identity}] = line
	}
	if sameBoot && s.QuiescedUntil != nil {
		p.quiescedUntil = *s.QuiescedUntil
	}
	if sameBoot {
		p.loadIsolation(s)
	}
	if sameBoot && s.Driver != nil {
		p.host.driver, p.host.driverSeen = *s.Driver, true
	}
	if sameBoot && s.Peermem != nil {
		p.host.peermem, p.host.peermemSeen = *s.Peermem, true
	}
}

// loadIsolation keeps what may end the exporter out of its process, if it did so
// once. What ended it is not known: it may have been killed.
func (p *Prober) loadIsolation(s *State) {
	p.crashed = s.Isolated
	if s.Running != nil && p.options.Isolation == InProcess {
		p.crashed = fmt.Sprintf("the exporter ended during a run of %s and %s in its process", s.Running.GPU, s.Running.Device)
		p.unsaved = true
	}
	if p.crashed != "" && p.options.Isolation == InProcess {
		p.isolate = p.crashed
		p.tell([]Event{{Kind: EventIsolation, Text: p.crashed}})
	}
}

// notAfter takes times of a clock that was ahead for now: they would be young for
// ever.
func (p *pair) notAfter(now time.Time) {
	clamp := func(at *time.Time) {
		if at.After(now) {
			*at = now
		}
	}
	for _, times := range []map[Depth]time.Time{p.attempted, p.succeeded} {
		for depth, at := range times {
			clamp(&at)
			times[depth] = at
		}
	}
	for _, c := range []*Completed{p.full, p.registration} {
		if c != nil {
			clamp(&c.Time)
			clamp(&c.Staged)
		}
	}
}

func (s *PairState) pair(phase float64) *pair {
	kept := newPair(s.Candidate, phase)
	maps.Copy(kept.attempted, s.Attempted)
	maps.Copy(kept.succeeded, s.Succeeded)
	kept.full, kept.registration, kept.withdrawn = s.Full, s.Registration, s.Withdrawn
	if kept.registration == nil {
		kept.registration = s.Full
	}
	return kept
}

// save writes the state file if anything changed. It tells of a failure once.
func (p *Prober) save() {
	if p.options.StateDir == "" {
		return
	}
	p.mu.Lock()
	if !p.unsaved {
		p.mu.Unlock()
		return
	}
	p.unsaved = false
	state := p.state()
	p.mu.Unlock()

	p.saving.Lock()
	err := state.Write(p.options.StateDir)
	p.saving.Unlock()

	p.mu.Lock()
	news := err != nil && !p.stateBroken
	p.stateBroken = err != nil
	p.unsaved = p.unsaved || err != nil
	p.mu.Unlock()
	if news {
		p.tell([]Event{{Kind: EventState, Text: "results do not outlive the exporter", Err: err}})
	}
}

func (p *Prober) state() *State {
	s := &State{Version: stateVersion, Written: time.Now().UTC().Truncate(time.Second), BootID: p.options.BootID}
	if p.host.driverSeen {
		driver := p.host.driver
		s.Driver = &driver
	}
	if p.host.peermemSeen {
		peermem := p.host.peermem
		s.Peermem = &peermem
	}
	if until := p.quiescedUntil; !until.IsZero() {
		s.QuiescedUntil = &until
	}
	if p.running != nil && p.inProcess {
		running := *p.running
		s.Running = &running
	}
	s.Isolated = p.crashed
	for _, of := range []map[Pair]*pair{p.pairs, p.rest} {
		for _, at := range slices.SortedFunc(maps.Keys(of), comparePairs) {
			s.Pairs = append(s.Pairs, of[at].state())
		}
	}
	for port, record := range p.ports {
		record.Device, record.Port = port.Device, port.Number
		s.Ports = append(s.Ports, record)
	}
	slices.SortFunc(s.Ports, func(a, b PortRecord) int {
		return comparePairs(Pair{Device: a.Device, Port: a.Port}, Pair{Device: b.Device, Port: b.Port})
	})
	for _, line := range p.baselines {
		kept := *line
		kept.Rates = slices.Clone(line.Rates)
		s.Baselines = append(s.Baselines, &kept)
	}
	slices.SortFunc(s.Baselines, func(a, b *Baseline) int {
		if order := comparePairs(a.Pair, b.Pair); order != 0 {
			return order
		}
		return a.Last.Compare(b.Last)
	})
	return s
}

func (p *pair) state() PairState {
	s := PairState{
		Candidate: p.candidate(), Attempted: maps.Clone(p.attempted), Succeeded: maps.Clone(p.succeeded),
		Full: p.full, Registration: p.registration, Withdrawn: p.withdrawn,
	}
	if s.Registration == s.Full {
		s.Registration = nil
	}
	return s
}
