package targets

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

func parsed(t testing.TB, texts ...string) []Target {
	t.Helper()
	var all []Target
	for _, text := range texts {
		target, err := ParseAddress(text, DefaultPort)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, target)
	}
	return all
}

func addresses(l *List) []string {
	var all []string
	for i := range l.Len() {
		all = append(all, l.At(i).Address())
	}
	return all
}

// TestSameList: nodes that were told the same in other words have the same list.
func TestSameList(t *testing.T) {
	one := parsed(t, "node2", "node1:10480", "10.0.0.1", "2001:db8::1", "node1:7")
	two := parsed(t, "NODE1.", "::ffff:10.0.0.1", "node2:10480", "node1:7", "[2001:db8:0::1]:10480", "node2")
	two[0].Labels = map[string]string{"cluster": "b"}
	a, b := NewList(one, Self{}), NewList(two, Self{Given: "node1"})
	if a.Version() != b.Version() || fmt.Sprint(addresses(a)) != fmt.Sprint(addresses(b)) {
		t.Errorf("%v\n%v", addresses(a), addresses(b))
	}
	if got := fmt.Sprint(addresses(a)); got != "[10.0.0.1:10480 [2001:db8::1]:10480 node1:7 node1:10480 node2:10480]" {
		t.Error(got)
	}
	for i := range one {
		less := NewList(append(append([]Target(nil), one[:i]...), one[i+1:]...), Self{})
		if less.Version() == a.Version() || less.Len() != 4 {
			t.Errorf("without %s: the same version", one[i].Address())
		}
	}
	chance := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		chance.Shuffle(len(two), func(i, j int) { two[i], two[j] = two[j], two[i] })
		if NewList(two, Self{}).Version() != a.Version() {
			t.Fatalf("the order makes a difference: %v", two)
		}
	}
}

func TestFindInList(t *testing.T) {
	l := NewList(parsed(t, "10.0.0.2:1", "10.0.0.2:2", "10.0.0.1", "node1"), Self{})
	if i := l.Find("10.0.0.2:2"); i != 2 {
		t.Errorf("10.0.0.2:2 is number %d", i)
	}
	if i := l.Find("node2:10480"); i != -1 {
		t.Errorf("node2 is number %d", i)
	}
	if all := l.WithAddr(netip.MustParseAddr("::ffff:10.0.0.2")); len(all) != 2 || all[0].Port != 1 || all[1].Port != 2 {
		t.Errorf("10.0.0.2 is %v", all)
	}
	if all := l.WithAddr(netip.MustParseAddr("10.0.0.3")); len(all) != 0 {
		t.Errorf("10.0.0.3 is %v", all)
	}
	all := l.Targets()
	all[0].Host = "changed"
	if l.At(0).Host == "changed" {
		t.Error("the list can be changed from outside")
	}
}

func TestSelf(t *testing.T) {
	mine := Self{Names: []string{"localhost", "GPU-07.Example.org"}, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")}, Port: DefaultPort}
	with := func(change func(*Self)) Self {
		s := mine
		change(&s)
		return s
	}
	for _, c := range []struct {
		name string
		self Self
		list []string
		want string // the address; "" if there is none
		lost bool   // it is because no target is this node
	}{
		{"by address", mine, []string{"10.0.0.6", "10.0.0.7", "10.0.0.8"}, "10.0.0.7:10480", false},
		{"by IPv6 address", mine, []string{"fd00::6", "fd00::7"}, "[fd00::7]:10480", false},
		{"by name", mine, []string{"gpu-06.example.org", "gpu-07.example.org"}, "gpu-07.example.org:10480", false},
		{"by short name", mine, []string{"gpu-06", "gpu-07"}, "gpu-07:10480", false},
		{"another domain", mine, []string{"gpu-07.example.com"}, "", true},
		{"a name that begins like it", mine, []string{"gpu-07a", "gpu-0"}, "", true},
		{"another port", mine, []string{"10.0.0.7:9"}, "", true},
		{"any port", with(func(s *Self) { s.Port = 0 }), []string{"10.0.0.7:9"}, "10.0.0.7:9", false},
		{"one of two ports", mine, []string{"10.0.0.7:9", "10.0.0.7"}, "10.0.0.7:10480", false},
		{"listed twice", mine, []string{"10.0.0.7", "gpu-07"}, "", false},
		{"told which", with(func(s *Self) { s.Given = "gpu-07" }), []string{"10.0.0.7", "gpu-07"}, "gpu-07:10480", false},
		{"told with port", with(func(s *Self) { s.Given = "10.0.0.9:9" }), []string{"10.0.0.9:8", "10.0.0.9:9"}, "10.0.0.9:9", false},
		{"told without port", with(func(s *Self) { s.Given = "10.0.0.9" }), []string{"10.0.0.9:8"}, "10.0.0.9:8", false},
		{"told what is not there", with(func(s *Self) { s.Given = "gpu-08" }), []string{"10.0.0.7", "gpu-07"}, "", true},
		{"told nonsense", with(func(s *Self) { s.Given = "a b" }), []string{"10.0.0.7"}, "", false},
		{"nothing known", Self{}, []string{"10.0.0.7"}, "", true},
		{"an empty name", Self{Names: []string{""}}, []string{"node"}, "", true},
		{"empty list", mine, nil, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := NewList(parsed(t, c.list...), c.self)
			i, err := l.Self()
			got := ""
			if i >= 0 {
				got = l.At(i).Address()
			}
			if got != c.want || (err == nil) != (c.want != "") || errors.Is(err, ErrNotListed) != c.lost {
				t.Errorf("%q, %v; not %q", got, err, c.want)
			}
		})
	}
}

// TestOwn: this machine finds itself by its name and by an address of its own.
func TestOwn(t *testing.T) {
	own := Own(7)
	if len(own.Addrs) == 0 || len(own.Names) < 2 {
		t.Fatalf("%+v", own)
	}
	for _, addr := range own.Addrs {
		if addr.IsUnspecified() || addr.IsLinkLocalUnicast() {
			continue
		}
		if _, err := NewList(parsed(t, netip.AddrPortFrom(addr, 7).String()), own).Self(); err != nil {
			t.Errorf("%v: %v", addr, err)
		}
	}
}

func BenchmarkNewList(b *testing.B) {
	var all []Target
	for i := range 10000 {
		all = append(all, parsed(b, fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))...)
	}
	for b.Loop() {
		NewList(all, Self{})
	}
}
