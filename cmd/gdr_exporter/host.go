package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// readableDir reports why path is no directory that can be listed, or nil.
func readableDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return unpath(err)
	}
	defer func() { _ = dir.Close() }()
	if _, err := dir.ReadDir(1); err != nil && !errors.Is(err, io.EOF) {
		return unpath(err)
	}
	return nil
}

// unpath takes the path off an error of the file that a flag names, since the
// message has it already: "no such file or directory".
func unpath(err error) error {
	if pathError, isBare := err.(*fs.PathError); isBare { //nolint:errorlint // one wrapped is about some other file
		return pathError.Err
	}
	return err
}

// descriptorBudget is how many files the readers may keep open: most of what
// the process may have, the rest being left to connections and everything else.
func descriptorBudget() int64 {
	const reserve, most = 256, 1 << 16
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	if limit.Cur > most {
		return most - reserve
	}
	return max(int64(limit.Cur)-reserve, 0)
}

// limitProcessors keeps a daemon that does little from spreading over all of a
// large node's processors. GOMAXPROCS in the environment overrides it.
func limitProcessors() {
	const most = 4
	if os.Getenv("GOMAXPROCS") == "" && runtime.NumCPU() > most {
		runtime.GOMAXPROCS(most)
	}
}
