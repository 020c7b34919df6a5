package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// cacheDir is where kernels and built modules are kept between runs.
func cacheDir() (string, error) {
	if dir := os.Getenv("GDR_VMTEST_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory (set GDR_VMTEST_CACHE): %w", err)
	}
	return filepath.Join(dir, "gdr_exporter", "vmtest"), nil
}

// cached returns the directory dir, filled by fill on first use. It appears
// under its name only when complete, and parallel runs wait for the first, so
// an interrupted download leaves nothing that looks finished.
func cached(ctx context.Context, dir string, fill func(ctx context.Context, dir string) error) error {
	if exists(dir) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	unlock, err := lockFile(ctx, dir+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if exists(dir) {
		return nil
	}
	part := dir + ".part"
	if err := fillPart(ctx, part, fill); err != nil {
		return errors.Join(err, os.RemoveAll(part))
	}
	if err := os.Rename(part, dir); err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	return nil
}

// fillPart fills an empty directory. What an interrupted run left there is
// removed first: the caller holds the lock, so nobody else uses it.
func fillPart(ctx context.Context, part string, fill func(ctx context.Context, dir string) error) error {
	if err := os.RemoveAll(part); err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	if err := os.Mkdir(part, 0o755); err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	return fill(ctx, part)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// lockFile takes an exclusive lock that the kernel gives back if vmtest dies.
// It polls, since a blocked flock could not be cancelled.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cache lock: %w", err)
	}
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = file.Close()
			return nil, fmt.Errorf("cache lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, fmt.Errorf("cache lock %s: %w", path, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
