package peer

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"gdr_exporter/rdma/peer/schedule"
	"gdr_exporter/rdma/peer/session"
	"gdr_exporter/rdma/peer/targets"
)

// fast is a schedule whose frames are as short as they can be.
var fast = schedule.Options{Round: 4 * time.Second, Degree: 1, Frame: 2 * time.Second, Pings: 1, Ping: time.Second, Tries: 2}

// patient are limits that a slow machine keeps.
var patient = session.Limits{Handshake: 20 * time.Second, Message: 20 * time.Second, Step: 20 * time.Second, Idle: time.Minute, Deadline: time.Minute, Grace: 20 * time.Second}

// pace is how fast the clocks of a test go: a slot of a second takes 200 ms.
const pace = 5

// listDouble is a list that a test changes.
type listDouble struct {
	mu      sync.Mutex
	list    *targets.List
	err     error
	changed chan struct{}
}

func (l *listDouble) List() *targets.List { return l.Status().List }

func (l *listDouble) Status() targets.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return targets.Status{List: l.list, Err: l.err, Sources: []targets.Source{{Name: "targets.yml", Targets: l.list.Len(), Err: l.err}}}
}

func (l *listDouble) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

func (l *listDouble) set(list *targets.List) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = list
	close(l.changed)
	l.changed = make(chan struct{})
}

// member is a node of a cluster and its runner.
type member struct {
	*machine
	t        *testing.T
	address  string
	list     *listDouble
	options  Options
	runner   *Runner
	stop     context.CancelFunc
	ended    chan error
	mu       sync.Mutex
	events   []Event
	listener net.Listener
}

func (n *member) event(e Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, e)
}

func (n *member) told(kind EventKind) (all []Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.events {
		if e.Kind == kind {
			all = append(all, e)
		}
	}
	return all
}

// cluster are nodes in one process, over real TCP.
type cluster struct {
	*fabric
	t     *testing.T
	nodes []*member
}

func newCluster(t *testing.T, count int, change func(i int, n *member)) *cluster {
	t.Helper()
	t.Parallel()
	c := &cluster{fabric: newFabric(), t: t}
	began := time.Now()
	for i := range count {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		n := &member{machine: newMachine(c.fabric, fmt.Sprintf("node%02d", i), 2), t: t, address: l.Addr().String(), listener: l}
		n.options = Options{
			Schedule: fast, Host: n.machine, Opener: n.machine, Limits: patient, Build: "1.2.3", Event: n.event, Bytes: 1 << 30, MaxAge: 24 * time.Hour, pace: pace, least: time.Minute,
			Now: func() time.Time { return time.Unix(1_800_000_000, 0).Add(time.Since(began) * pace) },
		}
		c.nodes = append(c.nodes, n)
	}
	for i, n := range c.nodes {
		n.list = &listDouble{list: c.listFor(n, c.nodes), changed: make(chan struct{})}
		n.options.Watcher = n.list
		if change != nil {
			change(i, n)
		}
	}
	return c
}

// listFor is the list of some nodes as one of them sees it.
func (c *cluster) listFor(self *member, nodes []*member) *targets.List {
	var all []targets.Target
	for _, n := range nodes {
		address := netip.MustParseAddrPort(n.address)
		all = append(all, targets.Target{Host: address.Addr().String(), Addr: address.Addr(), Port: address.Port(), Labels: map[string]string{"node": n.name}})
	}
	return targets.NewList(all, targets.Self{Given: self.address})
}

func (n *member) start() {
	n.t.Helper()
	if n.listener == nil {
		l, err := net.Listen("tcp", n.address)
		if err != nil {
			n.t.Fatal(err)
		}
		n.listener = l
	}
	n.options.Listener, n.listener = n.listener, nil
	r, err := New(n.options)
	if err != nil {
		n.t.Fatal(err)
	}
	n.runner = r
	ctx, cancel := context.WithCancel(context.Background())
	n.stop, n.ended = cancel, make(chan error, 1)
	go func() { n.ended <- r.Run(ctx) }()
	n.t.Cleanup(n.end)
}

func (n *member) end() {
	if n.stop == nil {
		return
	}
	n.stop()
	n.stop = nil
	select {
	case err := <-n.ended:
		if err != nil {
			n.t.Errorf("%s: Run: %v", n.name, err)
		}
	case <-time.After(time.Minute):
		n.t.Errorf("%s: Run does not end", n.name)
	}
}

func (c *cluster) start() {
	c.t.Helper()
	for _, n := range c.nodes {
		n.start()
	}
}

// peer is what a node knows of another.
func (n *member) peer(other *member) Peer {
	for _, p := range n.runner.Status().Peers {
		if p.Target == other.address {
			return p
		}
	}
	return Peer{}
}

// path is what a node knows of its first port's path to another.
func (n *member) path(other *member) Path {
	for _, p := range n.peer(other).Paths {
		if p.Own == n.rails[0].Port {
			return p
		}
	}
	return Path{}
}

// until waits for a condition, for much longer than it takes.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 90s: %s", what)
		}
	}
}

// TestMain checks that no goroutine is left when all tests have ended: they run side by
// side, since they wait for most of their time.
func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	code := m.Run()
	for end := time.Now().Add(30 * time.Second); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			stacks := make([]byte, 1<<20)
			fmt.Printf("%d goroutines, %d before:\n%s\n", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
			code = 1
			break
		}
	}
	os.Exit(code)
}

// covered reports whether a node has measured all others well, in all ways.
func covered(n *member, others int) bool {
	st := n.runner.Status()
	good := 0
	for _, p := range st.Peers {
		paths := 0
		for _, path := range p.Paths {
			wide := n.options.Schedule.Degree == 0 || path.measured(session.Host) != nil && path.measured(session.GPU) != nil
			if path.Ping != nil && path.Ping.Class == ClassFine && wide {
				paths++
			}
		}
		if p.Listener == ClassFine && paths == len(n.rails) {
			good++
		}
	}
	return good == others
}

// alone checks that no node was in two measurements at once.
func (c *cluster) alone() {
	c.t.Helper()
	for _, n := range c.nodes {
		if most := n.together(); most > 1 {
			c.t.Errorf("%s had %d endpoints open at once", n.name, most)
		}
	}
}

// TestCoverage: clusters of some sizes measure each pair, both begin at some time, and
// no node is in two measurements at once.
func TestCoverage(t *testing.T) {
	for _, count := range []int{2, 3, 5} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			c := newCluster(t, count, func(_ int, n *member) {
				n.options.Schedule.Degree, n.options.Schedule.Tries = min(count-1, 2), 1
			})
			c.start()
			for _, n := range c.nodes {
				until(t, n.name+" covers all", func() bool { return covered(n, count-1) })
			}
			c.alone()
			for _, n := range c.nodes {
				n.checkStatus(count)
			}
		})
	}
}

// TestCoverageOfMany: in a pass each pair of sixteen has pinged, whoever began.
func TestCoverageOfMany(t *testing.T) {
	c := newCluster(t, 16, func(_ int, n *member) {
		n.options.Schedule.Degree, n.options.Schedule.Pings = 0, 2
		n.rails = n.rails[:1]
	})
	c.start()
	for i, a := range c.nodes {
		for _, b := range c.nodes[:i] {
			until(t, a.name+" and "+b.name+" have pinged", func() bool {
				one, other := a.path(b).Ping, b.path(a).Ping
				return one != nil && one.Class == ClassFine || other != nil && other.Class == ClassFine
			})
		}
	}
	c.alone()
}

func (n *member) checkStatus(count int) {
	n.t.Helper()
	st := n.runner.Status()
	if st.Self != n.address || st.SelfText != "" || st.Name != n.name || st.Targets != count || st.List != n.list.List().Version() {
		n.t.Errorf("%s: self %q %q, name %q, %d targets, list %q", n.name, st.Self, st.SelfText, st.Name, st.Targets, st.List)
	}
	if st.CoverPing <= 0 || st.CoverBandwidth <= 0 || st.Round.IsZero() || !st.Next.After(st.Taken) || st.Options != n.options.Schedule.Version() {
		n.t.Errorf("%s: schedule %+v", n.name, st)
	}
	if len(st.Rails) != 2 || len(st.Sources) != 1 || st.Sources[0].Text != "" {
		n.t.Fatalf("%s: rails %+v, sources %+v", n.name, st.Rails, st.Sources)
	}
	for _, rail := range st.Rails {
		host := rail.Bandwidth[session.Host]
		if rail.Pings.Good+rail.Pings.Bad != count-1 || rail.Pings.Median < time.Microsecond || rail.Pings.Worst < rail.Pings.Median || rail.Rate != portRate ||
			host == nil || host.Good+host.Bad != count-1 || host.Rates[session.Write].Count == 0 || host.Rates[session.Both].Least < 1.8*portRate {
			n.t.Errorf("%s: rail %+v, host memory %+v", n.name, rail, host)
		}
	}
	for _, role := range []Role{Initiator, Responder} {
		if st.Sessions[SessionKind{role, session.Ping, ClassFine}] == 0 || st.Sessions[SessionKind{role, session.Bandwidth, ClassFine}] == 0 || st.Bytes[role] == 0 {
			n.t.Errorf("%s: %s: sessions %v, bytes %v", n.name, role, st.Sessions, st.Bytes)
		}
	}
	if st.Spent == 0 || st.Budget != 0 {
		n.t.Errorf("%s: %d bytes spent of %d", n.name, st.Spent, st.Budget)
	}
	for _, p := range st.Peers {
		if p.Contact == nil || p.Contact.Build != "1.2.3" || p.Contact.List != st.List || p.Contact.RTT <= 0 || p.Name == "" || p.Tried.IsZero() {
			n.t.Errorf("%s: peer %+v, contact %+v", n.name, p, p.Contact)
		}
	}
}
