package driver

import (
	"bytes"
	"path/filepath"
	"strings"
	"time"

	"gdr_exporter/collector/sysread"
)

// maxDepFile bounds modules.dep, which is of some 600 KiB.
const maxDepFile = 16 << 20

// depList says which modules a modules.dep names.
type depList struct {
	peers  map[string]bool // of PeerModules
	driver bool            // the NVIDIA driver's own modules
}

// depFile is a modules.dep that was read, and how it looked then: reading takes
// a millisecond, and it hardly ever changes.
type depFile struct {
	inode uint64
	size  int64
	mtime time.Time
	list  depList
}

// onDisk tells of each peer memory module whether modprobe would find it, from
// the modules.dep of the running kernel below each root. No root may have one:
// in a container without the host's file system nothing is known. Nor is it
// known that a module is missing while no list names the driver that is loaded:
// the driver then comes from elsewhere, and peermem with it.
func (p *pass) onDisk(release string, driverLoaded bool) map[string]sysread.Maybe[bool] {
	all := map[string]sysread.Maybe[bool]{}
	if release == "" {
		return all
	}
	var lists []depList
	complete, driver := true, false
	for _, root := range p.options.Roots {
		list, o := p.depList(root, release)
		complete = complete && o != failed
		if o == found {
			lists = append(lists, list)
			driver = driver || list.driver
		}
	}
	absenceKnown := len(lists) > 0 && complete && (driver || !driverLoaded)
	for _, module := range PeerModules {
		here := false
		for _, list := range lists {
			here = here || list.peers[module]
		}
		all[module] = sysread.Maybe[bool]{Value: here, Known: here || absenceKnown}
	}
	return all
}

// depList reads the modules.dep below a root.
func (p *pass) depList(root, release string) (depList, outcome) {
	for _, dir := range []string{"lib/modules", "usr/lib/modules"} {
		path := filepath.Join(root, dir, release, "modules.dep")
		var list depList
		o := p.try(deviceName, "modules.dep", path, func() (err error) {
			list, err = p.readDep(path)
			return err
		})
		if o != absent {
			return list, o
		}
	}
	return depList{}, absent
}

// readDep reads a modules.dep, or takes what it said if it has not changed.
func (p *pass) readDep(path string) (depList, error) {
	info, err := p.io.Stat(path)
	if err != nil {
		delete(p.deps, path)
		return depList{}, err
	}
	now := depFile{inode: info.Inode, size: info.Size, mtime: info.Modified}
	before, known := p.deps[path]
	if known && before.inode == now.inode && before.size == now.size && before.mtime.Equal(now.mtime) {
		return before.list, nil
	}
	delete(p.deps, path)
	text, err := p.io.ReadLines(path, maxDepFile, depLines())
	if err != nil {
		return depList{}, err
	}
	if now.list, err = parseDep(text); err == nil {
		p.deps[path] = now
	}
	return now.list, err
}

// depLines selects the lines of a modules.dep that matter, and the first of any
// module: a list without one is none.
func depLines() func(line []byte) bool {
	first := true
	return func(line []byte) bool {
		name, isModule := depEntry(line)
		if !isModule {
			return false
		}
		kept := first || matters(name)
		first = false
		return kept
	}
}

// depEntry returns the name of the module that a line of a modules.dep is about.
func depEntry(line []byte) (name string, isModule bool) {
	file, _, isEntry := bytes.Cut(line, []byte(":"))
	if !isEntry {
		return "", false
	}
	return moduleOfFile(file[bytes.LastIndexByte(file, '/')+1:])
}

// matters reports whether parseDep looks for a module.
func matters(name string) bool {
	return isDriverModule(name, "_peermem") || name == moduleNvPeerMem || isDriverModule(name, "_uvm")
}

// parseDep reads the text of a modules.dep: a module's file, a colon, and the
// files of the modules that it needs.
func parseDep(text []byte) (depList, error) {
	list := depList{peers: map[string]bool{}}
	modules := 0
	for line := range bytes.Lines(text) {
		name, isModule := depEntry(line)
		if !isModule {
			continue
		}
		modules++
		switch {
		case isDriverModule(name, "_peermem"):
			list.peers[moduleNvidiaPeermem] = true
		case name == moduleNvPeerMem:
			list.peers[moduleNvPeerMem] = true
		case isDriverModule(name, "_uvm"):
			list.driver = true
		}
	}
	if modules == 0 {
		return list, sysread.Invalid(string(text[:min(len(text), 64)]))
	}
	return list, nil
}

// moduleOfFile returns the name of the module in a file such as
// nvidia-peermem.ko.zst.
func moduleOfFile(file []byte) (string, bool) {
	name, suffix, isModule := strings.Cut(string(file), ".ko")
	switch suffix {
	case "", ".xz", ".zst", ".gz":
		return strings.ReplaceAll(name, "-", "_"), isModule && name != ""
	}
	return "", false
}

// isDriverModule reports whether name is one of the driver's modules. Debian
// puts the name of the variant between: nvidia_current_peermem.
func isDriverModule(name, suffix string) bool {
	return strings.HasPrefix(name, "nvidia_") && strings.HasSuffix(name, suffix)
}
