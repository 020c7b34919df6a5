package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// link is a socket pair between vmtest (near) and QEMU (far).
type link struct{ near, far *os.File }

// links are the channels out of the VM.
type links struct {
	console, stdout, stderr, control link
	rails                            []link // Ethernet frames
}

func newLinks(rails int) (*links, error) {
	l := &links{rails: make([]link, rails)}
	for _, each := range l.all() {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			l.closeFar()
			l.closeNear()
			return nil, fmt.Errorf("socket pair: %w", err)
		}
		each.near = os.NewFile(uintptr(pair[0]), "near")
		each.far = os.NewFile(uintptr(pair[1]), "far")
	}
	return l, nil
}

// all lists the links in the order of QEMU's descriptors.
func (l *links) all() []*link {
	all := []*link{&l.console, &l.stdout, &l.stderr, &l.control}
	for i := range l.rails {
		all = append(all, &l.rails[i])
	}
	return all
}

// far returns QEMU's ends.
func (l *links) far() []*os.File {
	var files []*os.File
	for _, each := range l.all() {
		files = append(files, each.far)
	}
	return files
}

// closeFar closes QEMU's ends here, so that its death reads as end of file.
func (l *links) closeFar() {
	for _, each := range l.all() {
		if each.far != nil {
			_ = each.far.Close()
		}
	}
}

func (l *links) closeNear() {
	for _, each := range l.all() {
		if each.near != nil {
			_ = each.near.Close()
		}
	}
}
