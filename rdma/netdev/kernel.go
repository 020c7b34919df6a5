package netdev

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"time"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"gdr_exporter/collector/sysread"
)

// Kernel is what the reader asks of the kernel besides sysfs. Errors wrap an
// errno: ENODEV for an interface that is not there, EOPNOTSUPP for what the
// driver lacks.
type Kernel interface {
	// Index returns the interface's number (SIOCGIFINDEX).
	Index(name string) (int, error)
	// Address returns its hardware address as sysfs writes it, "" for a kind
	// of interface whose address the call does not give (SIOCGIFHWADDR).
	Address(name string) (string, error)
	// StatCount, StatNames and Stats are ETHTOOL_GSSET_INFO, _GSTRINGS and _GSTATS.
	StatCount(name string) (int, error)
	StatNames(name string, count int) ([]string, error)
	Stats(name string, values []uint64) error
	// DCB returns the body of the answer to DCB_CMD_IEEE_GET.
	DCB(name string) ([]byte, error)
	// Close lets go of sockets; they are opened again when needed.
	Close()
}

// netlinkTimeout bounds the wait for a netlink answer. The kernel has done the
// work when the request returns, so it is never waited for in practice.
const netlinkTimeout = 5 * time.Second

// linux is the running kernel, in the network namespace of the process.
//
// The ethtool calls are made here rather than by github.com/safchain/ethtool:
// that fetches driver information and all names anew with the values each time,
// three passes through the driver under the network configuration's lock
// instead of one, and has no guard against what statArea is for.
type linux struct {
	fd    int
	area  statArea
	route *netlink.Conn
}

// NewKernel returns the running kernel, in the network namespace of the process;
// nothing is opened yet.
func NewKernel() Kernel { return &linux{fd: -1} }

// Close closes the sockets; they are opened again when needed.
func (k *linux) Close() {
	if k.fd >= 0 {
		_ = unix.Close(k.fd)
		k.fd = -1
	}
	k.area.free()
	if k.route != nil {
		_ = k.route.Close()
		k.route = nil
	}
}

// request is struct ifreq with a pointer in its union.
type request struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [24 - unsafe.Sizeof(uintptr(0))]byte
}

// ioctl makes the call on interface name with a pointer to its argument.
func (k *linux) ioctl(name string, call uintptr, data unsafe.Pointer) error {
	r := request{data: data}
	if err := k.prepare(r.name[:], name); err != nil {
		return err
	}
	return k.call(call, unsafe.Pointer(&r))
}

func (k *linux) prepare(to []byte, name string) error {
	if len(name) >= unix.IFNAMSIZ {
		return unix.ENODEV // no interface has such a name
	}
	copy(to, name)
	if k.fd >= 0 {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	k.fd = fd
	return nil
}

func (k *linux) call(call uintptr, r unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(k.fd), call, uintptr(r))
	if errno != 0 {
		return errno
	}
	return nil
}

// plain is struct ifreq with its union as bytes.
type plain struct {
	name  [unix.IFNAMSIZ]byte
	union [24]byte
}

func (k *linux) Index(name string) (int, error) {
	var r plain
	if err := k.prepare(r.name[:], name); err != nil {
		return 0, err
	}
	err := k.call(unix.SIOCGIFINDEX, unsafe.Pointer(&r))
	return int(int32(binary.NativeEndian.Uint32(r.union[:]))), err
}

func (k *linux) Address(name string) (string, error) {
	var r plain
	if err := k.prepare(r.name[:], name); err != nil {
		return "", err
	}
	if err := k.call(unix.SIOCGIFHWADDR, unsafe.Pointer(&r)); err != nil {
		return "", err
	}
	// struct sockaddr: family, then up to 14 bytes of address. Only
	// Ethernet's six are sure to be all of it.
	if binary.NativeEndian.Uint16(r.union[:]) != unix.ARPHRD_ETHER {
		return "", nil
	}
	return net.HardwareAddr(r.union[2:8]).String(), nil
}

func (k *linux) StatCount(name string) (int, error) {
	// struct ethtool_sset_info: cmd, reserved, sset_mask, data[1].
	var info struct {
		cmd, _ uint32
		mask   uint64
		count  uint32
		_      uint32
	}
	info.cmd, info.mask = unix.ETHTOOL_GSSET_INFO, 1<<ethSSStats
	if err := k.ioctl(name, unix.SIOCETHTOOL, unsafe.Pointer(&info)); err != nil {
		return 0, err
	}
	if info.mask == 0 || info.count == 0 {
		return 0, unix.EOPNOTSUPP
	}
	return int(info.count), nil
}

// Numbers of linux/ethtool.h: the string set of the statistics, and the size of
// one name.
const (
	ethSSStats  = 1  // ETH_SS_STATS
	gstringSize = 32 // ETH_GSTRING_LEN
)

func (k *linux) StatNames(name string, count int) ([]string, error) {
	const head = 12 // struct ethtool_gstrings: cmd, string_set, len
	area, err := k.area.get(head + count*gstringSize)
	if err != nil {
		return nil, err
	}
	binary.NativeEndian.PutUint32(area, unix.ETHTOOL_GSTRINGS)
	binary.NativeEndian.PutUint32(area[4:], ethSSStats)
	binary.NativeEndian.PutUint32(area[8:], uint32(count))
	if err := k.ioctl(name, unix.SIOCETHTOOL, unsafe.Pointer(&area[0])); err != nil {
		return nil, err
	}
	if got := binary.NativeEndian.Uint32(area[8:]); int(got) != count {
		return nil, changed(count, got)
	}
	names := make([]string, count)
	for i := range names {
		text := area[head+i*gstringSize:][:gstringSize]
		text, _, _ = bytes.Cut(text, []byte{0})
		names[i] = string(text)
	}
	return names, nil
}

func (k *linux) Stats(name string, values []uint64) error {
	const head = 8 // struct ethtool_stats: cmd, n_stats
	area, err := k.area.get(head + len(values)*8)
	if err != nil {
		return err
	}
	binary.NativeEndian.PutUint32(area, unix.ETHTOOL_GSTATS)
	binary.NativeEndian.PutUint32(area[4:], uint32(len(values)))
	if err := k.ioctl(name, unix.SIOCETHTOOL, unsafe.Pointer(&area[0])); err != nil {
		return err
	}
	if got := binary.NativeEndian.Uint32(area[4:]); int(got) != len(values) {
		return changed(len(values), got)
	}
	for i := range values {
		values[i] = binary.NativeEndian.Uint64(area[head+i*8:])
	}
	return nil
}

func changed(want int, got uint32) error {
	return fmt.Errorf("%w: %d statistics have become %d", sysread.ErrInvalid, want, got)
}

// statArea is memory for the kernel to write statistics to.
//
// Kernels before 2026 write as many as the driver has, whatever number they
// are given (fixed by 7b07be1ff1cb, "ethtool: Avoid overflowing userspace
// buffer on stats query"). If that number grows between two calls they write
// past the end; so the memory ends at a page that cannot be written, at which
// the call fails with EFAULT.
type statArea struct {
	mapped []byte
	usable int
}

// get returns size bytes, all 0, that end at the guard page.
func (a *statArea) get(size int) ([]byte, error) {
	page := unix.Getpagesize()
	if size > a.usable {
		a.free()
		usable := (size + page - 1) / page * page
		mapped, err := unix.Mmap(-1, 0, usable+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return nil, fmt.Errorf("memory for statistics: %w", err)
		}
		if err := unix.Mprotect(mapped[usable:], unix.PROT_NONE); err != nil {
			_ = unix.Munmap(mapped)
			return nil, fmt.Errorf("guard page for statistics: %w", err)
		}
		a.mapped, a.usable = mapped, usable
	}
	start := (a.usable - size) &^ 7 // numbers of 8 bytes are written
	area := a.mapped[start : start+size]
	clear(area)
	return area, nil
}

func (a *statArea) free() {
	if a.mapped != nil {
		_ = unix.Munmap(a.mapped)
	}
	*a = statArea{}
}

func (k *linux) DCB(name string) ([]byte, error) {
	if k.route == nil {
		conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
		if err != nil {
			return nil, fmt.Errorf("netlink socket: %w", err)
		}
		k.route = conn
	}
	body, err := k.askDCB(name)
	if err != nil && !unsupported(err) && !gone(err) {
		// An answer may still come: a new socket does not see it.
		_ = k.route.Close()
		k.route = nil
	}
	return body, err
}

func (k *linux) askDCB(name string) ([]byte, error) {
	if err := k.route.SetDeadline(time.Now().Add(netlinkTimeout)); err != nil {
		return nil, err
	}
	// Without NLM_F_ACK: the answer is the acknowledgement.
	answers, err := k.route.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETDCB, Flags: netlink.Request},
		Data:   dcbRequest(name),
	})
	if err != nil {
		return nil, err
	}
	if len(answers) == 0 {
		return nil, fmt.Errorf("%w: no answer", sysread.ErrInvalid)
	}
	return answers[0].Data, nil
}
