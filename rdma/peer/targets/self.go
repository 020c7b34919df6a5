package targets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// ErrNotListed says that no target is this node.
var ErrNotListed = errors.New("this node is not among the targets")

// Self says how this node is recognised in a list. The zero value recognises nothing.
type Self struct {
	// Given is the host, or host:port, of this node's target (--peer.self). If it is
	// set, nothing else is looked at.
	Given string
	Names []string // host names of this node, in any case
	Addrs []netip.Addr
	Port  uint16 // of its own listener; 0: any
}

// Own is how a node recognises itself that nobody told who it is: by host name and
// by the addresses of its interfaces.
func Own(port uint16) Self {
	s := Self{Port: port, Names: []string{"localhost"}}
	if name, err := os.Hostname(); err == nil {
		s.Names = append(s.Names, name)
	}
	// Without them the node is recognised by its name, or not, which is reported.
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if network, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(network.IP); ok {
				s.Addrs = append(s.Addrs, addr.Unmap())
			}
		}
	}
	return s
}

// find is the number of the target that is this node.
func (s Self) find(targets []Target) (int, error) {
	matches, err := s.matcher()
	if err != nil {
		return -1, err
	}
	found := -1
	for i, t := range targets {
		switch {
		case !matches(t):
		case found >= 0:
			return -1, fmt.Errorf("this node is listed as %s and as %s: a node is listed once, or --peer.self says which one it is", targets[found].Address(), t.Address())
		default:
			found = i
		}
	}
	if found >= 0 {
		return found, nil
	}
	if s.Given != "" {
		return -1, fmt.Errorf("%w: there is no %s", ErrNotListed, s.Given)
	}
	return -1, ErrNotListed
}

func (s Self) matcher() (func(Target) bool, error) {
	if s.Given == "" {
		return s.matches, nil
	}
	given, err := ParseAddress(s.Given, 0)
	if err != nil {
		return nil, fmt.Errorf("own target %.100q: %w", s.Given, err)
	}
	return func(t Target) bool {
		return t.Host == given.Host && (given.Port == 0 || given.Port == t.Port)
	}, nil
}

func (s Self) matches(t Target) bool {
	if s.Port != 0 && t.Port != s.Port {
		return false
	}
	if t.Addr.IsValid() {
		return slices.Contains(s.Addrs, t.Addr)
	}
	return slices.ContainsFunc(s.Names, func(name string) bool { return sameHost(t.Host, name) })
}

// sameHost compares names of which one may be short: node1 is node1.example.org, but
// node1.a is not node1.b.
func sameHost(a, b string) bool {
	a, b = strings.ToLower(strings.TrimSuffix(a, ".")), strings.ToLower(strings.TrimSuffix(b, "."))
	if a == b {
		return a != ""
	}
	long, short := a, b
	if len(a) < len(b) {
		long, short = b, a
	}
	return short != "" && !strings.Contains(short, ".") && strings.HasPrefix(long, short+".")
}
