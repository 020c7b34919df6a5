package rdma

import (
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/nldev"
)

// Netlink is what is asked of RDMA netlink, by one goroutine at a time. The
// kernel's is [nldev.Conn].
type Netlink interface {
	Devices() ([]nldev.Device, error)
	Port(device, port uint32) (nldev.Port, error)
	Counters(device, port uint32) ([]nldev.Counter, error)
	OptionalCounters(device, port uint32) ([]nldev.Optional, error)
	Resources(device uint32) (map[string]uint64, error)
	Contexts(device uint32) (nldev.Contexts, error)
	Memory(device uint32) (nldev.Memory, error)
	Close() error
}

// Dialer opens a socket of the RDMA netlink family.
type Dialer func() (Netlink, error)

// From says where a value comes from.
type From string

// Places that a value comes from.
const (
	FromNetlink From = "netlink"
	FromSysfs   From = "sysfs"
)

// ErrNetlinkStuck says that a request for the list of devices does not return. The
// kernel holds a lock of all devices while one is added or removed.
var ErrNetlinkStuck = fmt.Errorf("RDMA netlink does not answer: %w", syscall.ETIMEDOUT)

// netlinkWait is how long a list of devices waits for netlink unless told otherwise.
const netlinkWait = time.Second

// netlinkLister asks netlink for the list of devices, of which sysfs has another:
// a request that hangs costs what only netlink knows, and one goroutine.
type netlinkLister struct {
	dial    Dialer
	io      *sysread.IO
	wait    time.Duration
	conn    Netlink
	pending chan netlinkList // of a request that has not returned
	err     error            // why there is no list now, nil if there is one
	tried   bool             // err is of this time
	sysread.Backoff
}

// netlinkList is what became of a request for the list.
type netlinkList struct {
	devices []nldev.Device
	conn    Netlink // to go on with, nil: none
	err     error
}

// stuck reports whether a request hangs.
func (l *netlinkLister) stuck() bool { return l.pending != nil }

// list returns the devices by name; nil if netlink does not say.
func (l *netlinkLister) list(now time.Time) map[string]*nldev.Device {
	if l.tried = l.dial != nil && !l.Waiting(now); !l.tried {
		return nil
	}
	devices, err := l.ask()
	l.err = err
	if err != nil {
		l.Refuse(now, 0, time.Minute, retryMost)
		return nil
	}
	l.Reset()
	byName := make(map[string]*nldev.Device, len(devices))
	for i := range devices {
		byName[devices[i].Name] = &devices[i]
	}
	return byName
}

// ask asks for the list, unless an earlier request still hangs.
func (l *netlinkLister) ask() ([]nldev.Device, error) {
	if l.pending != nil {
		select {
		case late := <-l.pending: // what it lists may be long gone
			l.pending, l.conn = nil, late.conn
		default:
			return nil, ErrNetlinkStuck
		}
	}
	answer := make(chan netlinkList, 1)
	go func(conn Netlink) { answer <- askList(l.dial, l.io, conn) }(l.conn)
	l.conn = nil
	timer := time.NewTimer(l.wait)
	defer timer.Stop()
	select {
	case list := <-answer:
		l.conn = list.conn
		return list.devices, list.err
	case <-timer.C:
		l.pending = answer
		return nil, ErrNetlinkStuck
	}
}

// askList asks for the list by a connection, or by a new one.
func askList(dial Dialer, io *sysread.IO, conn Netlink) (list netlinkList) {
	if conn == nil {
		if conn, list.err = dial(); list.err != nil {
			return list
		}
	}
	io.Request()
	if list.devices, list.err = conn.Devices(); list.err != nil {
		_ = conn.Close()
		return list
	}
	list.conn = conn
	return list
}

// netlinkSide asks netlink about one device. Each kind of request has its own
// memory of refusals, so that one that the driver does not offer costs nothing.
type netlinkSide struct {
	dial    Dialer
	conn    Netlink
	device  *nldev.Device // nil: netlink does not list the device, or another of its name
	refused map[netlinkFact]*sysread.Backoff
}

// netlinkFact is one kind of request about one port (0: about the device).
type netlinkFact struct {
	kind string
	port int
}

// ask makes a request unless it was refused lately, and reports whether there
// is an answer. What a driver does not offer is no failure; anything else is.
func (n *netlinkSide) ask(r *pass, kind string, port int, request func(conn Netlink, device uint32) error) bool {
	if n.dial == nil || n.device == nil {
		return false
	}
	fact := netlinkFact{kind, port}
	backoff := n.refused[fact]
	if backoff != nil && backoff.Waiting(r.now) {
		return false
	}
	err := n.try(r, request)
	if err == nil {
		delete(n.refused, fact)
		return true
	}
	if backoff == nil {
		backoff = &sysread.Backoff{}
		if n.refused == nil {
			n.refused = map[netlinkFact]*sysread.Backoff{}
		}
		n.refused[fact] = backoff
	}
	if nldev.Unsupported(err) {
		backoff.Refuse(r.now, 0, retryDirFirst, retryMost)
		return false
	}
	r.fail("netlink "+kind, err)
	backoff.Refuse(r.now, 1, retryFileFirst, retryMost)
	return false
}

func (n *netlinkSide) try(r *pass, request func(conn Netlink, device uint32) error) error {
	if n.conn == nil {
		conn, err := n.dial()
		if err != nil {
			return err
		}
		n.conn = conn
	}
	r.io.Request()
	err := request(n.conn, n.device.Index)
	var errno syscall.Errno
	if err != nil && !errors.As(err, &errno) {
		// After a time-out or a broken answer the next message may belong to
		// this request: start afresh.
		n.close()
	}
	return err
}

func (n *netlinkSide) close() {
	if n.conn != nil {
		_ = n.conn.Close()
		n.conn = nil
	}
}

// port returns a port's states.
func (n *netlinkSide) port(r *pass, number int) (port nldev.Port, ok bool) {
	ok = n.ask(r, "PORT_GET", number, func(conn Netlink, device uint32) (err error) {
		port, err = conn.Port(device, uint32(number))
		return err
	})
	return port, ok && port.State.Known && port.PhysicalState.Known
}

// counters returns a port's hw_counters.
func (n *netlinkSide) counters(r *pass, number int) (counters []nldev.Counter, ok bool) {
	ok = n.ask(r, "STAT_GET", number, func(conn Netlink, device uint32) (err error) {
		counters, err = conn.Counters(device, uint32(number))
		return err
	})
	return counters, ok && len(counters) > 0
}

// optional returns the counters that can be switched on.
func (n *netlinkSide) optional(r *pass, number int) (all []nldev.Optional) {
	n.ask(r, "STAT_GET_STATUS", number, func(conn Netlink, device uint32) (err error) {
		all, err = conn.OptionalCounters(device, uint32(number))
		return err
	})
	return all
}

// resources returns the number of objects by type, nil if not known.
func (n *netlinkSide) resources(r *pass) (counts map[string]uint64) {
	n.ask(r, "RES_GET", 0, func(conn Netlink, device uint32) (err error) {
		counts, err = conn.Resources(device)
		return err
	})
	return counts
}

// usage returns what processes hold of the device.
func (n *netlinkSide) usage(r *pass) (usage Usage) {
	var contexts nldev.Contexts
	if n.ask(r, "RES_CTX_GET", 0, func(conn Netlink, device uint32) (err error) {
		contexts, err = conn.Contexts(device)
		return err
	}) {
		usage.Contexts = sysread.Some(contexts.Total)
	}
	var memory nldev.Memory
	if n.ask(r, "RES_MR_GET", 0, func(conn Netlink, device uint32) (err error) {
		memory, err = conn.Memory(device)
		return err
	}) {
		usage.Memory = sysread.Some(memory)
	}
	usage.owners(&contexts, &memory)
	return usage
}

// owners joins what both answers say of processes, if both were given: one alone
// would show a process without what it holds.
func (u *Usage) owners(contexts *nldev.Contexts, memory *nldev.Memory) {
	if !u.Contexts.Known || !u.Memory.Known || contexts.Owners == nil || memory.Owners == nil {
		return
	}
	owners := contexts.Owners.Join(memory.Owners)
	u.Owners, u.Omitted = sysread.Some(owners.Processes), owners.Omitted
}

// netlinkCounters converts hw_counters, at most MaxCounters of them.
func netlinkCounters(all []nldev.Counter, out []Counter) (counters []Counter, omitted int) {
	if len(all) > MaxCounters {
		omitted = len(all) - MaxCounters
		all = all[:MaxCounters]
	}
	for _, counter := range all {
		out = append(out, Counter{Info: Info(SourceHW, counter.Name), Value: counter.Value})
	}
	return out, omitted
}

// fromNetlink completes an identity with what netlink says, and takes all of it
// from there where sysfs does not show the device.
func (id *Identity) fromNetlink(device *nldev.Device) {
	id.Protocol = device.Protocol
	if device.Parent != "" {
		id.Parent = device.Parent
	}
	if id.Firmware == "" {
		id.Firmware = device.Firmware
	}
	if id.NodeGUID == "" {
		id.NodeGUID = device.NodeGUID
	}
	if id.SysImageGUID == "" {
		id.SysImageGUID = device.SysImageGUID
	}
	if id.NodeType == "" && device.NodeType.Known {
		id.NodeType = nodeType(device.NodeType.Value)
	}
}

// nodeTypes are the texts of node_type (drivers/infiniband/core/sysfs.c).
var nodeTypes = []string{1: "CA", 2: "switch", 3: "router", 4: "RNIC", 5: "usNIC", 6: "usNIC UDP", 7: "unspecified"}

func nodeType(number int) string {
	if number > 0 && number < len(nodeTypes) {
		return nodeTypes[number]
	}
	return "<unknown " + strconv.Itoa(number) + ">"
}
