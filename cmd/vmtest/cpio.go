package main

import (
	"fmt"
	"io"
	"path"
	"strings"
)

// File types of a cpio entry's mode, as in stat(2).
const (
	cpioDirectory = 0o040000
	cpioRegular   = 0o100000
	cpioCharacter = 0o020000
)

// cpioWriter writes the "newc" archive format, the one the kernel unpacks as
// initramfs. Parent directories are added as needed. The first error sticks
// and is returned by close.
type cpioWriter struct {
	out    io.Writer
	offset int64
	inode  uint32
	dirs   map[string]bool
	err    error
}

func newCpioWriter(out io.Writer) *cpioWriter {
	return &cpioWriter{out: out, dirs: map[string]bool{".": true, "": true}}
}

// file adds a regular file.
func (w *cpioWriter) file(name string, permissions uint32, data []byte) {
	w.directory(path.Dir(name))
	w.entry(name, cpioRegular|permissions, 0, 0, data)
}

// character adds a character device node.
func (w *cpioWriter) character(name string, permissions, major, minor uint32) {
	w.directory(path.Dir(name))
	w.entry(name, cpioCharacter|permissions, major, minor, nil)
}

// directory adds a directory and its parents, once.
func (w *cpioWriter) directory(name string) {
	name = strings.TrimPrefix(name, "/")
	if w.dirs[name] {
		return
	}
	w.directory(path.Dir(name))
	w.dirs[name] = true
	w.entry(name, cpioDirectory|0o755, 0, 0, nil)
}

// close ends the archive.
func (w *cpioWriter) close() error {
	w.entry("TRAILER!!!", 0, 0, 0, nil)
	if w.err != nil {
		return fmt.Errorf("write cpio archive: %w", w.err)
	}
	return nil
}

// entry writes header, name and data, each padded to four bytes.
func (w *cpioWriter) entry(name string, mode, major, minor uint32, data []byte) {
	name = strings.TrimPrefix(name, "/")
	w.inode++
	fields := []uint32{
		w.inode, mode, 0, 0, 1, 0, uint32(len(data)), // inode, mode, uid, gid, links, mtime, size
		0, 0, major, minor, uint32(len(name) + 1), 0, // device, device node, name length, checksum
	}
	var header strings.Builder
	header.WriteString("070701")
	for _, field := range fields {
		fmt.Fprintf(&header, "%08X", field)
	}
	w.write([]byte(header.String() + name + "\x00"))
	w.pad()
	w.write(data)
	w.pad()
}

func (w *cpioWriter) pad() {
	w.write(make([]byte, (4-w.offset%4)%4))
}

func (w *cpioWriter) write(data []byte) {
	if w.err != nil || len(data) == 0 {
		return
	}
	n, err := w.out.Write(data)
	w.offset += int64(n)
	w.err = err
}
