// Package node is for tests that run in several virtual machines at once, under
// vmtest --nodes: which of them this is, how to reach the others, and how to wait for
// them.
package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The environment of a command that vmtest --nodes runs.
const (
	NumberEnv = "VMTEST_NODE"   // 1 and up
	CountEnv  = "VMTEST_NODES"  // how many there are
	RailsEnv  = "VMTEST_RAILS"  // how many networks join them
	SharedEnv = "VMTEST_SHARED" // directory that all of them share
)

// Number is this node's, from 1 on; 0 outside of vmtest --nodes.
func Number() int { return number(NumberEnv) }

// Count is how many nodes there are.
func Count() int { return number(CountEnv) }

// Rails is how many networks join the nodes: RDMA device rxeK is on rail K.
func Rails() int { return number(RailsEnv) }

// Shared is the directory that all nodes share. Creating, renaming and removing files
// is atomic there, and seen at once by all; locks hold only within a node.
func Shared() string { return os.Getenv(SharedEnv) }

func number(name string) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		return 0
	}
	return n
}

// Name is the host name of a node; it leads to its address on rail 0.
func Name(n int) string { return fmt.Sprintf("node%d", n) }

// Address is the IPv4 address of a node on a rail.
func Address(n, rail int) netip.Addr { return netip.AddrFrom4([4]byte{10, 99, byte(rail), byte(n)}) }

// Address6 is the IPv6 address of a node on a rail.
func Address6(n, rail int) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x99, 7: byte(rail), 15: byte(n)})
}

// pollTime is how often the shared directory is looked at.
const pollTime = 50 * time.Millisecond

// Barrier returns when all nodes have called it with the same name. Each name is good
// for one time. It fails when a node that is waited for has ended.
func Barrier(ctx context.Context, name string) error {
	dir, err := within("barriers", name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("barrier %s: %w", name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(Number())), nil, 0o644); err != nil {
		return fmt.Errorf("barrier %s: %w", name, err)
	}
	for n := 1; n <= Count(); n++ {
		arrived := func() bool { return exists(filepath.Join(dir, strconv.Itoa(n))) }
		if err := wait(ctx, arrived, func() error { return hasEnded(n) }); err != nil {
			return fmt.Errorf("barrier %s: %s: %w", name, Name(n), err)
		}
	}
	return nil
}

// Put leaves something for the other nodes. They see all of it or nothing.
func Put(name string, data []byte) error {
	file, err := within("files", name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("put %s: %w", name, err)
	}
	if err := writeWhole(file, data); err != nil {
		return fmt.Errorf("put %s: %w", name, err)
	}
	return nil
}

// Get waits for what a node leaves under a name. It fails when all other nodes have
// ended without.
func Get(ctx context.Context, name string) ([]byte, error) {
	file, err := within("files", name)
	if err != nil {
		return nil, err
	}
	if err := wait(ctx, func() bool { return exists(file) }, othersEnded); err != nil {
		return nil, fmt.Errorf("get %s: %w", name, err)
	}
	return os.ReadFile(file)
}

// within is a file of the shared directory.
func within(kind, name string) (string, error) {
	switch {
	case Shared() == "":
		return "", fmt.Errorf("%s %s: not under vmtest --nodes (%s is not set)", kind, name, SharedEnv)
	case name == "" || strings.HasPrefix(name, ".") || strings.Contains(name, "/"):
		return "", fmt.Errorf("%s: %q is no name", kind, name)
	}
	return filepath.Join(Shared(), kind, name), nil
}

// wait polls until something is so, or can no longer be.
func wait(ctx context.Context, so func() bool, hopeless func() error) error {
	for {
		// In this order: what happened before the end of a node counts.
		end := hopeless()
		switch {
		case so():
			return nil
		case end != nil:
			return end
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollTime):
		}
	}
}

// ErrEnded says that a node's command has ended before it did what is waited for.
var ErrEnded = errors.New("its command has ended")

func hasEnded(n int) error {
	if status, ended := Ended(n); ended {
		return fmt.Errorf("%w with exit status %d", ErrEnded, status)
	}
	return nil
}

func othersEnded() error {
	for n := 1; n <= Count(); n++ {
		if _, ended := Ended(n); n != Number() && !ended {
			return nil
		}
	}
	return fmt.Errorf("all other nodes: %w", ErrEnded)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// writeWhole writes a file that has its name only when it is complete.
func writeWhole(file string, data []byte) error {
	part := fmt.Sprintf("%s.part%d", file, Number())
	if err := os.WriteFile(part, data, 0o644); err != nil {
		return err
	}
	return os.Rename(part, file)
}
