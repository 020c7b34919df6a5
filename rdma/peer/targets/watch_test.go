package targets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// fakeDNS answers what it is told to.
type fakeDNS struct {
	mu      sync.Mutex
	addrs   map[string][]string // by network and name
	records []*net.SRV
	err     error
	silent  bool // until the question is given up
	asked   []time.Time
}

func (f *fakeDNS) set(change func(*fakeDNS)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeDNS) question(ctx context.Context) error {
	f.mu.Lock()
	f.asked = append(f.asked, time.Now())
	silent, err := f.silent, f.err
	f.mu.Unlock()
	if silent {
		<-ctx.Done()
		return &net.DNSError{Err: ctx.Err().Error(), IsTimeout: true}
	}
	return err
}

func (f *fakeDNS) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if err := f.question(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []netip.Addr
	for _, text := range f.addrs[network+" "+host] {
		all = append(all, netip.MustParseAddr(text))
	}
	return all, nil
}

func (f *fakeDNS) LookupSRV(ctx context.Context, _, _, _ string) (string, []*net.SRV, error) {
	if err := f.question(ctx); err != nil {
		return "", nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return "", f.records, nil
}

// watch runs a watcher until its first looks are done, in a bubble whose time
// passes by itself.
func watch(t *testing.T, o Options) (w *Watcher, end func()) {
	t.Helper()
	w, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	synctest.Wait()
	return w, func() { cancel(); <-done }
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// looks is long enough for so many looks at the files, with the tenth more or less.
func looks(n int) { pass(time.Duration(n)*5*time.Second + 5*time.Second) }

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, w *Watcher, what string, want ...string) {
	t.Helper()
	if got := addresses(w.List()); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%s: %v, not %v (%+v)", what, got, want, w.Status().Sources)
	}
}

func expectError(t *testing.T, w *Watcher, source int, want string) {
	t.Helper()
	s := w.Status().Sources[source]
	if want == "" && s.Err != nil || want != "" && (s.Err == nil || !strings.Contains(s.Err.Error(), want)) {
		t.Fatalf("source %s: %v, not %q", s.Name, s.Err, want)
	}
}

func TestFileChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "peers.yml")
	write(t, path, "- targets: [a, b]")
	synctest.Test(t, func(t *testing.T) {
		w, end := watch(t, Options{Files: []string{path}})
		defer end()
		expect(t, w, "at start", "a:10480", "b:10480")
		changed := w.Changed()
		looks(2)
		select {
		case <-changed:
			t.Fatal("told of a change without one")
		default:
		}

		write(t, path, "- targets: [a, c, b]")
		looks(2)
		expect(t, w, "written in place", "a:10480", "b:10480", "c:10480")
		select {
		case <-changed:
		default:
			t.Fatal("not told of the change")
		}

		write(t, path, "- targets: [a, 'half w")
		looks(2)
		expect(t, w, "half written", "a:10480", "b:10480", "c:10480")
		expectError(t, w, 0, "unexpected end")

		write(t, path+".new", "- targets: [d]")
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		looks(2)
		expect(t, w, "replaced", "d:10480")
		expectError(t, w, 0, "")

		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		looks(3)
		expect(t, w, "gone", "d:10480")
		expectError(t, w, 0, "no such file")

		write(t, path, "[]")
		looks(2)
		expect(t, w, "emptied on purpose")
		expectError(t, w, 0, "")
	})
}

// TestFileBeingWritten: what changes from look to look is not read, even where it
// would do: a list in YAML that is cut off at the end of a line is a list.
func TestFileBeingWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "peers.yml")
	write(t, path, "- targets: [z]\n")
	synctest.Test(t, func(t *testing.T) {
		w, end := watch(t, Options{Files: []string{path}})
		defer end()
		text := ""
		for i := range 20 {
			text += fmt.Sprintf("- targets: [n%02d]\n", i)
			write(t, path, text)
			pass(4 * time.Second) // less than between any two looks
			if got := fmt.Sprint(addresses(w.List())); got != "[z:10480]" {
				t.Fatalf("%d of 20 lines were taken: %s", i+1, got)
			}
		}
		looks(2)
		if w.List().Len() != 20 {
			t.Errorf("%d targets at the end", w.List().Len())
		}
	})
}

// TestConfigMap: Kubernetes replaces a link to a folder.
func TestConfigMap(t *testing.T) {
	dir := t.TempDir()
	for i, text := range []string{"- targets: [a]", "- targets: [b]"} { // of the same length
		sub := filepath.Join(dir, fmt.Sprint("..", i))
		if err := os.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(sub, "peers.yml"), text)
	}
	link := func(i int) {
		temporary := filepath.Join(dir, "..tmp")
		if err := errors.Join(os.Symlink(fmt.Sprint("..", i), temporary), os.Rename(temporary, filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	link(0)
	if err := os.Symlink("..data/peers.yml", filepath.Join(dir, "peers.yml")); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		w, end := watch(t, Options{Files: []string{filepath.Join(dir, "*.yml")}})
		defer end()
		expect(t, w, "at start", "a:10480")
		link(1)
		looks(2)
		expect(t, w, "after the change", "b:10480")
	})
}

func TestPattern(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w, end := watch(t, Options{Files: []string{filepath.Join(dir, "rack*"+".json")}})
		defer end()
		expect(t, w, "no file")
		expectError(t, w, 0, "no file matches")

		write(t, filepath.Join(dir, "rack1.json"), `[{"targets":["a","b"]}]`)
		write(t, filepath.Join(dir, "rack2.json"), `[{"targets":["b","c"]}]`)
		write(t, filepath.Join(dir, "other.json"), `[{"targets":["x"]}]`)
		looks(2)
		expect(t, w, "two files", "a:10480", "b:10480", "c:10480")

		write(t, filepath.Join(dir, "rack1.json"), `[{"targets":["a","b","0.0.0.0"]}]`)
		looks(2)
		expect(t, w, "one file broken", "a:10480", "b:10480", "c:10480")
		expectError(t, w, 0, `group 1, target 3 ("0.0.0.0")`)
		expectError(t, w, 1, "")

		if err := os.Remove(filepath.Join(dir, "rack1.json")); err != nil {
			t.Fatal(err)
		}
		looks(2)
		expect(t, w, "one file gone", "b:10480", "c:10480")
	})
}

// TestBadFiles: whatever lies under the name, the watcher goes on and says what it is.
func TestBadFiles(t *testing.T) {
	for name, c := range map[string]struct {
		put  func(path string) error
		want string
	}{
		"a folder": {func(path string) error { return os.Mkdir(path, 0o700) }, "no regular file"},
		"a pipe":   {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "no regular file"},
		"a loop":   {func(path string) error { return os.Symlink(path, path) }, "too many levels"},
		"nothing":  {func(string) error { return nil }, "no such file"},
		"too much": {func(path string) error { return os.WriteFile(path, make([]byte, maxFile+1), 0o600) }, "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "peers.yml")
			if err := c.put(path); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				w, end := watch(t, Options{Files: []string{path}})
				defer end()
				expect(t, w, name)
				expectError(t, w, 0, c.want)
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
				write(t, path, "- targets: [a]")
				looks(2)
				expect(t, w, "a file after all", "a:10480")
			})
		})
	}
}

func TestDNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dns := &fakeDNS{addrs: map[string][]string{"ip4 peers": {"10.0.0.2", "::ffff:10.0.0.1"}, "ip6 peers6": {"fd00::1"}}}
		var queries []Query
		for _, text := range []string{"peers", "aaaa+Peers6:7"} {
			q, err := ParseQuery(text)
			if err != nil {
				t.Fatal(err)
			}
			queries = append(queries, q)
		}
		w, end := watch(t, Options{Queries: queries, Resolver: dns})
		defer end()
		all := []string{"10.0.0.1:10480", "10.0.0.2:10480", "[fd00::1]:7"}
		expect(t, w, "at start", all...)

		changed := w.Changed()
		dns.set(func(f *fakeDNS) { f.addrs["ip4 peers"] = []string{"10.0.0.1", "10.0.0.2"} })
		pass(40 * time.Second)
		select {
		case <-changed:
			t.Fatal("told of a change when only the order was another one")
		default:
		}
		for name, change := range map[string]func(*fakeDNS){
			"server failure": func(f *fakeDNS) {
				f.err = &net.DNSError{Err: "server misbehaving", Server: "10.9.9.9:53", Name: "peers"}
			},
			"no such host": func(f *fakeDNS) { f.err = &net.DNSError{Err: "no such host", IsNotFound: true} },
			"no answer":    func(f *fakeDNS) { f.silent = true },
			"empty answer": func(f *fakeDNS) { f.addrs = nil },
		} {
			dns.set(func(f *fakeDNS) { f.err, f.silent = nil, false; change(f) })
			pass(50 * time.Second) // and the time-out
			expect(t, w, name, all...)
			if w.Status().Sources[0].Err == nil || w.Status().Sources[1].Err == nil {
				t.Errorf("%s: no error", name)
			}
		}
		dns.set(func(f *fakeDNS) {
			f.err, f.silent, f.addrs = nil, false, map[string][]string{"ip4 peers": {"10.0.0.3"}, "ip6 peers6": {"fd00::1"}}
		})
		pass(50 * time.Second)
		expect(t, w, "recovered", "10.0.0.3:10480", "[fd00::1]:7")
		expectError(t, w, 0, "")
	})
}

func TestSRV(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dns := &fakeDNS{records: []*net.SRV{{Target: "Node2.cluster.", Port: 7}, {Target: "node1.cluster.", Port: 10480}}}
		w, end := watch(t, Options{Queries: []Query{{Record: SRV, Name: "_gdr._tcp.cluster"}}, Resolver: dns})
		defer end()
		expect(t, w, "at start", "node1.cluster:10480", "node2.cluster:7")
		dns.set(func(f *fakeDNS) { f.records = append(f.records, &net.SRV{Target: ".", Port: 0}) })
		pass(40 * time.Second)
		expect(t, w, "a record that says: none", "node1.cluster:10480", "node2.cluster:7")
		expectError(t, w, 0, "no port")
	})
}

// TestJitter: nodes that start together do not ask together for long.
func TestJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dns := &fakeDNS{addrs: map[string][]string{"ip4 peers": {"10.0.0.1"}}}
		_, end := watch(t, Options{Queries: []Query{{Record: A, Name: "peers"}}, Resolver: dns})
		pass(time.Hour)
		end()
		gaps := map[time.Duration]bool{}
		for i := 1; i < len(dns.asked); i++ {
			gap := dns.asked[i].Sub(dns.asked[i-1])
			if gap < 27*time.Second || gap > 33*time.Second {
				t.Fatalf("%v between two questions", gap)
			}
			gaps[gap.Round(time.Millisecond)] = true
		}
		if len(gaps) < 50 {
			t.Errorf("%d different gaps in an hour", len(gaps))
		}
	})
}

// TestFilesAndDNS: nothing is a list before all sources have been looked at, or
// nodes that start would disagree with all others.
func TestFilesAndDNS(t *testing.T) {
	path := filepath.Join(t.TempDir(), "peers.yml")
	write(t, path, "- targets: [10.0.0.1]\n  labels: {node: one}")
	synctest.Test(t, func(t *testing.T) {
		dns := &fakeDNS{silent: true}
		w, end := watch(t, Options{Files: []string{path}, Queries: []Query{{Record: A, Name: "peers"}}, Resolver: dns})
		defer end()
		expect(t, w, "the name server has not answered")
		pass(11 * time.Second)
		expect(t, w, "it does not answer", "10.0.0.1:10480")
		expectError(t, w, 1, "no answer in time")
		dns.set(func(f *fakeDNS) {
			f.silent, f.addrs = false, map[string][]string{"ip4 peers": {"10.0.0.1", "10.0.0.2"}}
		})
		pass(40 * time.Second)
		expect(t, w, "it answers", "10.0.0.1:10480", "10.0.0.2:10480")
		if name := w.List().At(0).Name(); name != "one" {
			t.Errorf("the file's labels are lost: %s", name)
		}
	})
}

// TestTooMany: a list that is too long does not take the place of one that is not.
func TestTooMany(t *testing.T) {
	path := filepath.Join(t.TempDir(), "peers.yml")
	write(t, path, "- targets: [a, b]")
	synctest.Test(t, func(t *testing.T) {
		w, end := watch(t, Options{Files: []string{path}, Most: 2})
		defer end()
		write(t, path, "- targets: [a, b, c]")
		looks(2)
		expect(t, w, "three of two", "a:10480", "b:10480")
		if err := w.Status().Err; err == nil || !strings.Contains(err.Error(), "3 targets are more than 2") {
			t.Error(err)
		}
		write(t, path, "- targets: [c, c, a]")
		looks(2)
		expect(t, w, "repeated", "a:10480", "c:10480")
		if err := w.Status().Err; err != nil {
			t.Error(err)
		}
	})
}

// TestAddressComesLater: a node whose interface comes up after the daemon finds
// itself then.
func TestAddressComesLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "peers.yml")
	write(t, path, "- targets: [10.0.0.1, 10.0.0.2]")
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		self := Self{}
		w, end := watch(t, Options{Files: []string{path}, Self: func() Self { mu.Lock(); defer mu.Unlock(); return self }})
		defer end()
		if i, err := w.List().Self(); i != -1 || !errors.Is(err, ErrNotListed) {
			t.Fatalf("number %d, %v", i, err)
		}
		changed := w.Changed()
		mu.Lock()
		self.Addrs = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
		mu.Unlock()
		looks(1)
		<-changed
		if i, err := w.List().Self(); i != 1 || err != nil {
			t.Errorf("number %d, %v", i, err)
		}
	})
}

// TestTenThousand: a list of 10,000 nodes is read, and half of them can go.
func TestTenThousand(t *testing.T) {
	text := func(count int) string {
		var b strings.Builder
		b.WriteString("- targets:\n")
		for i := range count {
			fmt.Fprintf(&b, "  - gpu-%05d.example.org\n", i)
		}
		return b.String()
	}
	path := filepath.Join(t.TempDir(), "peers.yml")
	write(t, path, text(10000))
	synctest.Test(t, func(t *testing.T) {
		w, end := watch(t, Options{Files: []string{path}, Self: func() Self { return Self{Names: []string{"gpu-04711"}, Port: DefaultPort} }})
		defer end()
		if i, err := w.List().Self(); i != 4711 || err != nil || w.List().Len() != 10000 {
			t.Errorf("number %d of %d, %v", i, w.List().Len(), err)
		}
		write(t, path, text(5000))
		looks(2)
		if w.List().Len() != 5000 {
			t.Errorf("%d targets", w.List().Len())
		}
	})
}

func TestNewRefuses(t *testing.T) {
	for name, o := range map[string]Options{
		"no source":       {},
		"another ending":  {Files: []string{"/etc/peers.txt"}},
		"a bad pattern":   {Files: []string{"/etc/[peers.yml"}},
		"a negative time": {Files: []string{"/etc/peers.yml"}, FileInterval: -1},
		"no targets":      {Files: []string{"/etc/peers.yml"}, Most: -1},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
