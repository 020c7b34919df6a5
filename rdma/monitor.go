package rdma

import (
	"sync"
	"sync/atomic"
	"time"

	"gdr_exporter/rdma/nldev"
)

// monitorRetry is how long a Monitor waits until it tries to listen again: RDMA
// may be loaded later.
const monitorRetry = time.Minute

// Monitor counts the kernel's events about RDMA devices that come, go and change
// their names. Scrapes list the devices anew each time; events tell of what
// happened in between.
type Monitor struct {
	counts  []atomic.Uint64 // by nldev.EventType; the last one is all others
	up      atomic.Bool     // it listens now
	heard   atomic.Bool     // it has listened once
	changed atomic.Pointer[func()]

	mu     sync.Mutex
	socket *nldev.Monitor
	done   chan struct{}
}

// ReplayMonitor returns a Monitor that hears nothing and says what another one
// said.
func ReplayMonitor(counts map[string]uint64, up bool) *Monitor {
	m := &Monitor{counts: make([]atomic.Uint64, len(nldev.EventNames)+1), done: make(chan struct{})}
	m.heard.Store(counts != nil)
	m.up.Store(up)
	for i := range m.counts {
		m.counts[i].Store(counts[eventName(i)])
	}
	return m
}

// StartMonitor listens until Close, as soon as there is something to hear:
// before Linux 6.12 there never is.
func StartMonitor() *Monitor { return startMonitor(nldev.Listen) }

// NewMonitor listens on an open socket until Close.
func NewMonitor(socket *nldev.Monitor) *Monitor {
	return startMonitor(func() (*nldev.Monitor, error) { return socket, nil })
}

func startMonitor(listen func() (*nldev.Monitor, error)) *Monitor {
	m := &Monitor{counts: make([]atomic.Uint64, len(nldev.EventNames)+1), done: make(chan struct{})}
	go m.run(listen)
	return m
}

// run listens, and waits and tries again when that fails or ends.
func (m *Monitor) run(listen func() (*nldev.Monitor, error)) {
	for {
		if socket, err := listen(); err == nil && m.use(socket) {
			m.up.Store(true)
			m.heard.Store(true)
			_ = socket.Run(m.hear) // it ends: Events says that nothing is heard now
			m.up.Store(false)
		}
		select {
		case <-m.done:
			return
		case <-time.After(monitorRetry):
		}
	}
}

// use takes up a socket, unless the Monitor is closed.
func (m *Monitor) use(socket *nldev.Monitor) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.done:
		_ = socket.Close()
		return false
	default:
		m.socket = socket
		return true
	}
}

// OnChange has f called at each event.
func (m *Monitor) OnChange(f func()) { m.changed.Store(&f) }

// Close stops listening.
func (m *Monitor) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.done)
	if m.socket == nil {
		return nil
	}
	return m.socket.Close()
}

func (m *Monitor) hear(event nldev.Event) {
	m.counts[min(int(event.Type), len(m.counts)-1)].Add(1)
	if changed := m.changed.Load(); changed != nil {
		(*changed)()
	}
}

// Events returns the number of events heard so far by type, nil if there never
// was anything to hear, and whether it listens now. Types that nldev does not
// know are counted as "other".
func (m *Monitor) Events() (counts map[string]uint64, up bool) {
	if m == nil || !m.heard.Load() {
		return nil, false
	}
	counts = make(map[string]uint64, len(m.counts))
	for i := range m.counts {
		counts[eventName(i)] = m.counts[i].Load()
	}
	return counts, m.up.Load()
}

// eventName names a place in Monitor.counts.
func eventName(i int) string {
	if i < len(nldev.EventNames) {
		return nldev.EventNames[i]
	}
	return "other"
}
