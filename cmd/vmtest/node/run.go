package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// What follows is for vmtest itself, outside and inside of the virtual machines.

const startFile = ".start"

// Start lets the commands of all nodes start.
func Start(shared string) error {
	if err := writeWhole(filepath.Join(shared, startFile), nil); err != nil {
		return fmt.Errorf("start the nodes: %w", err)
	}
	return nil
}

// WaitStart waits until they may.
func WaitStart(ctx context.Context, shared string) error {
	file := filepath.Join(shared, startFile)
	return wait(ctx, func() bool { return exists(file) }, func() error { return nil })
}

func endFile(shared string, n int) string { return filepath.Join(shared, fmt.Sprintf(".end%d", n)) }

// End notes the exit status of a node's command.
func End(shared string, n, status int) error {
	if err := writeWhole(endFile(shared, n), []byte(strconv.Itoa(status))); err != nil {
		return fmt.Errorf("the end of %s: %w", Name(n), err)
	}
	return nil
}

// Ended is the exit status of a node's command, if it has ended.
func Ended(n int) (status int, ended bool) {
	text, err := os.ReadFile(endFile(Shared(), n))
	if err != nil {
		return 0, false
	}
	status, err = strconv.Atoi(string(text))
	return status, err == nil
}
