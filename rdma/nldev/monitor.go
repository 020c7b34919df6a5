package nldev

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"

	"gdr_exporter/rdma/nlattr"
)

// EventType is a RDMA_..._EVENT number.
type EventType uint8

// Types of event. The last two came after Linux 6.12.
const (
	EventRegister EventType = iota
	EventUnregister
	EventNetdevAttach
	EventNetdevDetach
	EventRename
	EventNetdevRename
)

// EventNames are the names of the types in metrics.
var EventNames = []string{"register", "unregister", "netdev_attach", "netdev_detach", "rename", "netdev_rename"}

// Event tells of a device that came, went or changed its name.
type Event struct {
	Type   EventType
	Device string
}

// Monitor hears the kernel's events about RDMA devices (MONITOR, Linux 6.12).
type Monitor struct{ conn *netlink.Conn }

// ErrNoEvents says that the kernel tells of no events. As root one can join
// their group nevertheless, and would wait for ever.
var ErrNoEvents = errors.New("the kernel tells of no events about RDMA devices")

// Listen opens a Monitor. On kernels before 6.12 it fails with ErrNoEvents.
func Listen() (*Monitor, error) {
	if err := events(); err != nil {
		return nil, err
	}
	conn, err := netlink.Dial(family, nil)
	if err != nil {
		return nil, fmt.Errorf("RDMA netlink: %w", err)
	}
	if err := conn.JoinGroup(groupNotify); err != nil {
		return nil, errors.Join(fmt.Errorf("RDMA netlink MONITOR: %w", err), conn.Close())
	}
	return NewMonitor(conn), nil
}

// events reports why there are no events, nil if there are.
func events() error {
	conn, err := Dial(time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	system, err := conn.System()
	if err == nil && !system.Monitor {
		err = ErrNoEvents
	}
	return err
}

// NewMonitor returns a Monitor on a connection that has joined the group.
func NewMonitor(conn *netlink.Conn) *Monitor { return &Monitor{conn} }

// Close ends Run.
func (m *Monitor) Close() error {
	// A read in progress ends by its deadline.
	return errors.Join(m.conn.SetDeadline(time.Unix(1, 0)), m.conn.Close())
}

// Run calls f for each event until the Monitor is closed. Events that the kernel
// had to drop are told of as one of an unknown type.
func (m *Monitor) Run(f func(Event)) error {
	for {
		messages, err := m.conn.Receive()
		switch {
		case errors.Is(err, syscall.ENOBUFS):
			f(Event{Type: EventType(len(EventNames))})
			continue
		case err != nil:
			return fmt.Errorf("RDMA netlink MONITOR: %w", err)
		}
		for _, message := range messages {
			if event, ok := decodeEvent(message); ok {
				f(event)
			}
		}
	}
}

func decodeEvent(message netlink.Message) (Event, bool) {
	if message.Header.Type != netlink.HeaderType(client<<10|uint16(cmdMonitor)) {
		return Event{}, false
	}
	var event Event
	var typed bool
	// What follows a malformed attribute is lost; what came before counts.
	_ = attributes(message.Data, func(kind uint16, value []byte) {
		switch kind {
		case attrEventType:
			n, ok := nlattr.Number(value)
			event.Type, typed = EventType(n), ok
		case attrDevName:
			event.Device = nlattr.Text(value)
		}
	})
	return event, typed
}
