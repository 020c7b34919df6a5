package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// readableDir reports why path is no directory that can be listed, or nil.
func readableDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return unpath(path, err)
	}
	defer func() { _ = dir.Close() }()
	if _, err := dir.ReadDir(1); err != nil && err.Error() != "EOF" {
		return unpath(path, err)
	}
	return nil
}

// unpath says path and cause once: "/nosuch: no such file or directory".
func unpath(path string, err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err
	}
	return fmt.Errorf("%s: %w", path, err)
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
