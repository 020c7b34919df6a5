package affinity

import (
	"errors"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"gdr_exporter/collector/sysread"
)

// addressPattern matches a PCI function's directory: domain (4 digits or more;
// Intel VMD has 5), bus, device, function.
var addressPattern = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// hostBridgePattern matches the directory of a PCI root.
var hostBridgePattern = regexp.MustCompile(`^pci[0-9a-f]{4,8}:[0-9a-f]{2}$`)

// readText reads a file of a device or a function. ENODEV says that what the name
// stood for was taken away between the look-up and the reading: by now there is
// no such file, or the name stands for what came in its place, so it is read
// once more. A file that gives ENODEV again does so by itself.
func readText(io *sysread.IO, path string) (string, error) {
	text, err := sysread.ReadOnce(io, path)
	if errors.Is(err, syscall.ENODEV) {
		text, err = sysread.ReadOnce(io, path)
	}
	return text, err
}

// hexFile reads a file such as class, vendor or device: 0x030200.
func hexFile(io *sysread.IO, path string) (uint64, error) {
	text, err := readText(io, path)
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
func followLink(io *sysread.IO, sysfs, link string) (string, error) {
	target, err := io.Readlink(filepath.Join(sysfs, link))
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(link), target)
	if !filepath.IsLocal(path) {
		return "", syscall.ENOENT
	}
	return path, nil
}
