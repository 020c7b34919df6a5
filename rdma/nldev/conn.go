package nldev

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/nlattr"
)

// Conn is a socket of the RDMA netlink family, for one goroutine at a time.
//
// The kernel answers a request while it is being sent, so a driver that hangs
// makes the call hang, beyond any deadline: whoever calls must be able to wait.
type Conn struct {
	conn     *netlink.Conn
	timeout  time.Duration
	requests int64
}

// Dial opens a socket in the caller's network namespace. timeout bounds the wait
// for an answer.
//
// Opening one makes the kernel load ib_core if it is not there yet, which an
// observer must not do: so it is looked for first.
func Dial(timeout time.Duration) (*Conn, error) {
	if !registered() {
		return nil, fmt.Errorf("RDMA netlink: %w", syscall.EPROTONOSUPPORT)
	}
	conn, err := netlink.Dial(family, nil)
	if err != nil {
		return nil, fmt.Errorf("RDMA netlink: %w", err)
	}
	return New(conn, timeout), nil
}

// New returns a Conn on an open connection; a timeout of 0 waits for ever.
func New(conn *netlink.Conn, timeout time.Duration) *Conn {
	return &Conn{conn: conn, timeout: timeout}
}

// Close closes the socket.
func (c *Conn) Close() error { return c.conn.Close() }

// Requests returns the number of requests sent so far.
func (c *Conn) Requests() int64 { return c.requests }

// Error is a failed request.
type Error struct {
	Command string // such as "STAT_GET"
	Err     error
}

// Error names the command.
func (e *Error) Error() string { return "netlink " + e.Command + ": " + e.Err.Error() }

// Unwrap returns the cause: a syscall.Errno, a time-out or what was wrong with
// the answer.
func (e *Error) Unwrap() error { return e.Err }

// ErrEmpty is the cause where the kernel's answer holds nothing.
var ErrEmpty = errors.New("no answer")

// request sends a command and calls f with each message of the answer. A GET
// asks for no acknowledgement: answer and acknowledgement would be two
// messages, and the next request would meet the second.
func (c *Conn) request(cmd command, dump bool, arguments []netlink.Attribute, f func(data []byte) error) error {
	fail := func(err error) error {
		var op *netlink.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return &Error{cmd.String(), err}
	}
	data, err := netlink.MarshalAttributes(arguments)
	if err != nil {
		return fail(err)
	}
	if c.timeout > 0 {
		if err := c.conn.SetDeadline(time.Now().Add(c.timeout)); err != nil {
			return fail(err)
		}
	}
	message := netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(client<<10 | uint16(cmd)), Flags: netlink.Request},
		Data:   data,
	}
	if dump {
		message.Header.Flags |= netlink.Dump
	}
	c.requests++
	sent, err := c.conn.Send(message)
	if err != nil {
		return fail(err)
	}
	messages, err := c.conn.Receive()
	if err != nil {
		return fail(err)
	}
	if err := netlink.Validate(sent, messages); err != nil {
		return fail(err)
	}
	if len(messages) == 0 && !dump {
		return fail(ErrEmpty)
	}
	for _, m := range messages {
		if err := f(m.Data); err != nil {
			return fail(err)
		}
	}
	return nil
}

func index(device uint32) netlink.Attribute {
	return netlink.Attribute{Type: attrDevIndex, Data: u32(device)}
}

func indexAndPort(device, port uint32) []netlink.Attribute {
	return []netlink.Attribute{index(device), {Type: attrPortIndex, Data: u32(port)}}
}

// Devices lists the devices: in the shared RDMA namespace mode all of the host,
// in the exclusive mode those of the socket's network namespace (GET).
func (c *Conn) Devices() ([]Device, error) {
	var devices []Device
	err := c.request(cmdGet, true, nil, func(data []byte) error {
		device, ok, err := decodeDevice(data)
		if ok {
			devices = append(devices, device)
		}
		return err
	})
	return devices, err
}

// Port returns a port's states (PORT_GET). On mlx5 it is one query of the port:
// 5 firmware commands on InfiniBand, 2 on RoCE.
func (c *Conn) Port(device, port uint32) (Port, error) {
	var p Port
	err := c.request(cmdPortGet, false, indexAndPort(device, port), func(data []byte) (err error) {
		p, err = decodePort(data)
		return err
	})
	return p, err
}

// Counters returns all hw_counters of a port, with the optional ones that are
// switched on (STAT_GET). It always asks the driver: on mlx5 3 firmware
// commands. It fails with EINVAL where counters exist per device only, and with
// EMSGSIZE where they do not fit into one page (hfi1).
func (c *Conn) Counters(device, port uint32) ([]Counter, error) {
	var counters []Counter
	err := c.request(cmdStatGet, false, indexAndPort(device, port), func(data []byte) (err error) {
		counters, err = decodeCounters(data)
		return err
	})
	return counters, err
}

// OptionalCounters returns the counters that can be switched on
// (STAT_GET_STATUS, Linux 5.16).
func (c *Conn) OptionalCounters(device, port uint32) ([]Optional, error) {
	var all []Optional
	err := c.request(cmdStatGetStatus, false, indexAndPort(device, port), func(data []byte) (err error) {
		all, err = decodeOptional(data)
		return err
	})
	return all, err
}

// Resources returns how many objects of each type a device has: pd, cq, qp,
// cm_id, mr, ctx, srq (RES_GET). It asks no hardware.
func (c *Conn) Resources(device uint32) (map[string]uint64, error) {
	var counts map[string]uint64
	err := c.request(cmdResGet, false, []netlink.Attribute{index(device)}, func(data []byte) (err error) {
		counts, err = decodeSummary(data)
		return err
	})
	return counts, err
}

// Memory returns the memory registered with a device by processes of the
// caller's pid namespace and by the kernel (RES_MR_GET). It asks no hardware on
// mlx5.
func (c *Conn) Memory(device uint32) (Memory, error) {
	memory := Memory{Owners: &Owners{}}
	err := c.request(cmdResMRGet, true, []netlink.Attribute{index(device)}, memory.add)
	return memory, err
}

// Contexts returns how many times processes of the caller's pid namespace have
// the device open (RES_CTX_GET).
func (c *Conn) Contexts(device uint32) (Contexts, error) {
	contexts := Contexts{Owners: &Owners{}}
	err := c.request(cmdResCtxGet, true, []netlink.Attribute{index(device)}, contexts.add)
	return contexts, err
}

// System is what SYS_GET says of the RDMA subsystem.
type System struct {
	// Shared: devices are shared by all network namespaces; not: each belongs
	// to one.
	Shared sysread.Maybe[bool]
	// Monitor: the kernel tells of events (since Linux 6.12).
	Monitor bool
}

// System asks about the RDMA subsystem (SYS_GET).
func (c *Conn) System() (System, error) {
	var system System
	err := c.request(cmdSysGet, false, nil, func(data []byte) error {
		return attributes(data, func(kind uint16, value []byte) {
			n, ok := nlattr.Number(value)
			switch {
			case ok && kind == attrSysNetnsMode:
				system.Shared = sysread.Some(n == 1)
			case ok && kind == attrSysMonitorMode:
				system.Monitor = n == 1
			}
		})
	})
	return system, err
}

// Unsupported reports whether err says that the kernel or driver does not offer
// this at all: no such family or command, counters per device only, or an
// answer that does not fit.
func Unsupported(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EPROTONOSUPPORT, syscall.EAFNOSUPPORT, syscall.EINVAL, syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.EMSGSIZE,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
