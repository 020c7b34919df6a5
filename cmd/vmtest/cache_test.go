package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestCachedFillsOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	var fills atomic.Int32
	fill := func(_ context.Context, part string) error {
		fills.Add(1)
		time.Sleep(50 * time.Millisecond)
		return os.WriteFile(filepath.Join(part, "file"), nil, 0o600)
	}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if err := cached(context.Background(), dir, fill); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if fills.Load() != 1 {
		t.Errorf("filled %d times", fills.Load())
	}
	if !exists(filepath.Join(dir, "file")) || exists(dir+".part") {
		t.Error("wrong contents")
	}
}

func TestCachedFailureLeavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	// What a killed run leaves behind must not get into the next result.
	if err := os.MkdirAll(filepath.Join(dir+".part", "stale"), 0o755); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	err := cached(context.Background(), dir, func(_ context.Context, part string) error {
		if exists(filepath.Join(part, "stale")) {
			t.Error("stale contents")
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	if exists(dir) || exists(dir+".part") {
		t.Error("something is left")
	}
}

func TestLockIsCancelled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(context.Background(), file)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := lockFile(ctx, file); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestCacheDir(t *testing.T) {
	t.Setenv("GDR_VMTEST_CACHE", "/some/where")
	if got, err := cacheDir(); err != nil || got != "/some/where" {
		t.Errorf("got %s, %v", got, err)
	}
	t.Setenv("GDR_VMTEST_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", "/xdg")
	if got, err := cacheDir(); err != nil || got != "/xdg/gdr_exporter/vmtest" {
		t.Errorf("got %s, %v", got, err)
	}
}
