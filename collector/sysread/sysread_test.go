package sysread

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAttrKeepsItsDescriptor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	write(t, path, " 17\n")
	io := &IO{Descriptors: 1}
	a := NewAttr(path)
	var buf [AttrSize]byte
	for range 3 {
		if text, err := a.Read(io, buf[:]); err != nil || string(text) != "17" {
			t.Fatalf("%q, %v", text, err)
		}
	}
	if io.Opens() != 1 || io.Reads() != 3 || io.Held() != 1 {
		t.Errorf("%d opens, %d reads, %d held", io.Opens(), io.Reads(), io.Held())
	}
	b := NewAttr(path) // beyond the budget: opened each time
	for range 2 {
		if _, err := b.Read(io, buf[:]); err != nil {
			t.Fatal(err)
		}
	}
	if io.Opens() != 3 || io.Held() != 1 {
		t.Errorf("%d opens, %d held beyond the budget", io.Opens(), io.Held())
	}
	a.Close(io)
	a.Close(io)
	if io.Held() != 0 {
		t.Errorf("%d held after Close", io.Held())
	}
}

func TestAttrTooLongAndMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	write(t, path, strings.Repeat("1", AttrSize))
	io := &IO{Descriptors: 1}
	a := NewAttr(path)
	var buf [AttrSize]byte
	if _, err := a.Read(io, buf[:]); !errors.Is(err, ErrInvalid) {
		t.Errorf("error %v for a page of text", err)
	}
	missing := NewAttr(path + "x")
	if _, err := missing.Read(io, buf[:]); !Absent(err) || !Vanished(err) {
		t.Errorf("error %v for a missing file", err)
	}
}

func TestParseCounter(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "17": 17, "18446744073709551615": 1<<64 - 1, "007": 7} {
		if got, err := ParseCounter([]byte(text)); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "0xff", "18446744073709551616", "99999999999999999999", "1 2", "1.5", "many"} {
		if got, err := ParseCounter([]byte(text)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	if _, err := ParseCounter([]byte("N/A (no PMA)")); !errors.Is(err, ErrNoPMA) || !Refused(err) {
		t.Errorf("no PMA: %v", err)
	}
}

func FuzzParseCounter(f *testing.F) {
	for _, seed := range []string{"0", "18446744073709551615", "18446744073709551616", "N/A (no PMA)", "-1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseCounter([]byte(text))
		want, wantErr := strconv.ParseUint(text, 10, 64)
		digits := strings.Trim(text, "0123456789") == ""
		if err == nil && (wantErr != nil || got != want) {
			t.Errorf("%q: %d, want %d, %v", text, got, want, wantErr)
		}
		if err != nil && wantErr == nil && digits && len(text) <= 20 {
			t.Errorf("%q refused: %v", text, err)
		}
	})
}

func TestErrnoNames(t *testing.T) {
	for want, err := range map[string]error{
		"EIO": syscall.EIO, "EINVAL": syscall.EINVAL, "EOPNOTSUPP": syscall.EOPNOTSUPP, "EAGAIN": syscall.EAGAIN,
		"ENOTSUPP": syscall.Errno(524), "errno_9999": syscall.Errno(9999), "no_pma": ErrNoPMA, "invalid": Invalid("x"),
		"ENOENT": &os.PathError{Op: "open", Path: "x", Err: syscall.ENOENT},
	} {
		if got := (ReadError{Err: err}).Errno(); got != want {
			t.Errorf("%v is called %q, want %q", err, got, want)
		}
	}
}

func TestReadErrorNamesItsSubject(t *testing.T) {
	err := ReadError{Device: "mlx5_1", Port: "1", Source: "counters/link_downed", Err: syscall.EIO}
	if got, want := err.Error(), "mlx5_1 port 1 counters/link_downed: input/output error"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if !errors.Is(err, syscall.EIO) {
		t.Error("the cause is lost")
	}
}

func TestBackoff(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	var b Backoff
	b.Refuse(now, 1, time.Minute, time.Hour)
	if b.Waiting(now) {
		t.Error("waits after the free refusal")
	}
	for _, minutes := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
		b.Refuse(now, 1, time.Minute, time.Hour)
		wait := time.Duration(minutes) * time.Minute
		if !b.Waiting(now.Add(wait-1)) || b.Waiting(now.Add(wait)) {
			t.Errorf("does not wait %v", wait)
		}
		now = now.Add(wait)
	}
	b.Reset()
	if b.Waiting(now) {
		t.Error("waits after Reset")
	}
}
