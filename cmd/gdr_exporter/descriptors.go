package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// driverFiles are the beginnings of the names of files that keep a driver from
// being unloaded while a process has them open or mapped: of NVIDIA's driver, of
// the RDMA core, dma-bufs of GPU memory, and the event files of RDMA contexts.
var driverFiles = []string{"/dev/nvidia", "/dev/infiniband/", "/dmabuf:", "anon_inode:[infinibandevent]"}

// heldFiles returns the files whose names have one of the beginnings and which a
// process has open or mapped, each once, sorted; process is its directory in
// procfs. With an error it returns those that it saw.
func heldFiles(process string, beginnings []string) ([]string, error) {
	open, errOpen := openFiles(process)
	mapped, errMapped := mappedFiles(process)
	held := slices.DeleteFunc(append(open, mapped...), func(name string) bool {
		return !slices.ContainsFunc(beginnings, func(beginning string) bool { return strings.HasPrefix(name, beginning) })
	})
	slices.Sort(held)
	return slices.Compact(held), errors.Join(errOpen, errMapped)
}

// openFiles are the targets of the links in fd.
func openFiles(process string) ([]string, error) {
	dir := filepath.Join(process, "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open files: %w", err)
	}
	var names []string
	for _, entry := range entries {
		name, err := os.Readlink(filepath.Join(dir, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // closed meanwhile
		}
		if err != nil {
			return names, fmt.Errorf("open files: %w", err)
		}
		names = append(names, name)
	}
	return names, nil
}

// mappedFiles are the paths in maps: the sixth column, to the end of the line.
func mappedFiles(process string) ([]string, error) {
	file, err := os.Open(filepath.Join(process, "maps"))
	if err != nil {
		return nil, fmt.Errorf("mapped files: %w", err)
	}
	defer file.Close()
	var names []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		// No column before it has a slash.
		if _, path, found := strings.Cut(lines.Text(), " /"); found {
			names = append(names, "/"+path)
		}
	}
	if err := lines.Err(); err != nil {
		return names, fmt.Errorf("mapped files: %w", err)
	}
	return names, nil
}
