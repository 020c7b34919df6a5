package main

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// leaveToOwner gives the files that root has made in a directory to the owner of the
// directory: a daemon with an account of its own could not read them any more after
// a command that root gave by hand. What cannot be given stays root's.
func leaveToOwner(dir string) {
	var owner unix.Stat_t
	if os.Geteuid() != 0 || unix.Stat(dir, &owner) != nil || owner.Uid == 0 {
		return
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if entry.Type().IsRegular() {
			leaveFile(filepath.Join(dir, entry.Name()), &owner)
		}
	}
}

// leaveFile gives away one file. Whoever owns the directory may have put a link there
// to a file that is not his: that one is neither followed nor given.
func leaveFile(path string, owner *unix.Stat_t) {
	file, err := os.OpenFile(filepath.Clean(path), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()
	var own unix.Stat_t
	if unix.Fstat(int(file.Fd()), &own) != nil || own.Uid != 0 || own.Nlink != 1 || own.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	_ = file.Chown(int(owner.Uid), int(owner.Gid))
}
