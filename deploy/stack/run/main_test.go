package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestMistakes: each costs one line that says what is wrong.
func TestMistakes(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"-captures", "no-such"}, "no-such"},
		{[]string{"-captures", ""}, "nothing to scrape"},
	} {
		err := run(t.Context(), c.args, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v", c.args, err)
		}
	}
	for _, args := range [][]string{{"-speed", "0.5"}, {"more"}, {"-none"}} {
		if err := run(t.Context(), args, io.Discard, io.Discard); !errors.Is(err, errUsage) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func needTools(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"prometheus", "prometheus-alertmanager"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
}

// TestPortInUse: the address is named, and nothing is left running.
func TestPortInUse(t *testing.T) {
	needTools(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	used := listener.Addr().String()
	for _, flag := range []string{"-prometheus", "-alertmanager", "-receiver"} {
		args := []string{"-captures", "h200-1", "-prometheus", "127.0.0.1:0", "-alertmanager", "127.0.0.1:0", "-receiver", "127.0.0.1:0", flag, used}
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), used+": bind: address already in use") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// TestEnds: the end of its context, as Ctrl-C gives, ends all in order.
func TestEnds(t *testing.T) {
	needTools(t)
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"-captures", "h200-1", "-prometheus", "127.0.0.1:0", "-alertmanager", "127.0.0.1:0", "-receiver", "127.0.0.1:0", "-speed", "60"}, &out, io.Discard)
	}()
	select {
	case err := <-done:
		t.Fatalf("ended by itself: %v", err)
	case <-time.After(10 * time.Second):
	}
	cancel()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
