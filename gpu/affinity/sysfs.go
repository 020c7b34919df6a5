package affinity

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"gdr_exporter/collector/sysread"
)

// addressPattern matches a PCI function's directory: domain (4 digits or more;
// Intel VMD has 5), bus, device, function.
var addressPattern = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// hostBridgePattern matches the directory of a PCI root.
var hostBridgePattern = regexp.MustCompile(`^pci[0-9a-f]{4,8}:[0-9a-f]{2}$`)

// entry is a name in a directory and the inode behind it, by which a device
// that was replaced under its name is told apart.
type entry struct {
	name  string
	inode uint64
}

// directory is the list of a directory's entries as of the last scan. Its order
// is the kernel's, which does not change while the entries do not.
type directory struct {
	path    string
	entries []entry
	buf     []byte
}

// scan lists the directory and reports whether anything changed since the last
// scan. It reads the kernel's records itself: they hold the inodes too, for
// which os.ReadDir would make a system call per entry. After a failure the
// entries are those of the last scan.
func (d *directory) scan(io *sysread.IO) (changed bool, err error) {
	io.Request()
	fd, err := unix.Open(d.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = unix.Close(fd) }()
	if d.buf == nil {
		d.buf = make([]byte, 1<<15)
	}
	var found []entry // nil as long as nothing differs
	n := 0
	for {
		size, err := unix.Getdents(fd, d.buf)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return false, err
		}
		if size <= 0 {
			break
		}
		found, n = d.compare(d.buf[:size], found, n)
	}
	switch {
	case found != nil:
		d.entries = found
	case n < len(d.entries):
		d.entries = d.entries[:n:n]
	default:
		return false, nil
	}
	return true, nil
}

// compare goes through directory records. While they are those of the last
// scan, it only counts them.
func (d *directory) compare(records []byte, found []entry, n int) ([]entry, int) {
	for len(records) > 0 {
		var inode uint64
		var name []byte
		if inode, name, records = nextRecord(records); len(name) == 0 || name[0] == '.' {
			continue
		}
		if found == nil {
			if n < len(d.entries) && d.entries[n].inode == inode && d.entries[n].name == string(name) {
				n++
				continue
			}
			found = append(make([]entry, 0, len(d.entries)+8), d.entries[:n]...)
		}
		found = append(found, entry{string(name), inode})
	}
	return found, n
}

// nextRecord takes a struct linux_dirent64 off: inode, offset, length, type, name.
func nextRecord(records []byte) (inode uint64, name, rest []byte) {
	const header = 8 + 8 + 2 + 1
	if len(records) < header {
		return 0, nil, nil
	}
	size := int(binary.NativeEndian.Uint16(records[16:]))
	if size < header || size > len(records) {
		return 0, nil, nil
	}
	name = records[header:size]
	if end := bytes.IndexByte(name, 0); end >= 0 {
		name = name[:end]
	}
	return binary.NativeEndian.Uint64(records), name, records[size:]
}

// linkBase returns the last element of a symbolic link's target, or "": an
// unbound function has no driver link.
func linkBase(path string) string {
	target, err := os.Readlink(path)
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// hexFile reads a file such as class, vendor or device: 0x030200.
func hexFile(io *sysread.IO, path string) (uint64, error) {
	text, err := sysread.ReadOnce(io, path)
	if err != nil {
		return 0, err
	}
	value, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 32)
	if err != nil || !strings.HasPrefix(text, "0x") {
		return 0, sysread.Invalid(text)
	}
	return value, nil
}

// place is where a function is in the tree.
type place struct {
	address    string
	dir        string   // below sysfs: devices/pci0000:15/0000:15:01.0/0000:17:00.0
	hostBridge string   // pci0000:15
	bridges    []string // from the one below the host bridge down to the function's own
}

// upstream returns the bridge above the function, "" below a host bridge.
func (p *place) upstream() string {
	if len(p.bridges) == 0 {
		return ""
	}
	return p.bridges[len(p.bridges)-1]
}

// above returns the place of the bridge at level i of the path.
func (p *place) above(i int) *place {
	up := len(p.bridges) - i
	dir := p.dir
	for range up {
		dir = filepath.Dir(dir)
	}
	return &place{address: p.bridges[i], dir: dir, hostBridge: p.hostBridge, bridges: p.bridges[:i:i]}
}

// parsePlace finds the deepest PCI function in a path below /sys and where it
// is. The last PCI root counts: Intel VMD has one below a function.
func parsePlace(path string) (place, bool) {
	elements := strings.Split(path, "/")
	last := len(elements) - 1
	for last >= 0 && !addressPattern.MatchString(elements[last]) {
		last--
	}
	if last < 0 {
		return place{}, false
	}
	p := place{address: elements[last], dir: strings.Join(elements[:last+1], "/")}
	at := last - 1
	for at >= 0 && addressPattern.MatchString(elements[at]) {
		at--
	}
	p.bridges = elements[at+1 : last : last]
	if at >= 0 && hostBridgePattern.MatchString(elements[at]) {
		p.hostBridge = elements[at]
	}
	return p, true
}

// followLink returns where a link in sysfs leads, relative to sysfs. One that
// leads out of it is as none. Nothing is opened.
func followLink(sysfs, link string) (string, error) {
	target, err := os.Readlink(filepath.Join(sysfs, link))
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(link), target)
	if !filepath.IsLocal(path) {
		return "", syscall.ENOENT
	}
	return path, nil
}
