package targets

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func TestParseQuery(t *testing.T) {
	for text, want := range map[string]string{
		"peers":                                  "a+peers",
		"Peers.example.org.":                     "a+peers.example.org.",
		"a+peers:7":                              "a+peers:7",
		"AAAA+peers":                             "aaaa+peers",
		"srv+_gdr._tcp.peers.monitoring.svc":     "srv+_gdr._tcp.peers.monitoring.svc",
		"a+gdr-exporter-peers.monitoring.svc:10": "a+gdr-exporter-peers.monitoring.svc:10",
	} {
		q, err := ParseQuery(text)
		if err != nil || q.String() != want {
			t.Errorf("%q: %q, %v", text, q.String(), err)
			continue
		}
		if again, err := ParseQuery(q.String()); err != nil || again != q {
			t.Errorf("%q reads as %+v, %v", q.String(), again, err)
		}
	}
	for _, text := range []string{"", "a+", "mx+peers", "10.0.0.1", "srv+peers:7", "a+b c", "a+peers:0", "a+a+peers", "http://peers"} {
		if q, err := ParseQuery(text); err == nil {
			t.Errorf("%q: taken as %v", text, q)
		}
	}
}

func FuzzParseQuery(f *testing.F) {
	f.Add("srv+_gdr._tcp.peers")
	f.Add("a+peers.:7")
	f.Fuzz(func(t *testing.T, text string) {
		q, err := ParseQuery(text)
		if err != nil {
			return
		}
		if again, err := ParseQuery(q.String()); err != nil || again != q {
			t.Errorf("%q is %v, which reads as %+v, %v", text, q, again, err)
		}
	})
}

// server answers DNS questions on the loopback interface, over UDP and, as it says
// that more than 3 records do not fit, over TCP.
func server(t *testing.T, records map[dnsmessage.Type][]dnsmessage.ResourceBody) *net.Resolver {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenPacket("udp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close(); packets.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			packets.WriteTo(reply(buffer[:n], records, 3), from)
		}
	}()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			length := make([]byte, 2)
			io.ReadFull(c, length)
			question := make([]byte, binary.BigEndian.Uint16(length))
			io.ReadFull(c, question)
			answer := reply(question, records, 1<<16)
			c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
			c.Close()
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, listener.Addr().String())
	}}
}

func reply(question []byte, records map[dnsmessage.Type][]dnsmessage.ResourceBody, most int) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil || len(m.Questions) != 1 {
		return nil
	}
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	q := m.Questions[0]
	for i, body := range records[q.Type] {
		if i == most {
			m.Truncated = true
			break
		}
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}, Body: body})
	}
	packed, err := m.Pack()
	if err != nil {
		return nil
	}
	return packed
}

// TestRealResolver: Go's resolver against a real server: a list that does not fit
// into a datagram is whole, and none is an error.
func TestRealResolver(t *testing.T) {
	records := map[dnsmessage.Type][]dnsmessage.ResourceBody{}
	const many = 3000
	for i := range many {
		records[dnsmessage.TypeA] = append(records[dnsmessage.TypeA], &dnsmessage.AResource{A: [4]byte{10, 0, byte(i >> 8), byte(i)}})
	}
	for i := range 5 {
		records[dnsmessage.TypeSRV] = append(records[dnsmessage.TypeSRV], &dnsmessage.SRVResource{Port: uint16(i + 1), Target: dnsmessage.MustNewName(fmt.Sprintf("node%d.example.org.", i))})
	}
	resolver := server(t, records)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	all, err := Query{Record: A, Name: "peers.example.org."}.resolve(ctx, resolver, Ports{})
	if l := NewList(all, Self{}); err != nil || l.Len() != many || l.Find("10.0.11.183:10480") < 0 {
		t.Errorf("%d addresses, %v", l.Len(), err)
	}
	all, err = Query{Record: SRV, Name: "_gdr._tcp.example.org."}.resolve(ctx, resolver, Ports{})
	if l := NewList(all, Self{}); err != nil || l.Len() != 5 || l.Find("node4.example.org:5") < 0 {
		t.Errorf("%v, %v", addresses(l), err)
	}
	if all, err := (Query{Record: AAAA, Name: "peers.example.org."}).resolve(ctx, resolver, Ports{}); err == nil {
		t.Errorf("no records are %v", all)
	}
}

func TestNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dns := &fakeDNS{addrs: map[string][]string{"ip node1": {"10.0.0.1", "fd00::1"}}}
		names := NewNames(dns)
		all := parsed(t, "node1", "10.0.0.9", "node2")
		from := netip.MustParseAddr("::ffff:10.0.0.1")
		for range 3 {
			if err := names.Belongs(t.Context(), from, all[0]); err != nil {
				t.Error(err)
			}
		}
		if len(dns.asked) != 1 {
			t.Errorf("asked %d times", len(dns.asked))
		}
		if err := names.Belongs(t.Context(), netip.MustParseAddr("10.0.0.2"), all[0]); !errors.Is(err, ErrForeign) {
			t.Errorf("a foreign address: %v", err)
		}
		if err := names.Belongs(t.Context(), netip.MustParseAddr("10.0.0.9"), all[1]); err != nil {
			t.Errorf("listed by address: %v", err)
		}
		if err := names.Belongs(t.Context(), from, all[1]); !errors.Is(err, ErrForeign) {
			t.Errorf("listed by another address: %v", err)
		}
		if err := names.Belongs(t.Context(), from, all[2]); err == nil || errors.Is(err, ErrForeign) {
			t.Errorf("a name without addresses: %v", err)
		}

		time.Sleep(2 * namesFresh)
		dns.set(func(f *fakeDNS) { f.err = errors.New("server failure") })
		if err := names.Belongs(t.Context(), from, all[0]); err != nil {
			t.Errorf("the name server is away for a moment: %v", err)
		}
		time.Sleep(namesStale)
		if err := names.Belongs(t.Context(), from, all[0]); err == nil || errors.Is(err, ErrForeign) {
			t.Errorf("the name server is away for an hour: %v", err)
		}
		dns.set(func(f *fakeDNS) { f.err, f.addrs = nil, map[string][]string{"ip node1": {"10.0.0.3"}} })
		if err := names.Belongs(t.Context(), from, all[0]); !errors.Is(err, ErrForeign) {
			t.Errorf("the name has another address now: %v", err)
		}
	})
}
