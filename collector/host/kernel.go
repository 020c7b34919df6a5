package host

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"gdr_exporter/collector/sysread"
)

// Kernel answers what files do not, or not without naming what nobody asked for:
// of all addresses and processes only what counts leaves it. A recording can take
// its place.
type Kernel interface {
	// Usable reports why this process may not open the node at path for reading
	// and writing, nil if it may.
	Usable(path string) error
	// Links are the wanted ones of this network namespace's interfaces, by name.
	Links(wanted func(name string) bool) (map[string]Link, error)
	// Daemons are the processes that start jobs, in the order of their ids.
	Daemons() ([]Daemon, error)
}

// Link is what counts of a network interface.
type Link struct {
	Up   bool `json:"up"`
	IPv4 int  `json:"ipv4"` // addresses that are not link-local
	IPv6 int  `json:"ipv6"`
}

// NewKernel returns the running kernel, which finds processes where procfs is
// mounted in files; nil: those of the running system.
func NewKernel(procfs string, files sysread.Files) Kernel {
	return system{procfs: procfs, files: files}
}

type system struct {
	procfs string
	files  sysread.Files
}

func (system) Usable(path string) error {
	return unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.W_OK, unix.AT_EACCESS)
}

func (system) Links(wanted func(name string) bool) (map[string]Link, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	links := make(map[string]Link, len(interfaces))
	for i := range interfaces {
		if !wanted(interfaces[i].Name) {
			continue
		}
		link := Link{Up: interfaces[i].Flags&net.FlagUp != 0}
		addresses, err := interfaces[i].Addrs()
		if err != nil {
			continue // it has gone since; without its addresses it would look like one that has none
		}
		link.count(addresses)
		links[interfaces[i].Name] = link
	}
	return links, nil
}

// count counts addresses of which there is something to say.
func (l *Link) count(addresses []net.Addr) {
	for _, address := range addresses {
		prefix, err := netip.ParsePrefix(address.String())
		if err != nil {
			continue
		}
		switch ip := prefix.Addr().Unmap(); {
		case ip.IsLinkLocalUnicast():
		case ip.Is4():
			l.IPv4++
		default:
			l.IPv6++
		}
	}
}
