package node

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"
)

// as makes this process a node of several.
func as(t *testing.T, number, count int, shared string) {
	t.Helper()
	t.Setenv(NumberEnv, strconv.Itoa(number))
	t.Setenv(CountEnv, strconv.Itoa(count))
	t.Setenv(SharedEnv, shared)
}

// soon is a context for what must not come about.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*pollTime)
	t.Cleanup(cancel)
	return ctx
}

func TestOutside(t *testing.T) {
	as(t, 0, 0, "")
	for what, err := range map[string]error{"barrier": Barrier(t.Context(), "x"), "put": Put("x", nil)} {
		if err == nil || !strings.Contains(err.Error(), "not under vmtest --nodes") {
			t.Errorf("%s: %v", what, err)
		}
	}
	t.Setenv(NumberEnv, "x")
	if Number() != 0 || Shared() != "" {
		t.Errorf("node %d, %q", Number(), Shared())
	}
}

func TestNames(t *testing.T) {
	as(t, 1, 1, t.TempDir())
	for _, name := range []string{"", ".", "..", ".x", "a/b", "/a"} {
		if err := Put(name, nil); err == nil || !strings.Contains(err.Error(), "is no name") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if Name(3) != "node3" || Address(3, 2).String() != "10.99.2.3" || Address6(3, 2).String() != "fd99:0:0:2::3" {
		t.Errorf("%s, %v, %v", Name(3), Address(3, 2), Address6(3, 2))
	}
}

func TestBarrier(t *testing.T) {
	shared := t.TempDir()
	as(t, 1, 2, shared)
	if err := Barrier(soon(t), "begin"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "barrier begin: node2") {
		t.Errorf("alone: %v", err)
	}
	as(t, 2, 2, shared)
	if err := Barrier(t.Context(), "begin"); err != nil {
		t.Errorf("the second: %v", err)
	}
	as(t, 1, 2, shared)
	if err := Barrier(t.Context(), "begin"); err != nil {
		t.Errorf("once more: %v", err)
	}
	if err := Barrier(soon(t), "end"); err == nil {
		t.Error("another name passes")
	}
}

func TestBarrierWaits(t *testing.T) {
	shared := t.TempDir()
	as(t, 1, 2, shared)
	passed := make(chan error, 1)
	go func() { passed <- Barrier(t.Context(), "x") }()
	select {
	case err := <-passed:
		t.Fatalf("passed alone: %v", err)
	case <-time.After(3 * pollTime):
	}
	if err := writeWhole(shared+"/barriers/x/2", nil); err != nil {
		t.Fatal(err)
	}
	if err := <-passed; err != nil {
		t.Error(err)
	}
}

// A node that has ended is not waited for; one that was there before it ended counts.
func TestBarrierOfEnded(t *testing.T) {
	shared := t.TempDir()
	as(t, 2, 3, shared)
	_ = Barrier(soon(t), "before")
	if err := End(shared, 2, 7); err != nil {
		t.Fatal(err)
	}
	as(t, 3, 3, shared)
	_ = Barrier(soon(t), "before")
	as(t, 1, 3, shared)
	if err := Barrier(t.Context(), "before"); err != nil {
		t.Errorf("it was there: %v", err)
	}
	if err := Barrier(t.Context(), "after"); !errors.Is(err, ErrEnded) || !strings.Contains(err.Error(), "node2: its command has ended with exit status 7") {
		t.Errorf("got %v", err)
	}
}

func TestFiles(t *testing.T) {
	shared := t.TempDir()
	as(t, 1, 2, shared)
	if _, err := Get(soon(t), "port"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing: %v", err)
	}
	for _, text := range []string{"1234", "", "5"} {
		if err := Put("port", []byte(text)); err != nil {
			t.Fatal(err)
		}
		as(t, 2, 2, shared)
		if got, err := Get(t.Context(), "port"); err != nil || string(got) != text {
			t.Errorf("got %q, %v; want %q", got, err, text)
		}
		as(t, 1, 2, shared)
	}
	if err := End(shared, 2, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Get(t.Context(), "other"); !errors.Is(err, ErrEnded) {
		t.Errorf("all others have ended: %v", err)
	}
	if status, ended := Ended(2); status != 0 || !ended {
		t.Errorf("%d, %t", status, ended)
	}
	if _, ended := Ended(1); ended {
		t.Error("node 1 has ended")
	}
}

func TestStart(t *testing.T) {
	shared := t.TempDir()
	if err := WaitStart(soon(t), shared); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("before: %v", err)
	}
	if err := Start(shared); err != nil {
		t.Fatal(err)
	}
	if err := WaitStart(t.Context(), shared); err != nil {
		t.Errorf("after: %v", err)
	}
	if err := Start(shared + "/none"); err == nil {
		t.Error("no such directory, no error")
	}
}
