package podresources_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gdr_exporter/collector/podresources"
	"gdr_exporter/collector/podresources/kubelettest"
	"gdr_exporter/collector/sysread"
)

var start = time.Unix(1_800_000_000, 0)

const (
	// patient bounds what is waited for.
	patient = time.Minute
	testGPU = "GPU-8d5b8f4c-1111-2222-3333-444455556666"
)

// newReader waits for every call.
func newReader(t *testing.T, socket string) *podresources.Reader {
	t.Helper()
	r := podresources.NewReader(podresources.Options{Socket: socket, Timeout: patient, Patience: patient})
	t.Cleanup(r.Close)
	return r
}

// await reads, as scrapes do, until a call has ended as wanted.
func await(t *testing.T, r *podresources.Reader, now time.Time, up bool) (podresources.Reading, []sysread.ReadError) {
	t.Helper()
	var errs []sysread.ReadError
	for deadline := time.Now().Add(patient); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		reading, more := r.Read(t.Context(), now)
		errs = append(errs, more...)
		if reading.Up == sysread.Some(up) {
			return reading, errs
		}
	}
	t.Fatalf("the kubelet is not seen to be up=%v", up)
	return podresources.Reading{}, nil
}

func TestDevices(t *testing.T) {
	k := kubelettest.Start(t,
		kubelettest.Pod("b", kubelettest.Container("main", "nvidia.com/gpu.shared", testGPU+"::0", testGPU+"::1", testGPU+"::2")),
		kubelettest.Pod("a", kubelettest.Container("main", "rdma/hca_shared_devices_a", "17", "4"), kubelettest.Container("side", "cpu", "0", "1")),
		kubelettest.Pod("c", kubelettest.Claim("main", "gpu.nvidia.com", "gpu-0")),
		nil, kubelettest.Pod("empty"),
	)
	reading, errs := newReader(t, k.Socket).Read(t.Context(), start)
	want := []podresources.Device{
		{Namespace: "team", Pod: "a", Container: "main", Resource: "rdma/hca_shared_devices_a", ID: podresources.ID{Kind: podresources.KindRDMA}},
		{Namespace: "team", Pod: "b", Container: "main", Resource: "nvidia.com/gpu.shared", ID: podresources.ID{Kind: podresources.KindGPU, Text: testGPU, GPU: testGPU}},
		{Namespace: "team", Pod: "c", Container: "main", Resource: "gpu.nvidia.com", ID: podresources.ID{Kind: podresources.KindGPU, Text: "gpu-0", Minor: sysread.Some(0)}},
	}
	if len(errs) > 0 || reading.Up != sysread.Some(true) || reading.Omitted != 0 || !reflect.DeepEqual(reading.Devices, want) {
		t.Errorf("%+v, %v", reading, errs)
	}
	if reading.Answered.Before(start) || reading.Answered.After(start.Add(patient)) {
		t.Errorf("answered at %v", reading.Answered)
	}
}

// TestInterval: the kubelet is asked every 30 seconds, whoever reads how often.
func TestInterval(t *testing.T) {
	k := kubelettest.Start(t)
	r := newReader(t, k.Socket)
	for second := range 90 {
		if _, errs := r.Read(t.Context(), start.Add(time.Duration(second)*time.Second)); len(errs) > 0 {
			t.Fatal(errs)
		}
	}
	if calls := k.Calls(); calls != 3 {
		t.Errorf("%d calls in 90 seconds", calls)
	}
	k.Answer(kubelettest.Pod("new", kubelettest.Container("main", "nvidia.com/gpu", testGPU)))
	if reading, _ := r.Read(t.Context(), start.Add(90*time.Second)); len(reading.Devices) != 1 {
		t.Errorf("the read that asks does not have the answer: %+v", reading)
	}
}

// TestHang: a kubelet that hangs holds up no read, is asked once at a time, is counted
// once when the time is over, and what it said before is no more shown then.
func TestHang(t *testing.T) {
	k := kubelettest.Start(t, kubelettest.Pod("a", kubelettest.Container("main", "nvidia.com/gpu", testGPU)))
	const timeout = 500 * time.Millisecond
	r := podresources.NewReader(podresources.Options{Socket: k.Socket, Timeout: timeout, Patience: time.Millisecond})
	defer r.Close()
	now := start
	for reading, _ := r.Read(t.Context(), now); len(reading.Devices) != 1; reading, _ = r.Read(t.Context(), now) {
		time.Sleep(time.Millisecond) // on a slow machine the first answer, or a later one, comes in time
		now = now.Add(time.Second)
	}
	release := k.Hang()
	defer release()
	now = now.Add(time.Hour)
	before := k.Calls()
	if reading, errs := r.Read(t.Context(), now); len(reading.Devices) != 1 || len(errs) > 0 {
		t.Errorf("while it hangs: %+v, %v", reading, errs)
	}
	reading, errs := await(t, r, now.Add(time.Second), false)
	if len(errs) != 1 || errs[0].Errno() != "ETIMEDOUT" || errs[0].Device != "kubelet" || errs[0].Source != "list" {
		t.Errorf("%v", errs)
	}
	if len(reading.Devices) > 0 || !reading.Answered.IsZero() {
		t.Errorf("after it hung: %+v", reading)
	}
	if more := k.Calls() - before; more != 1 {
		t.Errorf("%d calls", more)
	}
	if _, errs := r.Read(t.Context(), now.Add(2*time.Second)); len(errs) > 0 {
		t.Errorf("counted again: %v", errs)
	}
}

// TestHangsFromTheStart: nothing is said to be up or down before it is known, and the
// reader that is closed lets go of the call.
func TestHangsFromTheStart(t *testing.T) {
	k := kubelettest.Start(t)
	release := k.Hang()
	defer release()
	r := podresources.NewReader(podresources.Options{Socket: k.Socket, Timeout: patient, Patience: time.Millisecond})
	for i := range 3 {
		if reading, errs := r.Read(t.Context(), start.Add(time.Duration(i)*time.Hour)); reading.Up.Known || len(errs) > 0 {
			t.Errorf("%+v, %v", reading, errs)
		}
	}
	r.Close()
	if reading, errs := r.Read(t.Context(), start.Add(24*time.Hour)); reading.Up.Known || len(errs) > 0 {
		t.Errorf("closed: %+v, %v", reading, errs)
	}
	if calls := k.Calls(); calls > 1 {
		t.Errorf("%d calls", calls)
	}
}

// TestReadEndsWithTheScrape: a scrape whose time is over does not wait.
func TestReadEndsWithTheScrape(t *testing.T) {
	k := kubelettest.Start(t)
	defer k.Hang()()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if reading, _ := newReader(t, k.Socket).Read(ctx, start); reading.Up.Known {
		t.Errorf("%+v", reading)
	}
}

// TestFailures: each way of not answering is named, and is one error for one call.
func TestFailures(t *testing.T) {
	refusing := func(code codes.Code) func(*testing.T) string {
		return func(t *testing.T) string {
			k := kubelettest.Start(t)
			k.Fail(status.Error(code, "a text with\nlines"))
			return k.Socket
		}
	}
	for name, test := range map[string]struct {
		socket func(*testing.T) string
		errno  string
	}{
		"absent":        {func(t *testing.T) string { return filepath.Join(t.TempDir(), "none.sock") }, "ENOENT"},
		"a directory":   {func(t *testing.T) string { return t.TempDir() }, "ECONNREFUSED"},
		"stale":         {stale, "ECONNREFUSED"},
		"garbage":       {garbage, "grpc_unavailable"},
		"other service": {otherService, "EOPNOTSUPP"},
		"internal":      {refusing(codes.Internal), "grpc_internal"},
		"rate limit":    {refusing(codes.ResourceExhausted), "EMSGSIZE"},
		"denied":        {refusing(codes.PermissionDenied), "grpc_permissiondenied"},
		"too large": {func(t *testing.T) string {
			k := kubelettest.Start(t, kubelettest.Pod(strings.Repeat("x", 17<<20)))
			return k.Socket
		}, "EMSGSIZE"},
		"long path": {func(*testing.T) string { return "/" + strings.Repeat("x", 300) }, "EINVAL"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := test.socket(t)
			reading, errs := newReader(t, socket).Read(t.Context(), start)
			if reading.Up != sysread.Some(false) || len(reading.Devices) > 0 || len(errs) != 1 {
				t.Fatalf("%+v, %v", reading, errs)
			}
			if got := errs[0].Errno(); got != test.errno {
				t.Errorf("%s: %v", got, errs[0])
			}
			if !strings.Contains(errs[0].Error(), socket) {
				t.Errorf("the error does not name the socket: %v", errs[0])
			}
		})
	}
}

// stale is the socket of a server that is gone.
func stale(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	_ = listener.Close()
	return path
}

// garbage is the socket of something that speaks another language.
func garbage(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprint(conn, "220 mail ESMTP\r\n", strings.Repeat("\x00\xff", 100))
			_ = conn.Close()
		}
	}()
	return path
}

// TestPermission: a socket that may not be opened. Root may open all, so another user
// tries where root runs the test.
func TestPermission(t *testing.T) {
	k := kubelettest.Start(t)
	if err := os.Chmod(k.Socket, 0); err != nil {
		t.Fatal(err)
	}
	asNobody(t, func() {
		reading, errs := newReader(t, k.Socket).Read(t.Context(), start)
		if reading.Up != sysread.Some(false) || len(errs) != 1 || errs[0].Errno() != "EACCES" || !errors.Is(errs[0], syscall.EACCES) {
			t.Errorf("%+v, %v", reading, errs)
		}
	})
}

// TestVanishesAndReturns: a kubelet that is restarted is found again, by its new socket.
func TestVanishesAndReturns(t *testing.T) {
	k := kubelettest.Start(t, kubelettest.Pod("a", kubelettest.Container("main", "nvidia.com/gpu", testGPU)))
	r := newReader(t, k.Socket)
	if reading, _ := r.Read(t.Context(), start); len(reading.Devices) != 1 {
		t.Fatalf("%+v", reading)
	}
	k.Stop()
	reading, errs := await(t, r, start.Add(time.Minute), false)
	if len(reading.Devices) > 0 || len(errs) != 1 || errs[0].Errno() != "ENOENT" {
		t.Errorf("gone: %+v, %v", reading, errs)
	}
	k.Listen(t)
	if reading, errs := await(t, r, start.Add(2*time.Minute), true); len(reading.Devices) != 1 || len(errs) > 0 {
		t.Errorf("back: %+v, %v", reading, errs)
	}
}

// TestBounds: a huge answer is cut, and says so.
func TestBounds(t *testing.T) {
	var ids []string
	for i := range 5000 {
		ids = append(ids, fmt.Sprintf("GPU-00000000-0000-0000-0000-%012x", i))
	}
	k := kubelettest.Start(t,
		kubelettest.Pod("many", kubelettest.Container("main", "nvidia.com/gpu", ids...)),
		kubelettest.Pod(strings.Repeat("long", 1000), kubelettest.Container("main", "nvidia.com/gpu", testGPU)))
	reading, errs := newReader(t, k.Socket).Read(t.Context(), start)
	if len(reading.Devices) != podresources.MaxDevices || reading.Omitted != 5001-podresources.MaxDevices || len(errs) > 0 {
		t.Errorf("%d devices, %d omitted, %v", len(reading.Devices), reading.Omitted, errs)
	}
}
