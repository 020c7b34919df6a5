package nldev

import (
	"encoding/binary"
	"errors"
	"iter"
	"os"
	"reflect"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"
)

func list(t *testing.T, attributes ...netlink.Attribute) []byte {
	t.Helper()
	data, err := netlink.MarshalAttributes(attributes)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func nest(t *testing.T, kind uint16, attributes ...netlink.Attribute) netlink.Attribute {
	t.Helper()
	return netlink.Attribute{Type: kind | netlink.Nested, Data: list(t, attributes...)}
}

func num8(kind uint16, value uint8) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: []byte{value}}
}

func num32(kind uint16, value uint32) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: u32(value)}
}

func num64(kind uint16, value uint64) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: binary.NativeEndian.AppendUint64(nil, value)}
}

func str(kind uint16, value string) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: append([]byte(value), 0)}
}

func TestDecodeDevice(t *testing.T) {
	data := list(t, num32(1, 3), str(2, "mlx5_0"), num32(3, 1), num64(4, 0xffff), str(5, "28.41.1000"),
		num64(6, 0x946dae0300123456), num64(7, 0), num8(14, 1), str(67, "ib"), num32(9999, 1))
	device, ok, err := decodeDevice(data)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if device.Index != 3 || device.Name != "mlx5_0" || device.Ports != 1 || device.Firmware != "28.41.1000" || device.Protocol != "ib" {
		t.Errorf("%+v", device)
	}
	if device.NodeGUID != "946d:ae03:0012:3456" || device.SysImageGUID != "" {
		t.Errorf("GUIDs %q %q: the number is in host byte order, and zero is none", device.NodeGUID, device.SysImageGUID)
	}
	if device.Parent != "" || !device.NodeType.Known || device.NodeType.Value != 1 {
		t.Errorf("%+v", device)
	}
	plane, _, _ := decodeDevice(list(t, num32(1, 4), str(2, "smi1"), num8(99, 1), str(100, "mlx5_0")))
	if plane.Parent != "mlx5_0" {
		t.Errorf("plane of %q", plane.Parent)
	}
	if _, ok, _ := decodeDevice(list(t, str(2, "x"))); ok {
		t.Error("a device without index is taken")
	}
}

// An attribute of another length than expected is absent, not zero.
func TestOddLengthsAreAbsent(t *testing.T) {
	port, err := decodePort(list(t, netlink.Attribute{Type: attrPortState, Data: []byte{4, 0, 0}}, num8(attrPortPhysState, 5)))
	if err != nil || port.State.Known || !port.PhysicalState.Known {
		t.Errorf("%+v, %v", port, err)
	}
	counters, err := decodeCounters(list(t, nest(t, 80,
		nest(t, 81, str(82, "good"), num64(83, 17)),
		nest(t, 81, str(82, "bad"), netlink.Attribute{Type: 83, Data: []byte{1, 2, 3}}),
		nest(t, 81, num64(83, 18)))))
	if want := []Counter{{"good", 17}}; err != nil || !reflect.DeepEqual(counters, want) {
		t.Errorf("%v, %v", counters, err)
	}
}

func TestDecodeEvent(t *testing.T) {
	message := netlink.Message{Header: netlink.Header{Type: 5<<10 | 28}, Data: list(t, num8(102, 1), num32(1, 0), str(2, "rxe0"))}
	if event, ok := decodeEvent(message); !ok || event != (Event{EventUnregister, "rxe0"}) {
		t.Errorf("%+v, %v", event, ok)
	}
	message.Header.Type = 5<<10 | 1
	if _, ok := decodeEvent(message); ok {
		t.Error("another command is taken for an event")
	}
}

func TestErrors(t *testing.T) {
	for errno, unsupported := range map[syscall.Errno]bool{
		syscall.EMSGSIZE: true, syscall.EINVAL: true, syscall.EOPNOTSUPP: true, syscall.EPERM: false, syscall.EIO: false,
	} {
		conn := New(nltest.Dial(func(requests []netlink.Message) ([]netlink.Message, error) {
			return nltest.Error(int(errno), requests)
		}), 0)
		_, err := conn.Counters(0, 1)
		if !errors.Is(err, errno) || Unsupported(err) != unsupported {
			t.Errorf("%v: %v, unsupported %v", errno, err, Unsupported(err))
		}
		var failed *Error
		if !errors.As(err, &failed) || failed.Command != "STAT_GET" {
			t.Errorf("%v does not name the command", err)
		}
	}
}

func TestRequestForm(t *testing.T) {
	var seen netlink.Message
	conn := New(nltest.Dial(func(requests []netlink.Message) ([]netlink.Message, error) {
		if len(requests) == 0 {
			return nil, nil
		}
		seen = requests[0]
		return []netlink.Message{{Header: seen.Header, Data: list(t, num8(12, 4), num8(13, 5))}}, nil
	}), 0)
	if _, err := conn.Port(7, 2); err != nil {
		t.Fatal(err)
	}
	if seen.Header.Type != 5<<10|5 || seen.Header.Flags != netlink.Request {
		t.Errorf("type %#x, flags %v: a GET must not ask for an acknowledgement", seen.Header.Type, seen.Header.Flags)
	}
	if want := list(t, num32(1, 7), num32(3, 2)); !reflect.DeepEqual(seen.Data, want) {
		t.Errorf("arguments %v, want %v", seen.Data, want)
	}
}

// silent is a socket on which no answer ever comes.
type silent struct{ netlink.Socket }

func (silent) Send(netlink.Message) error          { return nil }
func (silent) SetDeadline(time.Time) error         { return nil }
func (silent) SetReadDeadline(time.Time) error     { return nil }
func (silent) SetWriteDeadline(time.Time) error    { return nil }
func (silent) Receive() ([]netlink.Message, error) { return nil, os.ErrDeadlineExceeded }
func (silent) ReceiveIter() iter.Seq2[netlink.Message, error] {
	return func(yield func(netlink.Message, error) bool) { yield(netlink.Message{}, os.ErrDeadlineExceeded) }
}

func TestTimeOut(t *testing.T) {
	conn := New(netlink.NewConn(silent{}, 1), time.Millisecond)
	if _, err := conn.Devices(); !errors.Is(err, os.ErrDeadlineExceeded) || Unsupported(err) {
		t.Errorf("error %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{8, 0, 1, 0, 0, 0, 0, 0})
	f.Add([]byte{20, 0, 80, 0, 16, 0, 81, 0, 12, 0, 83, 0, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		if device, ok, _ := decodeDevice(data); ok && device.Name == "" {
			t.Error("a device without name")
		}
		_, _ = decodePort(data)
		counters, _ := decodeCounters(data)
		for _, counter := range counters {
			if counter.Name == "" {
				t.Error("a counter without name")
			}
		}
		_, _ = decodeOptional(data)
		_, _ = decodeSummary(data)
		var memory Memory
		_ = memory.add(data)
		var contexts Contexts
		_ = contexts.add(data)
		if joined := memory.Owners.Join(contexts.Owners); uint64(len(joined.Processes)) > memory.Regions+contexts.Total {
			t.Errorf("%d owners of %d objects", len(joined.Processes), memory.Regions+contexts.Total)
		}
		_, _ = decodeEvent(netlink.Message{Header: netlink.Header{Type: 5<<10 | 28}, Data: data})
	})
}

func TestListed(t *testing.T) {
	const table = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n" +
		"0000000000000000 0   1234       00000011 0        0        0     2        0        17\n" +
		"0000000000000000 20  0          00000000 0        0        0     2        0        18\n"
	if !listed([]byte(table), 20) || listed([]byte(table), 21) || listed(nil, 20) || listed([]byte("x\n20\n"), 20) {
		t.Error("the table is misread")
	}
}
