package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/vsock"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/loopback/prober"
)

const (
	// leastLife is how long a process lives at least before it restarts itself for
	// a library, so that a cause which a restart does not cure costs little.
	leastLife = 10 * time.Second
	// mostRestarts is how often within restartSpan the process restarts itself for
	// CUDA; after that it goes on with runs in child processes.
	mostRestarts = 2
	restartSpan  = time.Hour
	// retryRestart is how often is looked whether what keeps a restart back is over.
	retryRestart = 2 * time.Second
	// mostLookPause is the longest time between two Snapshots that are taken for that:
	// a device may hang for days.
	mostLookPause = time.Minute
)

// cause is a kind of reason for a fresh process.
type cause int

// The causes, in the order in which they are looked at.
const (
	causeQuiesce cause = iota // libcuda keeps device files open until the process ends
	causeCUDA                 // CUDA does not work in this process any more
	causeLibrary              // the C library never unmaps a library whose symbols were bound
	causes
)

// restarter is told why the process should be replaced by a fresh one.
type restarter struct {
	began   time.Time
	now     func() time.Time
	isolate func(reason string) // makes runs in child processes from now on
	logger  *zap.Logger
	wanted  chan struct{} // holds one wish to look

	mu      sync.Mutex
	wishes  [causes]string // the reason of each that is wanted; "": it is not
	blocked string         // what keeps the restart back
	// history are the times of restarts for CUDA and for a quiesce, within
	// restartSpan; isolated is why runs are made in child processes, "" if this is
	// none of the restarts' doing.
	history  []time.Time
	isolated string
}

func newRestarter(logger *zap.Logger, from *heritage) *restarter {
	return &restarter{
		began: time.Now(), now: time.Now, isolate: func(string) {}, logger: logger, wanted: make(chan struct{}, 1),
		history: from.Restarts, isolated: from.Isolated,
	}
}

// ask asks for a restart.
func (r *restarter) ask(c cause, reason string) {
	r.mu.Lock()
	news := r.wishes[c] != reason
	r.wishes[c] = reason
	r.mu.Unlock()
	if !news { // each Snapshot asks, and an answer takes one
		return
	}
	select {
	case r.wanted <- struct{}{}:
	default:
	}
}

// withdraw takes a wish back.
func (r *restarter) withdraw(c cause) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wishes[c] = ""
	if r.wishes == [causes]string{} {
		r.blocked = ""
	}
}

// look asks for a restart if the Snapshot shows that NVML's library needs one.
func (r *restarter) look(s *snapshot.Snapshot) {
	switch nvml := s.NVML(); {
	case nvml == nil: // not known
	case !nvml.Stale:
		r.withdraw(causeLibrary)
	case r.now().Sub(r.began) >= leastLife:
		r.ask(causeLibrary, "the driver's library was replaced")
	}
}

// next returns the restart to be made, if there is one.
func (r *restarter) next() (c cause, reason string, wanted bool) {
	r.mu.Lock()
	recent := len(r.recent())
	refused := r.wishes[causeCUDA] != "" && recent >= mostRestarts
	if refused {
		r.isolated = fmt.Sprintf("%d restarts within an hour, then: %s", recent, r.wishes[causeCUDA])
		r.wishes[causeCUDA] = ""
	}
	isolated := r.isolated
	c, reason, wanted = r.first()
	r.mu.Unlock()
	if refused {
		r.isolate(isolated)
	}
	return c, reason, wanted
}

// first is the first wish.
func (r *restarter) first() (c cause, reason string, wanted bool) {
	for c, reason := range r.wishes {
		if reason != "" {
			return cause(c), reason, true
		}
	}
	return 0, "", false
}

// recent are the restarts that count.
func (r *restarter) recent() []time.Time {
	since := r.now().Add(-restartSpan)
	r.history = slices.DeleteFunc(r.history, func(t time.Time) bool { return t.Before(since) })
	return r.history
}

// block notes what keeps a restart back, and logs it once. Where CUDA does not work
// here any more, measurements go on in child processes meanwhile.
func (r *restarter) block(c cause, reason, by string) {
	r.mu.Lock()
	_, _, wanted := r.first() // else it was taken back meanwhile
	news := wanted && r.blocked == ""
	if wanted {
		r.blocked = by
	}
	r.mu.Unlock()
	if news {
		r.logger.Warn("a fresh start is needed, but it would wait for what hangs; going on without", zap.String("reason", reason), zap.String("hangs", by))
	}
	if wanted && c == causeCUDA {
		r.isolate(reason + "; a fresh start would wait for what hangs: " + by)
	}
}

// state is what restart is wanted and what keeps it back; "" for nothing.
func (r *restarter) state() (reason, blocked string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, reason, _ = r.first()
	return reason, r.blocked
}

// leave is what the process after this one is to know of restarts. An operator
// who quiesces is never refused, but libcuda is kept out of the process then.
func (r *restarter) leave(h *heritage, c cause, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	recent := r.recent()
	if c == causeQuiesce && len(recent) >= mostRestarts && r.isolated == "" {
		r.isolated = fmt.Sprintf("%d restarts within an hour, then: %s", len(recent), reason)
	}
	if c != causeLibrary {
		recent = append(recent, r.now())
	}
	h.Restarts, h.Isolated = recent, r.isolated
}

// errRestart ends serving for a restart.
var errRestart = errors.New("restart")

// wait returns when the daemon shall end: nil to stop, errRestart to start
// afresh, else why it cannot go on.
func (d *daemon) wait(ctx context.Context, servers *servers) error {
	for {
		var retry <-chan time.Time
		if reason, blocked := d.restarter.state(); reason != "" && blocked != "" {
			retry = time.After(retryRestart)
		}
		select {
		case err := <-servers.ended:
			return err
		case <-ctx.Done():
			return nil
		case <-d.endsLate:
			d.startProber()
			continue
		case <-d.restarter.wanted:
			d.lookout = lookout{}
		case <-retry:
		}
		c, reason, wanted := d.restarter.next()
		if !wanted {
			continue
		}
		hangs := d.hangs(ctx)
		switch {
		case isDone(ctx): // then anything seems to hang
			return nil
		case hangs == "":
			return errRestart
		}
		d.restarter.block(c, reason, hangs)
	}
}

// hangs names what hangs, "" if nothing does: execve would wait for it, and
// nobody would serve.
func (d *daemon) hangs(ctx context.Context) string {
	if what := d.probeHangs(ctx); what != "" {
		return what
	}
	return d.lookout.look(time.Now(), func() string { return deviceHangs(d.snapshot(ctx)) })
}

// probeHangs names what hangs of the prober.
func (d *daemon) probeHangs(ctx context.Context) string {
	if d.prober.Hanging() {
		return "a measurement"
	}
	if device := d.proberHost.hanging(ctx); device != "" {
		return "reading " + device
	}
	return ""
}

// lookout looks ever more rarely while it sees that something hangs.
type lookout struct {
	hangs string // what the last look saw
	next  time.Time
	pause time.Duration
}

// look returns what hangs, by a look or, if that was lately, by the last one.
func (l *lookout) look(now time.Time, see func() string) string {
	if l.hangs != "" && now.Before(l.next) {
		return l.hangs
	}
	l.hangs = see()
	l.pause = min(max(2*l.pause, retryRestart), mostLookPause)
	l.next = now.Add(l.pause)
	return l.hangs
}

// deviceHangs names a device that did not answer.
func deviceHangs(s *snapshot.Snapshot) string {
	for _, status := range s.Status() {
		if errors.Is(status.Err, snapshot.ErrListStuck) {
			return "listing the devices of collector " + status.Collector
		}
		for _, device := range status.Devices {
			if device.StuckFor > 0 {
				return "reading " + device.Name
			}
		}
	}
	return ""
}

// restart replaces the process. The listening sockets stay open meanwhile, so
// that a scrape waits for a moment rather than being refused. It returns if that
// cannot be done: errStay if nothing was lost by trying.
func (d *daemon) restart(ctx context.Context, servers *servers) error {
	c, reason, wanted := d.restarter.next()
	if !wanted {
		return errStay
	}
	if hangs := d.quitMeasuring(ctx); hangs != "" {
		d.restarter.block(c, reason, hangs)
		return errStay
	}
	d.logger.Info("starting afresh", zap.String("reason", reason))
	h := &heritage{Listeners: servers.keep(), Control: d.controlSocket.keep()}
	if err := d.stop(servers); err != nil {
		return err
	}
	// A command may have been answered until now.
	h.QuiescedUntil, h.Hung = d.quiet.inForceUntil(), d.prober.HungRuns()
	d.restarter.leave(h, c, reason)
	d.taker.Close()
	if isDone(ctx) { // told to end meanwhile
		return nil
	}
	return d.exec(h)
}

// quitProber ends the prober for a restart. If something of it hangs it returns
// what that is, and the prober works on.
func (d *daemon) quitProber(ctx context.Context) (hangs string) {
	if !d.stopProber(ctx) {
		d.endsLate = d.proberEnded
		return "a measurement"
	}
	if hangs = d.probeHangs(ctx); hangs != "" {
		d.startProber()
	}
	return hangs
}

// quitMeasuring is quitProber, with sessions with other nodes before it.
func (d *daemon) quitMeasuring(ctx context.Context) (hangs string) {
	if d.peers == nil {
		return d.quitProber(ctx)
	}
	if !d.peers.stop() {
		d.peers.whenEnded(d.restartPeers)
		return peersHang
	}
	if hangs = d.quitProber(ctx); hangs != "" {
		d.restartPeers()
	}
	return hangs
}

func isDone(ctx context.Context) bool { return ctx.Err() != nil }

// errStay says that the daemon goes on as if no restart had been tried.
var errStay = errors.New("not restarted")

// closeOnExec has all descriptors above 2 closed by execve but those kept: not
// all versions of libcuda see to it for theirs.
func closeOnExec(kept []int) {
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil { // Linux before 5.11
		entries, _ := os.ReadDir("/proc/self/fd")
		for _, entry := range entries {
			var fd int
			if n, _ := fmt.Sscan(entry.Name(), &fd); n == 1 && fd > 2 {
				unix.CloseOnExec(fd)
			}
		}
	}
	for _, fd := range kept {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	}
}

// heritageEnv holds the heritage of a process that took another's place, as JSON.
const heritageEnv = "GDR_EXPORTER_HERITAGE"

// heritage is what a process leaves to the one that takes its place.
type heritage struct {
	// Listeners are the descriptors of the listening sockets in their order, -1 for
	// one that is to be opened anew; nil: there was no process before.
	Listeners     []int       `json:"listeners"`
	Control       *keptSocket `json:"control,omitempty"`
	Restarts      []time.Time `json:"restarts,omitempty"`
	Isolated      string      `json:"isolated,omitempty"`
	QuiescedUntil time.Time   `json:"quiesced_until,omitzero"`
	// Hung are the runs that hung: nothing touches their GPUs and NICs any more.
	Hung []prober.HungRun `json:"hung,omitempty"`
}

// keptSocket is the control socket: its descriptor, and the file of its name.
type keptSocket struct {
	Descriptor int    `json:"descriptor"`
	File       fileID `json:"file"`
}

// inherit takes what the process before left, an empty heritage if there was none.
func inherit() (*heritage, error) {
	text, found := os.LookupEnv(heritageEnv)
	if !found {
		return &heritage{}, nil
	}
	_ = os.Unsetenv(heritageEnv) // it is not for child processes
	h := &heritage{}
	if err := json.Unmarshal([]byte(text), h); err != nil {
		return nil, usagef("%s=%s: %w", heritageEnv, text, err)
	}
	return h, nil
}

// exec replaces the process, and returns only if it cannot.
func (h *heritage) exec() error {
	text, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	closeOnExec(h.descriptors())
	return fmt.Errorf("restart: %w", syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), heritageEnv+"="+string(text))))
}

// descriptors are those that outlive the program.
func (h *heritage) descriptors() []int {
	kept := slices.DeleteFunc(slices.Clone(h.Listeners), func(fd int) bool { return fd < 0 })
	if h.Control != nil {
		kept = append(kept, h.Control.Descriptor)
	}
	return kept
}

// keep returns descriptors of the listening sockets that outlive this program.
func (s *servers) keep() []int {
	kept := make([]int, 0, len(s.listeners))
	for _, listener := range s.listeners {
		kept = append(kept, duplicate(listener))
	}
	return kept
}

// duplicate returns a descriptor of a listening socket that belongs to no
// os.File, which would close it as garbage before the exec; -1 if there is none.
func duplicate(listener net.Listener) int {
	filer, ok := listener.(interface{ File() (*os.File, error) })
	if !ok {
		return -1
	}
	file, err := filer.File()
	if err != nil {
		return -1
	}
	defer file.Close()
	raw, err := file.SyscallConn()
	if err != nil {
		return -1
	}
	fd := -1
	// File.Fd would make the socket a blocking one.
	if err := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 3) }); err != nil {
		return -1
	}
	return fd // -1 if it could not be duplicated
}

// listenerOf makes a listener of a descriptor that was left.
func listenerOf(fd int) (net.Listener, error) {
	if fd < 3 {
		return nil, fmt.Errorf("%d is no descriptor of a listening socket", fd)
	}
	file := os.NewFile(uintptr(fd), "listener")
	defer file.Close()
	listener, err := net.FileListener(file)
	if err == nil {
		return listener, nil
	}
	if other, vsockErr := vsock.FileListener(file); vsockErr == nil {
		return other, nil
	}
	return nil, err
}
