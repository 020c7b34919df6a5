package gpu

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
)

// How attempts are spaced out: at NVML when it does not start, at a GPU that is
// lost, and at starting NVML anew because a GPU stays lost.
const (
	startFirst, startMost = 10 * time.Second, 2 * time.Minute
	lostFirst, lostMost   = 10 * time.Second, 5 * time.Minute
	lostRestart           = 10 * time.Minute
)

const callPCIInfo = "nvmlDeviceGetPciInfo"

// closeWait is how long Close waits for a call in progress.
const closeWait = time.Second

// errReplaced says that the library on disk is not the one in memory.
var errReplaced = errors.New(soname + " was replaced after this process had loaded it")

// Reader reads all GPUs. Any goroutine may call its methods at any time; NVML
// calls are never made concurrently.
type Reader struct {
	options Options
	// slot holds one token: whoever put it there makes the calls and owns all that
	// follows. A channel, so that a context can end the wait for it.
	slot  chan struct{}
	calls calls
	io    sysread.IO

	loaded          file          // the library in use; zero: none, or not from a file
	unloadable      map[file]bool // found before it and not to be loaded
	up              bool
	state           State
	err             error
	stale           bool
	retry           sysread.Backoff
	installed       installation // that the last attempt was made with
	version         string
	driver          string
	confidential    sysread.Maybe[bool]
	started         time.Time // when NVML was initialised last
	listed          time.Time // when the GPUs were listed last
	count           int       // GPUs that NVML counts
	relist          bool
	unnamed, hidden int       // GPUs lost before their address was known, and those that may not be used
	devices         []*device // by address
	pairs           map[[2]*device]*pairState
	events          events
}

// NewReader returns a reader; the library is opened at the first Read.
func NewReader(options Options) *Reader {
	if options.Open == nil {
		options.Open = OpenLibrary
	}
	r := &Reader{options: options, slot: make(chan struct{}, 1), state: StateNoLibrary, events: events{byAddress: map[string]xids{}}}
	r.io.Files = options.Files
	r.calls.halt.Store(options.Quiesced)
	return r
}

// Name names the reader among the devices of the collector gpu.
func (*Reader) Name() string { return "nvml" }

// Calling returns the NVML call in progress, if there is one: it says where a Read
// hangs, or what it waits for.
func (r *Reader) Calling() (Call, bool) {
	if call := r.calls.current.Load(); call != nil {
		return *call, true
	}
	return Call{}, false
}

// Read reads all GPUs. It may hang in the driver, also behind the call of another
// method that does.
func (r *Reader) Read(now time.Time) (Reading, []sysread.ReadError) {
	r.slot <- struct{}{}
	defer r.release()
	r.calls.spent, r.calls.interrupted = 0, false
	v := &visit{calls: &r.calls}
	reading := Reading{}
	if !r.calls.halted() {
		r.start(now, v)
	}
	if r.up && !r.calls.interrupted {
		reading.GPUs = r.readGPUs(now, v)
		reading.Pairs = r.readPairs(now, v)
	}
	switch {
	case r.calls.interrupted: // what was read is not whole
		r.rest()
		reading.GPUs, reading.Pairs, v.errs = nil, nil, nil
	case r.up && v.down:
		r.giveUp(now, v)
		reading.GPUs, reading.Pairs = nil, nil
	case r.up:
		r.retry.Reset()
	}
	reading.State, reading.Err, reading.Stale = r.state, r.err, r.stale
	reading.Library, reading.Version, reading.DriverVersion = r.loaded.path, r.version, r.driver
	reading.Time = r.calls.spent
	if r.up {
		reading.LostUnnamed, reading.Hidden, reading.PerLink = r.unnamed, r.hidden, r.options.PerLink
		reading.Confidential = r.confidential
	}
	return reading, v.errs
}

// release ends the holding of the slot. What was quiesced meanwhile is shut down
// before: nobody else can.
func (r *Reader) release() {
	if r.calls.halt.Load() {
		r.rest()
	}
	<-r.slot
}

// giveUp ends a session in which NVML stopped working: the driver was unloaded,
// reloaded or exchanged. The next read begins anew.
func (r *Reader) giveUp(now time.Time, v *visit) {
	err := Error{v.last}
	r.shutDown()
	r.refuse(now, err, 1) // at once, the first time
}

// Close shuts NVML down: it holds no device file open any more. Behind a call that
// hangs it does not wait for long: NVML is shut down when that returns.
func (r *Reader) Close() {
	patience := time.NewTimer(closeWait)
	defer patience.Stop()
	end := func() {
		r.shutDown()
		<-r.slot
	}
	select {
	case r.slot <- struct{}{}:
		end()
	case <-patience.C:
		go func() {
			r.slot <- struct{}{}
			end()
		}()
	}
}

// start initialises NVML, unless it is up already or it is too early for another
// attempt.
func (r *Reader) start(now time.Time, v *visit) {
	if r.up && r.lostFor(now) {
		r.shutDown()
	}
	if r.up {
		return
	}
	if found := installed(&r.io, &r.options); found != r.installed {
		r.retry.Reset() // nothing that was refused before says anything of this one
		r.installed = found
	}
	if r.retry.Waiting(now) {
		return
	}
	if !driverLoaded(&r.io, r.options.Procfs) {
		r.state, r.err, r.stale = StateNoDriver, Error{nvml.ERROR_DRIVER_NOT_LOADED}, false
		r.version, r.driver = "", ""
		return // a file tells: no need to wait
	}
	if err := r.open(v); err != nil {
		r.refuse(now, err, 0)
		return
	}
	if r.stale = r.replaced(); r.stale {
		// Initialising would map the new library beside the old one, to which
		// all functions stay bound.
		if r.state == StateQuiesced { // else it is known how NVML failed
			r.state, r.err = StateFailed, errReplaced
		}
		r.retry.Refuse(now, 0, startFirst, startMost)
		return
	}
	if r.calls.halted() {
		return
	}
	if ret := r.calls.init(); ret != nvml.SUCCESS {
		v.fail("nvmlInit", Error{ret})
		r.refuse(now, Error{ret}, 0)
		return
	}
	r.up, r.state, r.err, r.started = true, StateUp, nil, now
	r.listed, r.relist = time.Time{}, true
	r.confidential = sysread.Maybe[bool]{}
	r.version = ask(v, "nvmlSystemGetNVMLVersion", r.calls.lib.SystemGetNVMLVersion).Value
	r.driver = ask(v, "nvmlSystemGetDriverVersion", r.calls.lib.SystemGetDriverVersion).Value
}

// refuse notes why NVML did not start. The first free times, it is tried again
// at once.
func (r *Reader) refuse(now time.Time, err error, free int) {
	r.state, r.err = stateOf(err), err
	r.version, r.driver = "", ""
	most := startMost
	if r.state == StateNoLibrary {
		most = startFirst // looking for a file costs nothing
	}
	r.retry.Refuse(now, free, startFirst, most)
}

// stateOf returns the state that a failure to start means.
func stateOf(err error) State {
	switch {
	case errors.Is(err, errNotFound), errors.Is(err, nvml.ERROR_LIBRARY_NOT_FOUND):
		return StateNoLibrary
	case errors.Is(err, nvml.ERROR_DRIVER_NOT_LOADED):
		return StateNoDriver
	case errors.Is(err, nvml.ERROR_NO_PERMISSION):
		return StateNoPermission
	case errors.Is(err, nvml.ERROR_LIB_RM_VERSION_MISMATCH):
		return StateVersionMismatch
	}
	return StateFailed
}

// open opens the library, once. The first that can be loaded is taken: a
// directory may hold one for another architecture.
func (r *Reader) open(v *visit) error {
	if r.calls.lib != nil {
		return nil
	}
	var failed error
	r.unloadable = map[file]bool{}
	for _, candidate := range search(&r.io, r.options.Roots) {
		lib, err := r.options.Open(candidate.path)
		if err != nil {
			if candidate.path != "" { // a loader that finds nothing is no failure
				failed = cmp.Or(failed, err)
				r.unloadable[candidate] = true
				v.fail(soname, err)
			}
			continue
		}
		r.calls.use(lib)
		r.loaded = candidate
		if candidate.path == "" {
			r.loaded, _ = mapped(&r.io)
		}
		return nil
	}
	if failed != nil {
		return failed
	}
	return errNotFound
}

// replaced reports whether the library on disk is another than the loaded one.
func (r *Reader) replaced() bool {
	if r.loaded.path == "" {
		return false
	}
	for _, found := range search(&r.io, r.options.Roots) {
		if found.path != "" && !r.unloadable[found] {
			return found != r.loaded
		}
	}
	now, err := stat(&r.io, r.loaded.path)
	return err == nil && now != r.loaded
}

// shutDown gives NVML back. It is not asked whether that works: it is told when
// NVML does not work any more, too.
func (r *Reader) shutDown() {
	if !r.up {
		return
	}
	r.events.free(&visit{calls: &r.calls, closing: true})
	ask(&visit{calls: &r.calls, closing: true}, "nvmlShutdown", status(r.calls.lib.Shutdown))
	r.up, r.devices, r.count, r.unnamed, r.hidden = false, nil, 0, 0, 0
}

// lostFor reports whether a GPU is lost and NVML has been up for long: one that
// was reset comes back only to a fresh NVML.
func (r *Reader) lostFor(now time.Time) bool {
	lost := r.unnamed > 0 || slices.ContainsFunc(r.devices, func(d *device) bool { return d.wasLost })
	return lost && now.Sub(r.started) >= lostRestart
}

// readGPUs reads every GPU.
func (r *Reader) readGPUs(now time.Time, v *visit) []GPU {
	r.list(now, v)
	r.register(v)
	r.poll(now, v)
	gpus := make([]GPU, 0, len(r.devices))
	refuse := v.refuses()
	for i, d := range r.devices {
		if v.down {
			break
		}
		gpu, about := r.readGPU(now, d)
		gpu.Xids = r.events.shown(d)
		gpus = append(gpus, gpu)
		v.absorb(about)
		refuse = about.refuses() && (refuse || i == 0)
		r.relist = r.relist || len(about.errs) > 0
	}
	if refuse { // every GPU: what the library itself remembers does not count
		v.down, v.last = true, nvml.ERROR_UNKNOWN
	}
	return gpus
}

// absorb adds what a visit to a GPU found to the visit of NVML.
func (v *visit) absorb(gpu *visit) {
	v.errs = append(v.errs, gpu.errs...)
	v.unknown += gpu.unknown
	v.answered += gpu.answered
	if gpu.down {
		v.down, v.last = true, gpu.last
	}
}
