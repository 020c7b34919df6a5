package verbs

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/peer/session"
)

func roce() loopback.Address {
	return loopback.Address{
		Ethernet: true, GID: netip.MustParseAddr("::ffff:10.99.0.2"), GIDType: "RoCE v2", PKey: 0xffff, MTU: 1024,
		QueuePairs: []loopback.QueuePairAddress{{Number: 17, PSN: 5}}, RKey: 9, VirtualAddress: 0x7f0000000000, Length: 4096,
	}
}

func text(t *testing.T, a loopback.Address) json.RawMessage {
	t.Helper()
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestParse(t *testing.T) {
	infiniband := loopback.Address{LID: 7, PKey: 0xffff, MTU: 4096, QueuePairs: []loopback.QueuePairAddress{{Number: 17}}}
	global := infiniband
	global.GID, global.GIDType = netip.MustParseAddr("fe80::1"), "IB/RoCE v1"
	routed := global
	routed.LID = 0
	short := roce()
	short.GID = netip.MustParseAddr("10.99.0.2")
	for name, test := range map[string]struct {
		address loopback.Address
		where   string
		length  uint64
	}{
		"RoCE":                    {roce(), "10.99.0.2", 4096},
		"the same, spelled short": {short, "10.99.0.2", 4096},
		"InfiniBand":              {infiniband, "LID 7", 0},
		// The LID decides where packets go, whatever GID is claimed beside it.
		"InfiniBand with a GID": {global, "LID 7", 0},
		"InfiniBand by GID":     {routed, "fe80::1", 0},
	} {
		got, err := Opener{}.Parse(text(t, test.address))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.Where != test.where || got.Length != test.length {
			t.Errorf("%s: where %q, %d bytes; want %q, %d", name, got.Where, got.Length, test.where, test.length)
		}
		again, err := loopback.ParseAddress(got.Text)
		if err != nil || len(again.QueuePairs) != 1 || again.RKey != test.address.RKey || again.VirtualAddress != test.address.VirtualAddress {
			t.Errorf("%s: text %s: %v", name, got.Text, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	noQueuePair, loop := roce(), roce()
	noQueuePair.QueuePairs = nil
	loop.GID = netip.MustParseAddr("127.0.0.1")
	for name, bad := range map[string]json.RawMessage{
		"no queue pair": text(t, noQueuePair), "loopback": text(t, loop), "nothing": nil, "no JSON": []byte("{"), "too long": []byte(strings.Repeat(" ", 1<<20)),
	} {
		got, err := Opener{}.Parse(bad)
		var f *session.Failure
		if !errors.As(err, &f) || f.Reason != session.ReasonInvalid || f.Text == "" || got.Text != nil {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// What else is in a peer's address does not get any further.
func TestParseDropsUnknown(t *testing.T) {
	with := strings.Replace(string(text(t, roce())), "{", `{"more":"\u001b[31m",`, 1)
	got, err := Opener{}.Parse(json.RawMessage(with))
	if err != nil || strings.Contains(string(got.Text), "more") {
		t.Errorf("%s, %v", got.Text, err)
	}
}

func wanted() session.Spec {
	return session.Spec{Port: session.Port{Device: "mlx5_0", Port: 2}, Memory: session.Host, Sends: true, Deadline: 7 * time.Second}
}

func TestSpec(t *testing.T) {
	template := loopback.EndpointSpec{Device: "other", Port: 9, PKey: 0x8001, LockPath: "/lock", SysfsRoot: "/s", DevRoot: "/d", FreeGPUMemory: 3, Deadline: time.Hour}
	peer := session.Address{Text: text(t, roce())}
	wish := wanted()
	wish.Peer = &peer
	got, err := Opener{Template: template}.spec(wish)
	if err != nil {
		t.Fatal(err)
	}
	if got.Device != "mlx5_0" || got.Port != 2 || got.Role != loopback.RoleInitiator || got.Memory != loopback.MemoryHost || got.Deadline != 7*time.Second {
		t.Errorf("not what the session said: %+v", got)
	}
	if got.PKey != 0x8001 || got.SysfsRoot != "/s" || got.DevRoot != "/d" || got.FreeGPUMemory != 3 {
		t.Errorf("not what the template said: %+v", got)
	}
	if got.LockPath != "" || got.OpenGPU != nil {
		t.Errorf("lock %q, GPU %t", got.LockPath, got.OpenGPU != nil)
	}
	if got.Peer == nil || got.Peer.GID != roce().GID {
		t.Errorf("peer %+v", got.Peer)
	}
	wish.Deadline, wish.Peer = 0, nil
	if got, err = (Opener{Template: template}).spec(wish); err != nil || got.Deadline != time.Hour || got.Peer != nil {
		t.Errorf("left open: %+v, %v", got, err)
	}
}

func TestRoles(t *testing.T) {
	for _, test := range []struct {
		sends, receives bool
		want            loopback.Role
	}{{true, false, loopback.RoleInitiator}, {false, true, loopback.RoleResponder}, {true, true, loopback.RoleBoth}} {
		wish := wanted()
		wish.Sends, wish.Receives = test.sends, test.receives
		if got, err := (Opener{}).spec(wish); err != nil || got.Role != test.want {
			t.Errorf("%+v: %q, %v", test, got.Role, err)
		}
	}
}

func TestMemories(t *testing.T) {
	asked := ""
	opener := Opener{OpenGPU: func(address string) (loopback.GPU, error) { asked = address; return nil, syscall.ENXIO }}
	for own, want := range map[session.Memory]loopback.Memory{
		session.Host: loopback.MemoryHost, session.GPU: loopback.MemoryGPU, session.Staged: loopback.MemoryStaged,
	} {
		wish := wanted()
		wish.Memory, wish.GPU, asked = own, "0000:17:00.0", ""
		got, err := opener.spec(wish)
		if err != nil || got.Memory != want {
			t.Errorf("%s: %q, %v", own, got.Memory, err)
			continue
		}
		if own == session.Host {
			if got.OpenGPU != nil {
				t.Error("host memory of a GPU")
			}
			continue
		}
		if _, err := got.OpenGPU(); !errors.Is(err, syscall.ENXIO) || asked != wish.GPU {
			t.Errorf("%s: opened %q, %v", own, asked, err)
		}
	}
}

func TestSizes(t *testing.T) {
	const mib = 1 << 20
	type sizes = session.Shape
	all := sizes{Buffer: 8 * mib, Message: 65536, Chunk: 131072, QueuePairs: 2, Depth: 32}
	for name, test := range map[string]struct {
		opener Opener
		wish   sizes
		want   sizes
	}{
		"nobody says":     {Opener{}, sizes{}, sizes{Buffer: 64 * mib, Message: mib, QueuePairs: 4}},
		"session says":    {Opener{}, all, all},
		"template says":   {Opener{Template: loopback.EndpointSpec{BufferSize: 16 * mib, QueuePairs: 8}}, sizes{}, sizes{Buffer: 16 * mib, Message: mib, QueuePairs: 8}},
		"session decides": {Opener{Template: loopback.EndpointSpec{BufferSize: 16 * mib}}, sizes{Buffer: 4 * mib}, sizes{Buffer: 4 * mib, Message: mib, QueuePairs: 4}},
		"small buffer":    {Opener{}, sizes{Buffer: 4104, QueuePairs: 2}, sizes{Buffer: 4104, Message: 2048, QueuePairs: 2}},
		"bound":           {Opener{MostBuffer: 2 * mib}, sizes{}, sizes{Buffer: 2 * mib, Message: mib / 2, QueuePairs: 4}},
		"bound template":  {Opener{MostBuffer: 2 * mib, Template: loopback.EndpointSpec{BufferSize: 16 * mib}}, sizes{}, sizes{Buffer: 2 * mib, Message: mib / 2, QueuePairs: 4}},
		"more than usual": {Opener{MostBuffer: 128 * mib}, sizes{Buffer: 128 * mib}, sizes{Buffer: 128 * mib, Message: mib, QueuePairs: 4}},
	} {
		wish := wanted()
		wish.Shape = test.wish
		own, err := test.opener.spec(wish)
		if got := (sizes{Buffer: own.BufferSize, Message: own.MessageSize, Chunk: own.ChunkSize, QueuePairs: own.QueuePairs, Depth: own.Depth}); err != nil || got != test.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, test.want)
		}
	}
}

func TestSpecRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*session.Spec)
		reason session.Reason
		errno  string
	}{
		"buffer too large": {func(s *session.Spec) { s.Shape.Buffer = DefaultMostBuffer + 1 }, session.ReasonInvalid, "EMSGSIZE"},
		"queues too deep":  {func(s *session.Spec) { s.Shape.QueuePairs, s.Shape.Depth = 64, 129 }, session.ReasonInvalid, "EMSGSIZE"},
		"negative":         {func(s *session.Spec) { s.Shape.Depth = -1 }, session.ReasonInvalid, "EINVAL"},
		"no role":          {func(s *session.Spec) { s.Sends = false }, session.ReasonInvalid, "EINVAL"},
		"memory of no GPU": {func(s *session.Spec) { s.Memory = session.GPU }, session.ReasonInvalid, "EINVAL"},
		"no such GPU":      {func(s *session.Spec) { s.Memory, s.GPU = session.GPU, "0000:17:00.0" }, session.ReasonNoRail, "ENODEV"},
		"peer's address":   {func(s *session.Spec) { s.Peer = &session.Address{Text: []byte(`{"mtu":1}`)} }, session.ReasonInvalid, "EINVAL"},
	} {
		wish := wanted()
		test.change(&wish)
		e, err := Opener{}.Open(t.Context(), wish)
		var f *session.Failure
		if !errors.As(err, &f) || f.Reason != test.reason || f.Errno != test.errno || f.Stage != "open" || e != nil {
			t.Errorf("%s: %v, %+v", name, e, f)
		}
	}
}

// TestOpenFails: without a device the failure is that of the real loopback endpoint.
func TestOpenFails(t *testing.T) {
	e, err := Opener{Template: loopback.EndpointSpec{SysfsRoot: t.TempDir(), DevRoot: t.TempDir()}}.Open(t.Context(), wanted())
	var f *session.Failure
	if !errors.As(err, &f) || e != nil {
		t.Fatalf("%v, %v", e, err)
	}
	// A machine without libibverbs fails at that, which has no errno.
	if f.Reason != session.ReasonRDMA || f.Stage != "open" || f.Text == "" || strings.HasPrefix(f.Text, "open: ") || loopback.SkipReason(err) == "" {
		t.Errorf("%+v, skip reason %q", f, loopback.SkipReason(err))
	}
}
