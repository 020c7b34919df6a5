package targets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Record is a type of DNS record.
type Record string

// Types of records that give targets.
const (
	A    Record = "A"
	AAAA Record = "AAAA"
	SRV  Record = "SRV" // gives names and ports
)

// Query is what a name server is asked for.
type Query struct {
	Record Record
	Name   string
	Port   uint16 // of the targets of A and AAAA; 0: that of Ports
}

// ParseQuery reads NAME, NAME:PORT or TYPE+NAME, where TYPE is a, aaaa or srv.
func ParseQuery(text string) (Query, error) {
	q := Query{Record: A, Name: text}
	if record, name, typed := strings.Cut(text, "+"); typed {
		q.Record, q.Name = Record(strings.ToUpper(record)), name
	}
	t, err := ParseAddress(q.Name, 0)
	switch {
	case err != nil:
		return Query{}, fmt.Errorf("DNS name of targets %.100q: %w", text, err)
	case t.Addr.IsValid():
		return Query{}, fmt.Errorf("DNS name of targets %.100q: it is an address", text)
	case q.Record == SRV && t.Port != 0:
		return Query{}, fmt.Errorf("DNS name of targets %.100q: SRV records have their own ports", text)
	case q.Record != A && q.Record != AAAA && q.Record != SRV:
		return Query{}, fmt.Errorf("DNS name of targets %.100q: records are of type a, aaaa or srv", text)
	}
	// A dot at the end keeps a resolver from its search list: it stays.
	if strings.HasSuffix(q.Name, ".") {
		t.Host += "."
	}
	q.Name, q.Port = t.Host, t.Port
	return q, nil
}

// String is as ParseQuery reads it.
func (q Query) String() string {
	text := strings.ToLower(string(q.Record)) + "+" + q.Name
	if q.Port != 0 {
		text += ":" + strconv.Itoa(int(q.Port))
	}
	return text
}

// Resolver asks name servers. A net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

// systemResolver is the one of Go: that of libc would leave a thread behind for
// each question that is not answered in time.
var systemResolver Resolver = &net.Resolver{PreferGo: true}

// resolve asks for targets. An answer of none is an error: a Service without
// endpoints and a name server that has lost them look the same.
func (q Query) resolve(ctx context.Context, resolver Resolver, ports Ports) ([]Target, error) {
	var all []Target
	var err error
	if q.Record == SRV {
		all, err = q.services(ctx, resolver)
	} else {
		all, err = q.addresses(ctx, resolver, ports)
	}
	switch {
	case err != nil:
		return nil, err
	case len(all) == 0:
		return nil, errors.New("the answer has no targets")
	}
	for i := range all {
		all[i].Source = q.String()
		if ports.Always != 0 {
			all[i].Port = ports.Always
		}
	}
	return all, nil
}

func (q Query) addresses(ctx context.Context, resolver Resolver, ports Ports) ([]Target, error) {
	network := "ip4"
	if q.Record == AAAA {
		network = "ip6"
	}
	addrs, err := resolver.LookupNetIP(ctx, network, q.Name)
	if err != nil {
		return nil, told(err)
	}
	port := q.Port
	if port == 0 {
		port = ports.Default
	}
	if port == 0 {
		port = DefaultPort
	}
	var all []Target
	for _, addr := range addrs {
		t, err := ParseAddress(netip.AddrPortFrom(addr.Unmap(), port).String(), port)
		if err != nil {
			return nil, fmt.Errorf("answer %v: %w", addr, err)
		}
		all = append(all, t)
	}
	return all, nil
}

func (q Query) services(ctx context.Context, resolver Resolver) ([]Target, error) {
	_, records, err := resolver.LookupSRV(ctx, "", "", q.Name)
	if err != nil {
		return nil, told(err)
	}
	var all []Target
	for _, record := range records {
		address := net.JoinHostPort(record.Target, strconv.Itoa(int(record.Port)))
		t, err := ParseAddress(address, DefaultPort)
		if err != nil {
			return nil, fmt.Errorf("answer %.80q: %w", address, err)
		}
		all = append(all, t)
	}
	return all, nil
}

// told is what a resolver says, without the name that whoever tells of it names, and
// without the server, which may be another one each time.
func told(err error) error {
	of := (*net.DNSError)(nil)
	switch {
	case !errors.As(err, &of):
		return err
	case of.IsTimeout:
		return errors.New("no answer in time")
	}
	return errors.New(of.Err)
}

// lookup is a query as it was answered last.
type lookup struct {
	query   Query
	looked  bool
	targets []Target
	good    time.Time
	err     error
}

// take keeps what a query was answered, and reports whether that is new.
func (l *lookup) take(targets []Target, err error) (changed bool) {
	first := !l.looked
	l.looked = true
	changed = first || !sameText(l.err, err)
	l.err = err
	if err != nil {
		return changed
	}
	slices.SortFunc(targets, compare)
	changed = changed || !slices.EqualFunc(l.targets, targets, func(a, b Target) bool { return compare(a, b) == 0 })
	l.targets, l.good = targets, time.Now()
	return changed
}
