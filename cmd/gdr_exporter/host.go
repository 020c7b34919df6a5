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

// limitProcessors runs the daemon's Go code on one processor, as node_exporter
// does: it has little to compute, and moving that between processors cost a
// tenth of a scrape's CPU without making it faster. A read that blocks in the kernel
// gives its processor up, so devices are still read at the same time.
// GOMAXPROCS in the environment overrides it.
func limitProcessors() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
}
