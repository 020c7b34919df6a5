package loopback

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"gdr_exporter/collector/sysread"
)

// Names in gid_attrs/types.
const (
	typeRoCEv2 = "RoCE v2"
	typeRoCEv1 = "IB/RoCE v1" // also what InfiniBand has
)

// gidGap is how many empty slots in a row end the search of a GID table. The
// kernel fills the lowest free slot.
const gidGap = 64

// GID is an entry of a port's GID table.
type GID struct {
	Index   int
	Address netip.Addr
	Type    string // as in gid_attrs/types: "RoCE v2", "IB/RoCE v1"; "" if it cannot be read
}

// PKey is an entry of a port's P_Key table.
type PKey struct {
	Index int
	Value uint16 // bit 15 set: full membership
}

// portFiles reads what the kernel says of a port: /sys/class/infiniband/DEVICE.
type portFiles struct {
	io        sysread.IO
	root      string // of sysfs
	deviceDir string
	portDir   string
}

func newPortFiles(root, device string, port int) *portFiles {
	dir := root + "/class/infiniband/" + device
	return &portFiles{root: root, deviceDir: dir, portDir: dir + "/ports/" + strconv.Itoa(port)}
}

func (p *portFiles) read(path string) (string, error) { return sysread.ReadOnce(&p.io, path) }

// uverbs returns the name of the device's character device, such as uverbs0.
func (p *portFiles) uverbs(device string) (string, error) {
	if _, err := sysread.ReadNames(&p.io, p.deviceDir); err != nil {
		return "", fmt.Errorf("no RDMA device %s: %w", device, err)
	}
	class := p.root + "/class/infiniband_verbs"
	names, err := sysread.ReadNames(&p.io, class)
	if err != nil {
		return "", fmt.Errorf("no verbs devices (is ib_uverbs loaded?): %w", err)
	}
	for _, name := range names {
		if owner, err := p.read(class + "/" + name + "/ibdev"); err == nil && owner == device {
			return name, nil
		}
	}
	return "", fmt.Errorf("%s has no verbs device: %w", device, syscall.ENODEV)
}

// openable opens and closes the character device, for the true reason if that
// cannot be done: libibverbs reports EACCES as ENOENT, and a missing directory
// as an empty list of devices.
func openable(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	return unix.Close(fd)
}

// numaNode is the NUMA node of the device's PCI function, -1 if it has none.
func (p *portFiles) numaNode() int {
	text, err := p.read(p.deviceDir + "/device/numa_node")
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(text)
	if err != nil || node < 0 {
		return -1
	}
	return node
}

// gids returns the port's GIDs, without the empty ones.
func (p *portFiles) gids() ([]GID, error) {
	var found []GID
	for index, empty := 0, 0; empty < gidGap; index++ {
		slot := strconv.Itoa(index)
		text, err := p.read(p.portDir + "/gids/" + slot)
		if sysread.Absent(err) {
			break
		}
		if err != nil {
			return found, fmt.Errorf("gids/%s: %w", slot, err)
		}
		address, err := parseGID(text)
		if err != nil {
			return found, fmt.Errorf("gids/%s: %w", slot, err)
		}
		if address == netip.IPv6Unspecified() {
			empty++
			continue
		}
		// In a container a GID of another namespace's interface has no type
		// (EINVAL), and cannot be used.
		kind, err := p.read(p.portDir + "/gid_attrs/types/" + slot)
		if err != nil {
			kind = ""
		}
		empty = 0
		found = append(found, GID{Index: index, Address: address, Type: kind})
	}
	return found, nil
}

// parseGID reads eight groups of four hexadecimal digits.
func parseGID(text string) (netip.Addr, error) {
	var raw [16]byte
	if len(text) != 39 || strings.Count(text, ":") != 7 {
		return netip.Addr{}, sysread.Invalid(text)
	}
	for i, group := range strings.Split(text, ":") {
		if n, err := hex.Decode(raw[2*i:], []byte(group)); err != nil || n != 2 {
			return netip.Addr{}, sysread.Invalid(text)
		}
	}
	return netip.AddrFrom16(raw), nil
}

// errNoGID says that an Ethernet port has no GID to be reached by.
var errNoGID = errors.New("no usable GID")

// chooseGID returns the GID that a port can reach itself by, on Ethernet:
// RoCE v2 of an IPv4 address, else RoCE v2, else v1. Link-local ones do.
func chooseGID(gids []GID) (GID, error) {
	best, bestScore := GID{}, 0
	for _, gid := range gids {
		if score := gid.score(); score > bestScore {
			best, bestScore = gid, score
		}
	}
	if bestScore == 0 {
		return GID{}, fmt.Errorf("%w among %d: %w", errNoGID, len(gids), syscall.EADDRNOTAVAIL)
	}
	return best, nil
}

func (g GID) score() int {
	switch {
	case g.Type == typeRoCEv2 && g.Address.Is4In6():
		return 3
	case g.Type == typeRoCEv2:
		return 2
	case g.Type == typeRoCEv1:
		return 1
	default:
		return 0
	}
}

// gidAt returns the GID of a given index.
func gidAt(gids []GID, index int) (GID, error) {
	for _, gid := range gids {
		if gid.Index == index {
			return gid, nil
		}
	}
	return GID{}, fmt.Errorf("GID %d is empty: %w", index, syscall.EADDRNOTAVAIL)
}

// fullMember is the P_Key bit of full membership: two limited members cannot
// talk to each other, so not to themselves either.
const fullMember = 0x8000

// pkey returns the entry of value want, or if that is 0 the first one of full
// membership. Drivers without a table have only the default key, at index 0.
func (p *portFiles) pkey(want uint16) (PKey, error) {
	for index := 0; ; index++ {
		slot := strconv.Itoa(index)
		text, err := p.read(p.portDir + "/pkeys/" + slot)
		switch {
		case sysread.Absent(err) && index == 0 && want == 0:
			return PKey{0, 0xffff}, nil
		case sysread.Absent(err):
			return PKey{}, fmt.Errorf("no such P_Key, or none of full membership, among %d: %w", index, syscall.EADDRNOTAVAIL)
		case err != nil:
			return PKey{}, fmt.Errorf("pkeys/%s: %w", slot, err)
		}
		value, err := parsePKey(text)
		if err != nil {
			return PKey{}, fmt.Errorf("pkeys/%s: %w", slot, err)
		}
		if want != 0 && value == want || want == 0 && value > fullMember {
			return PKey{index, value}, nil
		}
	}
}

// parsePKey reads a number such as 0xffff.
func parsePKey(text string) (uint16, error) {
	digits, prefixed := strings.CutPrefix(text, "0x")
	value, err := strconv.ParseUint(digits, 16, 16)
	if err != nil || !prefixed {
		return 0, sysread.Invalid(text)
	}
	return uint16(value), nil
}
