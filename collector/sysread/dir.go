package sysread

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dir is the list of a directory's entries as of the last scan. Its order is the
// kernel's, which does not change while the entries do not.
type Dir struct {
	Path    string
	entries []Entry
	buf     []byte
}

// Entries are those of the last scan, without the ones whose name begins with a
// dot.
func (d *Dir) Entries() []Entry { return d.entries }

// Clear forgets the entries, and reports whether there were any.
func (d *Dir) Clear() bool {
	had := len(d.entries) > 0
	d.entries = nil
	return had
}

// Scan lists the directory and reports whether anything changed since the last
// scan. After a failure the entries are those of the last scan.
func (d *Dir) Scan(io *IO) (changed bool, err error) {
	io.Request()
	if io.Files == nil {
		return d.scanSystem()
	}
	entries, err := io.Files.ReadDir(d.Path)
	if err != nil || slices.Equal(entries, d.entries) {
		return false, err
	}
	d.entries = entries
	return true, nil
}

// scanSystem reads the kernel's records itself: they hold the inodes too, for
// which os.ReadDir would make a system call per entry.
func (d *Dir) scanSystem() (changed bool, err error) {
	fd, err := openSystem(d.Path, unix.O_DIRECTORY)
	if err != nil {
		return false, err
	}
	defer func() { _ = unix.Close(fd) }()
	if d.buf == nil {
		d.buf = make([]byte, 1<<15)
	}
	var found []Entry // nil as long as nothing differs
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
func (d *Dir) compare(records []byte, found []Entry, n int) ([]Entry, int) {
	for len(records) > 0 {
		var inode uint64
		var name []byte
		if inode, name, records = nextRecord(records); len(name) == 0 || name[0] == '.' {
			continue
		}
		if found == nil {
			if n < len(d.entries) && d.entries[n].Inode == inode && d.entries[n].Name == string(name) {
				n++
				continue
			}
			found = append(make([]Entry, 0, len(d.entries)+8), d.entries[:n]...)
		}
		found = append(found, Entry{string(name), inode})
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
