package loopback

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
)

// fullResult has something in every field that is no error.
func fullResult() Result {
	r := Result{
		Device: "mlx5_0", Port: 2, Started: time.Unix(1_800_000_000, 123).UTC(), Duration: time.Second, RegisterOnly: true,
		Library: "/usr/lib64/libibverbs.so.1", NUMANode: -1, Ethernet: true, MTU: 4096, PKey: PKey{1, 0x8001}, MessageSize: 1 << 20, QueuePairs: 4,
		GPU: sysread.Some(GPUFacts{Address: "0000:1b:00.0", UUID: "GPU-1", Name: "H200", Driver: 13000, GPUDirectRDMA: true, DMABuf: true, Ordering: 100, Free: 1 << 37, Total: 1<<63 + 1}),
		GID: sysread.Some(GID{3, netip.MustParseAddr("::ffff:192.0.2.7"), "RoCE v2"}), RelaxedOrdering: sysread.Some(false),
		NICDMABuf: sysread.Some(true), DataDirect: sysread.Some(false), Method: MethodDMABuf, NCCLMethod: MethodPeermem, TransferredBytes: 1<<64 - 1,
		Registrations: []Registration{{Method: MethodPeermem, Duration: 1}, {Method: MethodDMABuf, Duration: 2, RelaxedOrdering: true}},
		Stages:        []StageResult{{Stage: StageOpen, Duration: 3}, {Stage: StageMeasure, Path: PathGPU, Duration: 4}},
	}
	for _, path := range Paths {
		r.Paths = append(r.Paths, PathResult{
			Path: path, Stage: StageVerify, BytesPerSecond: sysread.Some(1.5e10), Bytes: 1 << 27, Ratio: sysread.Some(0.0), LatencyMedian: sysread.Some(1900 * time.Nanosecond),
			LatencyP99: sysread.Some(2600 * time.Nanosecond), CPUSecondsPerGB: sysread.Some(0.0), Mismatches: sysread.Some(0), Verified: 1 << 26,
		})
	}
	return r
}

// carried is a result after the way through JSON, inside another value, as it is
// stored.
func carried(t *testing.T, r Result) Result {
	t.Helper()
	type holder struct{ Result Result }
	text, err := json.Marshal(holder{r})
	if err != nil {
		t.Fatal(err)
	}
	var back holder
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return back.Result
}

// TestResultJSON: every field survives, and what is not known stays so.
func TestResultJSON(t *testing.T) {
	full := fullResult()
	for field := range reflect.ValueOf(full).NumField() {
		if v := reflect.ValueOf(full); v.Field(field).IsZero() && v.Type().Field(field).Name != "NICDMABufErr" {
			t.Errorf("the test leaves out %s", v.Type().Field(field).Name)
		}
	}
	unknown := Result{Device: "mlx5_0", Port: 1, Started: time.Unix(1, 0).UTC(), Paths: []PathResult{{Path: PathHost}}}
	for _, r := range []Result{full, unknown} {
		if back := carried(t, r); !reflect.DeepEqual(back, r) {
			t.Errorf("%+v\nbecame\n%+v", r, back)
		}
	}
}

// TestResultJSONCompact: a whole run of five paths takes little room in a file.
func TestResultJSONCompact(t *testing.T) {
	l := newLedger(t)
	r := runOnThread(t.Context(), newFakeHost(t).spec(newHostGPU(l)), newFakeVerbs(l).load)
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", len(text))
	if len(text) > 5<<10 {
		t.Errorf("%d bytes: %s", len(text), text)
	}
	r.Started = r.Started.Round(0)
	if back := carried(t, r); !back.Started.Equal(r.Started) || len(back.Stages) != len(r.Stages) || !errors.Is(back.NICDMABufErr, syscall.EBADF) {
		t.Errorf("%+v", back)
	}
}

// loudError is an error with all that package loopback asks of others' errors.
type loudError struct{}

func (loudError) Error() string      { return "CUDA_ERROR_X" }
func (loudError) ErrnoName() string  { return "CUDA_ERROR_X" }
func (loudError) SkipReason() string { return "mig" }
func (loudError) Sticky() bool       { return true }

// TestErrorJSON: what is asked of errors has the same answer after JSON, wherever
// the error stands.
func TestErrorJSON(t *testing.T) {
	completion := &Error{Call: "completion", Status: LocalProtection, Vendor: 81}
	for _, err := range []error{
		nil, errors.New("plain"), ErrCorrupt, ErrDataDirect, ErrNotRegistered, ErrLocked, ErrNoLibrary, syscall.EACCES, completion, efault,
		fmt.Errorf("GPU: %w", loudError{}), skip(SkipPort, syscall.ENETDOWN), fmt.Errorf("%w: %d words", ErrCorrupt, 3),
		errors.Join(ErrNotRegistered, fmt.Errorf("peermem: %w", efault), fmt.Errorf("dmabuf: %w", eopnotsupp)),
		errors.Join(&teardownError{"queue pair", syscall.EBUSY}, &teardownError{"GPU", errKept}),
		errors.Join(completion, skip(SkipMemory, ErrLocked), syscall.Errno(524)), sysread.Invalid("junk"), errors.New("bad \xff bytes"),
	} {
		back := carried(t, Result{
			NICDMABufErr: err, Stages: []StageResult{{Stage: StageOpen, Err: err}},
			Registrations: []Registration{{Method: MethodPeermem, Err: err}}, Paths: []PathResult{{Path: PathGPU, Err: err}},
		})
		for where, got := range map[string]error{"NICDMABufErr": back.NICDMABufErr, "stage": back.Stages[0].Err, "registration": back.Registrations[0].Err, "path": back.Paths[0].Err} {
			if (err == nil) != (got == nil) {
				t.Errorf("%s: %v became %v", where, err, got)
			} else if err != nil {
				wantSame(t, where, err, got)
			}
		}
	}
}

func wantSame(t *testing.T, where string, err, got error) {
	t.Helper()
	if text := strings.ToValidUTF8(err.Error(), "?"); got.Error() != text {
		t.Errorf("%s: %q became %q", where, text, got)
	}
	if name := sysread.ErrnoName(err); sysread.ErrnoName(got) != name {
		t.Errorf("%s: %v is %s, was %s", where, err, sysread.ErrnoName(got), name)
	}
	if reason := SkipReason(err); SkipReason(got) != reason {
		t.Errorf("%s: %v is skipped for %q, was for %q", where, err, SkipReason(got), reason)
	}
	targets := []error{ErrCorrupt, ErrDataDirect, ErrNotRegistered, ErrLocked, ErrNoLibrary}
	for errno := range syscall.Errno(600) {
		targets = append(targets, errno)
	}
	for _, target := range targets {
		if errors.Is(got, target) != errors.Is(err, target) {
			t.Errorf("%s: %v is %v: %v", where, err, target, errors.Is(got, target))
		}
	}
	var before, after *Error
	if was := errors.As(err, &before); was != errors.As(got, &after) || was && *before != *after {
		t.Errorf("%s: %+v became %+v", where, before, after)
	}
}

// TestErrorJSONBounded: no error, however long, makes a file grow.
func TestErrorJSONBounded(t *testing.T) {
	var parts []error
	for i := range 1000 {
		parts = append(parts, &Error{Call: strings.Repeat("é", 5000), Errno: syscall.Errno(i)}, syscall.Errno(i))
	}
	text, err := json.Marshal(StageResult{Err: errors.Join(parts...)})
	if err != nil || len(text) > 64<<10 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	var back StageResult
	if err := json.Unmarshal(text, &back); err != nil || !errors.Is(back.Err, syscall.Errno(5)) || len(back.Err.Error()) > mostErrorText+3 {
		t.Errorf("%v, %v", back.Err, err)
	}
}

// TestUnknownJSON: fields and facts of a later version are left out.
func TestUnknownJSON(t *testing.T) {
	var r Result
	err := json.Unmarshal([]byte(`{"device":"mlx5_0","later":{"a":1},"stages":[{"stage":"dance","ns":5,"error":{"text":"x","is":["later","corrupt"],"later":1}}],"paths":[{"path":"p2p"}]}`), &r)
	if err != nil || r.Device != "mlx5_0" || r.Stages[0].Stage != "dance" || !errors.Is(r.Stages[0].Err, ErrCorrupt) || r.Paths[0].Path != "p2p" {
		t.Errorf("%+v, %v", r, err)
	}
	for _, text := range []string{`[]`, `{"stages":{}}`, `{"paths":[{"path":1}]}`, `{"registrations":[1]}`, `{"stages":[{"error":{"errno":[-1]}}]}`, `{`} {
		if err := json.Unmarshal([]byte(text), new(Result)); err == nil {
			t.Errorf("%s is a result", text)
		}
	}
}

// FuzzResultJSON: nothing that is read panics, whatever is asked of it, and what
// was read once is read again as the same.
func FuzzResultJSON(f *testing.F) {
	full := fullResult()
	full.Stages[0].Err, full.Paths[1].Err = errors.Join(efault, ErrCorrupt, skip("mig", syscall.EPERM)), ErrNotRegistered
	text, err := json.Marshal(full)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"stages":[{"error":{"text":"","errno":[18446744073709551615],"verbs":[{"call":"","status":-1}]}}],"nic_dmabuf_error":{}}`))
	f.Add([]byte(`{"register_only":true,"registrations":[{"method":"x","error":{}},{}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var r Result
		if json.Unmarshal(text, &r) != nil {
			return
		}
		_, _, _ = r.Err(), r.SkipReason(), r.Sticky()
		_ = describe(r)
		for i := range r.Stages {
			if err := r.Stages[i].Err; err != nil {
				_ = sysread.ErrnoName(err)
			}
		}
		Judge(&r, true, DefaultLimits)
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if len(again) > 16*len(text)+1<<10 {
			t.Errorf("%d bytes became %d", len(text), len(again))
		}
		var back Result
		if err := json.Unmarshal(again, &back); err != nil {
			t.Fatalf("%q: %v", again, err)
		}
		third, err := json.Marshal(back)
		if err != nil || string(third) != string(again) {
			t.Errorf("%s\nbecame\n%s, %v", again, third, err)
		}
	})
}
