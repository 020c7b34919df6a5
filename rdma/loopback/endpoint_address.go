package loopback

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

// Address is what an endpoint's peer must know to connect to it, and to write to it.
// It goes from host to host as JSON; what came from there is to be checked.
type Address struct {
	Ethernet bool       `json:"ethernet,omitempty"` // RoCE; else InfiniBand
	LID      int        `json:"lid,omitempty"`
	GID      netip.Addr `json:"gid,omitzero"` // always of RoCE, of InfiniBand only if it is needed
	GIDType  string     `json:"gid_type,omitempty"`
	PKey     uint16     `json:"pkey"`
	MTU      int        `json:"mtu"` // bytes

	QueuePairs []QueuePairAddress `json:"qps"`

	// The memory that may be written to: none if Length is 0.
	RKey           uint32 `json:"rkey,omitempty"`
	VirtualAddress uint64 `json:"virtual_address,omitempty"`
	Length         uint64 `json:"length,omitempty"`

	Staged *StagedAddress `json:"staged,omitempty"` // of staged memory
}

// QueuePairAddress is one queue pair's number and first packet number.
type QueuePairAddress struct {
	Number uint32 `json:"number"`
	PSN    uint32 `json:"psn"`
}

// StagedAddress is how much an endpoint with staged memory holds: so many chunks of
// a size in host memory, and so many bytes of GPU memory.
type StagedAddress struct {
	Slots  int    `json:"slots"`
	Chunk  int    `json:"chunk"`
	Memory uint64 `json:"memory"`
}

// mostAddressText bounds an Address in JSON: with 64 queue pairs it has 4 KiB.
const mostAddressText = 16 << 10

// ParseAddress reads an Address in JSON, and checks it.
func ParseAddress(text []byte) (Address, error) {
	var a Address
	if len(text) > mostAddressText {
		return a, fmt.Errorf("address of %d bytes: %w", len(text), syscall.EMSGSIZE)
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return Address{}, fmt.Errorf("address: %w", err)
	}
	if err := a.Validate(); err != nil {
		return Address{}, err
	}
	return a, nil
}

// errAddress says that an address cannot be one of an endpoint.
var errAddress = errors.New("no valid address")

func invalidAddress(format string, args ...any) error {
	return fmt.Errorf("%w: %s: %w", errAddress, fmt.Sprintf(format, args...), syscall.EINVAL)
}

// Validate reports what no endpoint's address can be.
func (a Address) Validate() error {
	if mtuNumber(a.MTU) == 0 {
		return invalidAddress("MTU of %d bytes", a.MTU)
	}
	for _, check := range []func() error{a.checkPort, a.checkQueuePairs, a.checkMemory, a.checkStaged} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checkPort checks what the port is reached by.
func (a Address) checkPort() error {
	const mostUnicast = 0xbfff
	ip := a.GID.Unmap()
	switch {
	case a.GID.Zone() != "":
		return invalidAddress("GID with a zone")
	case a.GID.IsValid() && (ip.IsUnspecified() || ip.IsMulticast() || ip.IsLoopback() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255})):
		return invalidAddress("GID %v", a.GID)
	case a.Ethernet && !a.GID.IsValid():
		return invalidAddress("RoCE without a GID")
	case a.Ethernet && a.GIDType != typeRoCEv1 && a.GIDType != typeRoCEv2:
		return invalidAddress("GID of type %.32q", a.GIDType)
	case !a.Ethernet && (a.LID < 0 || a.LID > mostUnicast || a.LID == 0 && !a.GID.IsValid()):
		return invalidAddress("LID %d", a.LID)
	case a.PKey&^fullMember == 0:
		return invalidAddress("P_Key %#x", a.PKey)
	}
	return nil
}

func (a Address) checkQueuePairs() error {
	const most, special = 1<<24 - 1, 1 // 0 and 1 are for management
	if len(a.QueuePairs) < 1 || len(a.QueuePairs) > maxQueuePairs {
		return invalidAddress("%d queue pairs", len(a.QueuePairs))
	}
	seen := map[uint32]bool{}
	for _, qp := range a.QueuePairs {
		if qp.Number <= special || qp.Number > most || qp.PSN > most || seen[qp.Number] {
			return invalidAddress("queue pair %d, PSN %d", qp.Number, qp.PSN)
		}
		seen[qp.Number] = true
	}
	return nil
}

func (a Address) checkMemory() error {
	const mostLength = 1 << 40
	switch {
	case a.Length == 0 && (a.RKey != 0 || a.VirtualAddress != 0):
		return invalidAddress("key of no memory")
	case a.Length > mostLength || a.VirtualAddress+a.Length < a.VirtualAddress:
		return invalidAddress("%d bytes at %#x", a.Length, a.VirtualAddress)
	}
	return nil
}

func (a Address) checkStaged() error {
	s := a.Staged
	if s == nil {
		return nil
	}
	if s.Slots < 1 || s.Slots > mostSlots || s.Chunk < 8 || s.Chunk%8 != 0 || s.Chunk > mostMessage || s.Memory < uint64(s.Chunk) {
		return invalidAddress("staged through %d chunks of %d bytes, of %d", s.Slots, s.Chunk, s.Memory)
	}
	if a.Length != 0 && a.Length < uint64(s.Slots*s.Chunk) {
		return invalidAddress("%d bytes for %d chunks of %d", a.Length, s.Slots, s.Chunk)
	}
	return nil
}

// mtuNumber is the number that enum ibv_mtu has for so many bytes, 0 if none.
func mtuNumber(bytes int) int {
	for number, size := range mtuBytes {
		if size == bytes {
			return number
		}
	}
	return 0
}

// canReach reports why two ports cannot reach each other, as far as addresses tell.
func (a Address) canReach(peer Address) error {
	const fullMembers = fullMember
	unlike := func(what string, ours, theirs any) error {
		return fmt.Errorf("%s %v, the peer's is %v: %w", what, ours, theirs, syscall.EPROTONOSUPPORT)
	}
	switch {
	case a.Ethernet != peer.Ethernet:
		return unlike("RoCE", a.Ethernet, peer.Ethernet)
	case a.GID.IsValid() && a.GID == peer.GID, !a.Ethernet && a.LID != 0 && a.LID == peer.LID && !a.GID.IsValid():
		return fmt.Errorf("the peer's address %v, LID %d, is this port's own: %w", peer.GID, peer.LID, syscall.EADDRINUSE)
	case a.GID.IsValid() && !peer.GID.IsValid(), !a.GID.IsValid() && peer.LID == 0:
		return unlike("GID", a.GID, peer.GID)
	case a.Ethernet && a.GIDType != peer.GIDType:
		return unlike("GID type", a.GIDType, peer.GIDType)
	case a.Ethernet && a.GIDType == typeRoCEv2 && a.GID.Is4In6() != peer.GID.Is4In6():
		return unlike("GID", a.GID, peer.GID)
	case a.PKey&^fullMembers != peer.PKey&^fullMembers, a.PKey&fullMembers == 0 && peer.PKey&fullMembers == 0:
		return unlike("P_Key", fmt.Sprintf("%#x", a.PKey), fmt.Sprintf("%#x", peer.PKey))
	case len(a.QueuePairs) != len(peer.QueuePairs):
		return unlike("number of queue pairs", len(a.QueuePairs), len(peer.QueuePairs))
	case (a.Staged == nil) != (peer.Staged == nil):
		return unlike("staged", a.Staged != nil, peer.Staged != nil)
	}
	return nil
}

// chooseGIDFor returns the GID that a peer can best reach: of the kind of the peer's
// if that is known, one that is routed rather than one of the link.
func chooseGIDFor(gids []GID, peer *Address) (GID, error) {
	if peer != nil && peer.GID.IsValid() {
		gids = slices.DeleteFunc(slices.Clone(gids), func(g GID) bool {
			return g.Type != peer.GIDType || g.Address.Is4In6() != peer.GID.Is4In6()
		})
	}
	linkLocal := func(g GID) bool { return g.Address.Unmap().IsLinkLocalUnicast() }
	if peer == nil || !peer.GID.Unmap().IsLinkLocalUnicast() {
		if routed := slices.DeleteFunc(slices.Clone(gids), linkLocal); len(routed) > 0 {
			if gid, err := chooseGID(routed); err == nil {
				return gid, nil
			}
		}
	}
	return chooseGID(gids)
}
