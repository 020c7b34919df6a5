package capture

import (
	"encoding/json"
	"fmt"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/nldev"
)

// Questions of RDMA netlink are its commands with the device's index and the
// port: "PORT_GET 0 1".
const questionDial = "dial"

func aboutDevice(command string, device uint32) string { return fmt.Sprint(command, " ", device) }

func aboutPort(command string, device, port uint32) string {
	return fmt.Sprint(command, " ", device, " ", port)
}

// netlinkDevice is nldev.Device in a recording.
type netlinkDevice struct {
	Index        uint32 `json:"index"`
	Name         string `json:"name"`
	Ports        uint32 `json:"ports"`
	Firmware     string `json:"firmware,omitempty"`
	NodeGUID     string `json:"node_guid,omitempty"`
	SysImageGUID string `json:"sys_image_guid,omitempty"`
	NodeType     *int   `json:"node_type,omitempty"`
	Protocol     string `json:"protocol,omitempty"`
	Parent       string `json:"parent,omitempty"`
}

// netlinkPort is nldev.Port in a recording.
type netlinkPort struct {
	State         *int    `json:"state,omitempty"`
	PhysicalState *int    `json:"physical_state,omitempty"`
	LID           *uint64 `json:"lid,omitempty"`
	SMLID         *uint64 `json:"sm_lid,omitempty"`
	Netdev        string  `json:"netdev,omitempty"`
}

// netlinkCounter, netlinkOptional and netlinkMemory are nldev.Counter, Optional
// and Memory in a recording.
type netlinkCounter struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

type netlinkOptional struct {
	Name    string `json:"name"`
	Enabled bool   `json:"enabled"`
}

type netlinkMemory struct {
	Regions uint64 `json:"regions"`
	Bytes   uint64 `json:"bytes"`

	Owners  []netlinkOwner `json:"owners,omitzero"` // nil: not known
	Omitted *netlinkOwner  `json:"omitted,omitempty"`
}

// netlinkContexts is nldev.Contexts in a recording. Those of earlier versions have
// the number alone.
type netlinkContexts struct {
	Contexts uint64 `json:"contexts"`

	Owners  []netlinkOwner `json:"owners,omitzero"` // nil: not known
	Omitted *netlinkOwner  `json:"omitted,omitempty"`
}

// netlinkOwner is nldev.Owner in a recording.
type netlinkOwner struct {
	PID      int    `json:"pid,omitempty"`
	Contexts uint64 `json:"contexts,omitempty"`
	Regions  uint64 `json:"regions,omitempty"`
	Bytes    uint64 `json:"bytes,omitempty"`
}

// UnmarshalJSON takes a number for one without owners.
func (c *netlinkContexts) UnmarshalJSON(text []byte) error {
	if err := json.Unmarshal(text, &c.Contexts); err == nil {
		return nil
	}
	type plain netlinkContexts
	return json.Unmarshal(text, (*plain)(c))
}

func fromOwners(o *nldev.Owners) (owners []netlinkOwner, omitted *netlinkOwner) {
	if o == nil {
		return nil, nil
	}
	if o.Omitted != (nldev.Owner{}) {
		beyond := netlinkOwner(o.Omitted)
		omitted = &beyond
	}
	return each(o.Processes, func(o nldev.Owner) netlinkOwner { return netlinkOwner(o) }), omitted
}

// toOwners puts them in order again: pseudonyms of ids have another one.
func toOwners(owners []netlinkOwner, omitted *netlinkOwner) *nldev.Owners {
	if owners == nil {
		return nil
	}
	all := &nldev.Owners{}
	for _, owner := range owners {
		all = all.With(nldev.Owner(owner))
	}
	if omitted != nil {
		all.Omitted = nldev.Owner(*omitted)
	}
	return all
}

func each[T, U any](all []T, convert func(T) U) []U {
	converted := make([]U, len(all))
	for i := range all {
		converted[i] = convert(all[i])
	}
	return converted
}

func pointer[T any](m sysread.Maybe[T]) *T {
	if !m.Known {
		return nil
	}
	return &m.Value
}

func maybe[T any](p *T) sysread.Maybe[T] {
	if p == nil {
		return sysread.Maybe[T]{}
	}
	return sysread.Some(*p)
}

func fromDevice(d nldev.Device) netlinkDevice {
	return netlinkDevice{d.Index, d.Name, d.Ports, d.Firmware, d.NodeGUID, d.SysImageGUID, pointer(d.NodeType), d.Protocol, d.Parent}
}

func (d netlinkDevice) device() nldev.Device {
	return nldev.Device{
		Index: d.Index, Name: d.Name, Ports: d.Ports, Firmware: d.Firmware, NodeGUID: d.NodeGUID, SysImageGUID: d.SysImageGUID,
		NodeType: maybe(d.NodeType), Protocol: d.Protocol, Parent: d.Parent,
	}
}

func fromPort(p *nldev.Port) netlinkPort {
	return netlinkPort{pointer(p.State), pointer(p.PhysicalState), pointer(p.LID), pointer(p.SMLID), p.Netdev}
}

func (p *netlinkPort) port() nldev.Port {
	return nldev.Port{State: maybe(p.State), PhysicalState: maybe(p.PhysicalState), LID: maybe(p.LID), SMLID: maybe(p.SMLID), Netdev: p.Netdev}
}

// recordDialer records what is asked through the sockets that dial opens.
func recordDialer(r *answerRecorder, dial rdma.Dialer) rdma.Dialer {
	return func() (rdma.Netlink, error) {
		conn, err := dial()
		note(r, answerKey{PartNetlink, questionDial}, true, err)
		if err != nil {
			return nil, err
		}
		return &recordedNetlink{conn, r}, nil
	}
}

type recordedNetlink struct {
	rdma.Netlink
	answers *answerRecorder
}

// Devices keeps the list as a whole.
func (n *recordedNetlink) Devices() (devices []nldev.Device, err error) {
	_, err = ask(n.answers, PartNetlink, "GET", func() ([]netlinkDevice, error) {
		devices, err = n.Netlink.Devices()
		return each(devices, fromDevice), err
	})
	return devices, err
}

func (n *recordedNetlink) Port(device, port uint32) (p nldev.Port, err error) {
	_, err = ask(n.answers, PartNetlink, aboutPort("PORT_GET", device, port), func() (netlinkPort, error) {
		p, err = n.Netlink.Port(device, port)
		return fromPort(&p), err
	})
	return p, err
}

func (n *recordedNetlink) Counters(device, port uint32) (counters []nldev.Counter, err error) {
	_, err = ask(n.answers, PartNetlink, aboutPort("STAT_GET", device, port), func() ([]netlinkCounter, error) {
		counters, err = n.Netlink.Counters(device, port)
		return each(counters, func(c nldev.Counter) netlinkCounter { return netlinkCounter(c) }), err
	})
	return counters, err
}

func (n *recordedNetlink) OptionalCounters(device, port uint32) (all []nldev.Optional, err error) {
	_, err = ask(n.answers, PartNetlink, aboutPort("STAT_GET_STATUS", device, port), func() ([]netlinkOptional, error) {
		all, err = n.Netlink.OptionalCounters(device, port)
		return each(all, func(o nldev.Optional) netlinkOptional { return netlinkOptional(o) }), err
	})
	return all, err
}

func (n *recordedNetlink) Resources(device uint32) (map[string]uint64, error) {
	return ask(n.answers, PartNetlink, aboutDevice("RES_GET", device), func() (map[string]uint64, error) { return n.Netlink.Resources(device) })
}

func (n *recordedNetlink) Contexts(device uint32) (contexts nldev.Contexts, err error) {
	_, err = ask(n.answers, PartNetlink, aboutDevice("RES_CTX_GET", device), func() (netlinkContexts, error) {
		contexts, err = n.Netlink.Contexts(device)
		owners, omitted := fromOwners(contexts.Owners)
		return netlinkContexts{contexts.Total, owners, omitted}, err
	})
	return contexts, err
}

func (n *recordedNetlink) Memory(device uint32) (memory nldev.Memory, err error) {
	_, err = ask(n.answers, PartNetlink, aboutDevice("RES_MR_GET", device), func() (netlinkMemory, error) {
		memory, err = n.Netlink.Memory(device)
		owners, omitted := fromOwners(memory.Owners)
		return netlinkMemory{memory.Regions, memory.Bytes, owners, omitted}, err
	})
	return memory, err
}

// playedNetlink answers from a recording.
type playedNetlink struct{ answers *answerPlayer }

// dial opens no socket.
func (n playedNetlink) dial() (rdma.Netlink, error) {
	if _, err := answer[bool](n.answers, PartNetlink, questionDial); err != nil {
		return nil, fmt.Errorf("RDMA netlink: %w", err)
	}
	return n, nil
}

func (playedNetlink) Close() error { return nil }

func (n playedNetlink) Devices() ([]nldev.Device, error) {
	kept, err := answer[[]netlinkDevice](n.answers, PartNetlink, "GET")
	return each(kept, netlinkDevice.device), err
}

func (n playedNetlink) Port(device, port uint32) (nldev.Port, error) {
	kept, err := answer[netlinkPort](n.answers, PartNetlink, aboutPort("PORT_GET", device, port))
	return kept.port(), err
}

func (n playedNetlink) Counters(device, port uint32) ([]nldev.Counter, error) {
	kept, err := answer[[]netlinkCounter](n.answers, PartNetlink, aboutPort("STAT_GET", device, port))
	return each(kept, func(c netlinkCounter) nldev.Counter { return nldev.Counter(c) }), err
}

func (n playedNetlink) OptionalCounters(device, port uint32) ([]nldev.Optional, error) {
	kept, err := answer[[]netlinkOptional](n.answers, PartNetlink, aboutPort("STAT_GET_STATUS", device, port))
	return each(kept, func(o netlinkOptional) nldev.Optional { return nldev.Optional(o) }), err
}

func (n playedNetlink) Resources(device uint32) (map[string]uint64, error) {
	return answer[map[string]uint64](n.answers, PartNetlink, aboutDevice("RES_GET", device))
}

func (n playedNetlink) Contexts(device uint32) (nldev.Contexts, error) {
	kept, err := answer[netlinkContexts](n.answers, PartNetlink, aboutDevice("RES_CTX_GET", device))
	return nldev.Contexts{Total: kept.Contexts, Owners: toOwners(kept.Owners, kept.Omitted)}, err
}

func (n playedNetlink) Memory(device uint32) (nldev.Memory, error) {
	kept, err := answer[netlinkMemory](n.answers, PartNetlink, aboutDevice("RES_MR_GET", device))
	return nldev.Memory{Regions: kept.Regions, Bytes: kept.Bytes, Owners: toOwners(kept.Owners, kept.Omitted)}, err
}
