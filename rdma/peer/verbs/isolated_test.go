package verbs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/child"
	"gdr_exporter/rdma/loopback/isolate"
	"gdr_exporter/rdma/peer/session"
)

// longest is more than any child of a test needs on a busy machine.
const longest = time.Minute

// TestMain makes this binary a child if its arguments say so.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "child" {
		os.Exit(asChild(os.Args[2]))
	}
	os.Exit(m.Run())
}

// asChild is the hidden command with an endpoint of the test's.
func asChild(mode string) int {
	// No test may leave core files.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	signal.Ignore(syscall.SIGTERM)
	err := childMain(context.Background(), os.Stdin, os.Stdout, func(o order) session.Opener { return played{mode, o} })
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 4
	}
	return 0
}

// played opens endpoints of tests.
type played struct {
	mode string
	order
}

func (p played) Parse(text json.RawMessage) (session.Address, error) { return Opener{}.Parse(text) }

func (p played) Open(ctx context.Context, spec session.Spec) (session.Endpoint, error) {
	switch p.mode {
	case "not opened":
		return nil, failure(loopback.StageRegister, &loopback.Error{Call: "ibv_reg_mr", Errno: syscall.EFAULT})
	case "opens slowly":
		<-ctx.Done()
		return nil, failure(loopback.StageOpen, &loopback.Error{Call: "stopped", Errno: syscall.ECANCELED})
	case "opening hangs":
		select {}
	case "opening crashes":
		panic("while it opens")
	case "exits well":
		os.Exit(0)
	case "floods":
		for {
			fmt.Println(strings.Repeat("x", 1<<16))
		}
	case "a bad address":
		return &playedEndpoint{mode: p.mode, order: p.order}, nil
	case "noisy":
		fmt.Println("libfoo: warning")
		fmt.Println(`{"number":0,"facts":5}`)
	}
	return &playedEndpoint{mode: p.mode, order: p.order, spec: spec}, nil
}

// playedEndpoint shows what it was opened with, and fails as its mode says.
type playedEndpoint struct {
	mode  string
	order order
	spec  session.Spec
}

func (e *playedEndpoint) Address() session.Address {
	if e.mode == "a bad address" {
		return session.Address{Text: json.RawMessage(`{"mtu":1}`)}
	}
	text, _ := json.Marshal(roce())
	return session.Address{Text: text}
}

func (e *playedEndpoint) Facts() session.Facts {
	return session.Facts{GID: e.order.GPU.Roots[0], Method: e.order.Template.SysfsRoot, GPU: e.spec.GPU, MTU: e.order.MostBuffer, QueuePairs: e.spec.Shape.QueuePairs}
}

func (e *playedEndpoint) Connect(_ context.Context, peer session.Address) error {
	if e.mode == "library exits" {
		fmt.Fprint(os.Stderr, "first\nbad library\n")
		os.Exit(7)
	}
	if _, err := loopback.ParseAddress(peer.Text); err != nil {
		return err
	}
	return nil
}

func (e *playedEndpoint) Fill(_ context.Context, seed uint64) error {
	switch e.mode {
	case "segfaults":
		address := uintptr(8)
		return fmt.Errorf("%d", **(**int)(unsafe.Pointer(&address)))
	case "hangs":
		select {}
	case "sleeps":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		select {} // it takes a moment
	}
	if seed != 1<<63+5 {
		return fmt.Errorf("seed %d: %w", seed, syscall.EDOM)
	}
	return nil
}

func (e *playedEndpoint) Write(ctx context.Context, bytes uint64, within time.Duration) (session.Written, error) {
	w := session.Written{Bytes: bytes, Elapsed: within, CPU: 3, Extents: []session.Extent{{Offset: 8, Length: 16}}}
	switch e.mode {
	case "stops":
		<-ctx.Done()
		return w, failure(loopback.StageWrite, &loopback.Error{Call: "stopped", Errno: syscall.ECANCELED})
	case "retries":
		return w, failure(loopback.StageWrite, &loopback.Error{Call: "completion", Status: 12, Vendor: 0x81})
	}
	return w, nil
}

func (e *playedEndpoint) Ping(_ context.Context, count int) (session.Pings, error) {
	if count < 0 || count > 1000 {
		return session.Pings{}, syscall.EINVAL
	}
	return session.Pings{Latencies: make([]time.Duration, count), Lost: 2}, nil
}

func (e *playedEndpoint) Serve(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (e *playedEndpoint) Verify(_ context.Context, seed uint64, extents []session.Extent) (session.Verification, error) {
	return session.Verification{Bytes: seed, Mismatches: len(extents)}, nil
}

func (e *playedEndpoint) Close() error {
	switch e.mode {
	case "closing fails":
		return failure(loopback.StageTeardown, &loopback.Error{Call: "ibv_dereg_mr", Errno: syscall.EBUSY})
	case "closing hangs":
		select {}
	}
	return nil
}

// graceOf is short where a child does not end by itself. Where it does a machine may
// stall meanwhile.
func graceOf(mode string) time.Duration {
	switch mode {
	case "hangs", "sleeps", "opening hangs", "closing hangs", "floods", "a bad address":
		return 300 * time.Millisecond
	}
	return longest
}

func isolation(mode string) *Isolation {
	return &Isolation{
		Program: child.Program{Args: []string{"child", mode}}, Settings: isolate.GPUSettings{Roots: []string{"/r"}}, Grace: graceOf(mode),
	}
}

func gpuSpec() session.Spec {
	spec := wanted()
	spec.Memory, spec.GPU, spec.Shape.QueuePairs = session.GPU, "0000:17:00.0", 3
	return spec
}

// opened opens an endpoint of GPU memory as a session does. Its child is gone at the end
// of the test.
func openedBy(t *testing.T, i *Isolation) (*remote, error) {
	t.Helper()
	opener := Opener{
		Template: loopback.EndpointSpec{SysfsRoot: "/s", GID: sysread.Some(3), LibraryDirs: []string{"/l"}}, MostBuffer: 1 << 20,
		OpenGPU: func(string) (loopback.GPU, error) { panic("in this process") }, Isolation: func() *Isolation { return i },
	}
	e, err := opener.Open(t.Context(), gpuSpec())
	if err != nil {
		return nil, err
	}
	r, is := e.(*remote)
	if !is {
		t.Fatalf("%T", e)
	}
	t.Cleanup(func() {
		_ = r.Close()
		wantNoChild(t, i, r.process.ID())
	})
	return r, nil
}

func mustOpen(t *testing.T, i *Isolation) *remote {
	t.Helper()
	r, err := openedBy(t, i)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// wantNoChild expects that a process is no more, not even as a zombie, and is forgotten.
func wantNoChild(t *testing.T, i *Isolation, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, 0); pid > 0 && !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d: %v", pid, err)
	}
	for end := time.Now().Add(longest); len(i.processes()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("processes %v are left", i.processes())
		}
	}
}

// TestIsolated: all calls go to the child and what they return comes back.
func TestIsolated(t *testing.T) {
	for _, mode := range []string{"good", "noisy"} {
		t.Run(mode, func(t *testing.T) {
			i := isolation(mode)
			r := mustOpen(t, i)
			if got := i.processes(); len(got) != 1 || got[0] == os.Getpid() {
				t.Errorf("processes %v", got)
			}
			if want := (session.Facts{GID: "/r", Method: "/s", GPU: "0000:17:00.0", MTU: 1 << 20, QueuePairs: 3}); r.Facts() != want {
				t.Errorf("facts %+v, want %+v", r.Facts(), want)
			}
			if a := r.Address(); a.Where != "10.99.0.2" || a.Length != 4096 {
				t.Errorf("address %+v", a)
			}
			ctx := t.Context()
			peer := session.Address{Text: text(t, roce())}
			if err := errors.Join(r.Connect(ctx, peer), r.Fill(ctx, 1<<63+5)); err != nil {
				t.Error(err)
			}
			w, err := r.Write(ctx, 77, 9*time.Second)
			if want := (session.Written{Bytes: 77, Elapsed: 9 * time.Second, CPU: 3, Extents: []session.Extent{{Offset: 8, Length: 16}}}); err != nil || !reflect.DeepEqual(w, want) {
				t.Errorf("%+v, %v", w, err)
			}
			if p, err := r.Ping(ctx, 64); err != nil || len(p.Latencies) != 64 || p.Lost != 2 {
				t.Errorf("%+v, %v", p, err)
			}
			if v, err := r.Verify(ctx, 5, []session.Extent{{}, {}}); err != nil || v != (session.Verification{Bytes: 5, Mismatches: 2}) {
				t.Errorf("%+v, %v", v, err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			wantNoChild(t, i, r.process.ID())
			if err := r.Close(); err != nil { // again
				t.Error(err)
			}
		})
	}
}

// TestIsolatedFailures: failures of calls are what they would be in this process.
func TestIsolatedFailures(t *testing.T) {
	r := mustOpen(t, isolation("retries"))
	w, err := r.Write(t.Context(), 77, 0)
	wantFailure(t, err, session.Failure{Reason: session.ReasonRDMA, Stage: "write", Call: "completion", Status: "IBV_WC_RETRY_EXC_ERR", Text: "completion with IBV_WC_RETRY_EXC_ERR, vendor error 0x81 (129)"})
	if w.Bytes != 77 {
		t.Errorf("what was written before: %+v", w)
	}
	err = r.Fill(t.Context(), 1)
	wantFailure(t, err, session.Failure{Reason: session.ReasonRDMA, Stage: "fill", Errno: "EDOM", Text: "seed 1: numerical argument out of domain"})
	if !errors.Is(err, syscall.EDOM) {
		t.Error("the errno is lost")
	}
	_, err = openedBy(t, isolation("not opened"))
	wantFailure(t, err, session.Failure{Reason: session.ReasonRDMA, Stage: "register", Call: "ibv_reg_mr", Errno: "EFAULT", Text: "ibv_reg_mr: EFAULT (bad address)"})
	_, err = openedBy(t, isolation("a bad address"))
	wantFailure(t, err, session.Failure{Reason: session.ReasonInvalid, Errno: "EINVAL", Text: "no valid address: MTU of 1 bytes: invalid argument"})
	err = mustOpen(t, isolation("closing fails")).Close()
	wantFailure(t, err, session.Failure{Reason: session.ReasonRDMA, Stage: "teardown", Call: "ibv_dereg_mr", Errno: "EBUSY", Text: "ibv_dereg_mr: EBUSY (device or resource busy)"})
}

func wantFailure(t *testing.T, err error, want session.Failure) {
	t.Helper()
	var f *session.Failure
	if !errors.As(err, &f) {
		t.Errorf("%v is no failure", err)
		return
	}
	if f.Reason != want.Reason || f.Stage != want.Stage || f.Call != want.Call || f.Errno != want.Errno || f.Status != want.Status || f.Text != want.Text || f.Peer {
		t.Errorf("got  %+v\nwant %+v", *f, want)
	}
}

// TestIsolatedStops: a call that is told to end says so, and others follow it.
func TestIsolatedStops(t *testing.T) {
	r := mustOpen(t, isolation("stops"))
	r.grace = longest
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		if w, err := r.Write(ctx, 5, 0); !errors.Is(err, syscall.ECANCELED) || w.Bytes != 5 {
			t.Errorf("%+v, %v", w, err)
		}
		if err := r.Serve(ctx); !errors.Is(err, syscall.ECANCELED) { // it had ended before
			t.Errorf("%v", err)
		}
		if err := r.Fill(t.Context(), 1<<63+5); err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	i := isolation("opens slowly")
	i.Grace = longest
	if _, err := i.open(ctx, order{Spec: gpuSpec()}); !errors.Is(err, syscall.ECANCELED) {
		t.Errorf("%v", err)
	}
	wantNoChild(t, i, 0)
}

// TestIsolatedClosedMeanwhile: closing ends the call under way.
func TestIsolatedClosedMeanwhile(t *testing.T) {
	r := mustOpen(t, isolation("stops"))
	r.grace = longest
	wrote := make(chan error, 1)
	var begun atomic.Bool
	go func() {
		begun.Store(true)
		_, err := r.Write(t.Context(), 5, 0)
		wrote <- err
	}()
	for !begun.Load() {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond) // if it comes later it fails as well
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := <-wrote; err == nil {
		t.Error("it was written")
	}
}

// TestIsolatedDeaths: however a child dies, the call that it was busy with says how, as
// do the calls after it; what hangs is killed.
func TestIsolatedDeaths(t *testing.T) {
	const died, silent = "the process for the memory died: ", "the process for the memory did not answer for 300ms, and was killed"
	for mode, want := range map[string]session.Failure{
		"segfaults": {Reason: session.ReasonRDMA, Stage: "fill", Text: died + "exit status 2: panic: runtime error: invalid memory address or nil pointer dereference"},
		"hangs":     {Reason: session.ReasonHung, Stage: "fill", Errno: "ETIMEDOUT", Text: silent},
		"sleeps":    {Reason: session.ReasonHung, Stage: "fill", Errno: "ETIMEDOUT", Text: silent},
	} {
		t.Run(mode, func(t *testing.T) {
			r := mustOpen(t, isolation(mode))
			ctx, cancel := context.WithTimeout(t.Context(), longest)
			defer cancel()
			if want.Reason == session.ReasonHung {
				time.AfterFunc(20*time.Millisecond, cancel)
			}
			err := r.Fill(ctx, 1)
			wantFailure(t, err, want)
			if errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, syscall.ECANCELED) {
				t.Error("a session would take it for the end of the context")
			}
			after, cancel := context.WithTimeout(t.Context(), longest)
			defer cancel()
			_, err = r.Ping(after, 1)
			want.Stage = "ping"
			wantFailure(t, err, want)
			if err := r.Close(); err != nil { // it was told
				t.Error(err)
			}
		})
	}
	err := mustOpen(t, isolation("library exits")).Connect(t.Context(), session.Address{Text: text(t, roce())})
	wantFailure(t, err, session.Failure{Reason: session.ReasonRDMA, Stage: "connect", Text: died + "exit status 7: bad library"})
	for mode, want := range map[string]string{
		"opening crashes": "exit status 2: panic: while it opens", "exits well": "exit status 0 without an answer", "floods": "it wrote too much",
	} {
		_, err := openedBy(t, isolation(mode))
		wantFailure(t, err, session.Failure{Reason: session.ReasonRDMA, Stage: "open", Text: died + want})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	i := isolation("opening hangs")
	_, err = i.open(ctx, order{Spec: gpuSpec()})
	wantFailure(t, err, session.Failure{Reason: session.ReasonHung, Stage: "open", Errno: "ETIMEDOUT", Text: silent})
	wantNoChild(t, i, 0)
	err = mustOpen(t, isolation("closing hangs")).Close()
	wantFailure(t, err, session.Failure{Reason: session.ReasonHung, Stage: "teardown", Errno: "ETIMEDOUT", Text: silent})
}

// TestIsolatedKilled: a child that is killed between two calls is told of once.
func TestIsolatedKilled(t *testing.T) {
	r := mustOpen(t, isolation("good"))
	r.process.Kill()
	wantFailure(t, r.Close(), session.Failure{Reason: session.ReasonRDMA, Stage: "teardown", Text: "the process for the memory died: signal: killed"})
}

// TestIsolatedNone: where no process can be started the session fails.
func TestIsolatedNone(t *testing.T) {
	i := isolation("good")
	i.Program.Path = "/nowhere/gdr_exporter"
	_, err := openedBy(t, i)
	wantFailure(t, err, session.Failure{Reason: session.ReasonRDMA, Stage: "open", Errno: "ENOENT", Text: "child process: fork/exec /nowhere/gdr_exporter: no such file or directory"})
}

// TestIsolatedQuiesce: a quiesce ends the children, whose sessions say why; none is
// started until it is over.
func TestIsolatedQuiesce(t *testing.T) {
	i := isolation("stops")
	i.Grace = longest
	r := mustOpen(t, i)
	wrote := make(chan error, 1)
	go func() {
		_, err := r.Write(context.Background(), 5, 0)
		wrote <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	if err := i.Quiesce(ctx); err != nil {
		t.Error(err)
	}
	wantNoChild(t, i, r.process.ID())
	quiet := session.Failure{Reason: session.ReasonGate, Stage: "write", Errno: "EBUSY", Text: "the exporter was quiesced: device or resource busy"}
	wantFailure(t, <-wrote, quiet)
	quiet.Stage = "serve"
	wantFailure(t, r.Serve(ctx), quiet)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	quiet.Stage = "gate"
	_, err := openedBy(t, i)
	wantFailure(t, err, quiet)
	i.Resume()
	_ = mustOpen(t, i)

	hangs := isolation("closing hangs")
	hangs.Grace = longest
	r = mustOpen(t, hangs)
	over, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := hangs.Quiesce(over); !errors.Is(err, syscall.ETIMEDOUT) || !strings.Contains(err.Error(), fmt.Sprint(r.process.ID())) {
		t.Errorf("%v", err)
	}
	r.process.Kill()
}

// TestHostHere: host memory is opened in this process, and all is without an Isolation.
func TestHostHere(t *testing.T) {
	i := isolation("good")
	roots := loopback.EndpointSpec{SysfsRoot: t.TempDir(), DevRoot: t.TempDir()}
	for _, opener := range []Opener{{Template: roots, Isolation: func() *Isolation { return i }}, {Template: roots, Isolation: func() *Isolation { return nil }}} {
		if e, err := opener.Open(t.Context(), wanted()); err == nil {
			t.Errorf("%v is open", e)
		}
	}
	if got := i.processes(); len(got) > 0 {
		t.Errorf("processes %v", got)
	}
}

// TestChildMain: what is no order is an error; what fails of the endpoint is told.
func TestChildMain(t *testing.T) {
	opener := func(o order) session.Opener { return played{"good", o} }
	good, err := json.Marshal(order{GPU: isolate.GPUSettings{Roots: []string{"/r"}}, Spec: gpuSpec()})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		in    string
		wants []string
		fails bool
	}{
		"nothing":      {"", nil, true},
		"no order":     {"[]\n", nil, true},
		"endless":      {strings.Repeat(" ", mostLine+1), nil, true},
		"order":        {string(good) + "\n", []string{`"number":0,`}, false},
		"close":        {string(good) + "\n" + `{"number":-1,"call":"teardown"}` + "\n", []string{`"number":0,`}, false},
		"no request":   {string(good) + "\nhello\n", []string{`"number":0,`}, false},
		"many at once": {string(good) + "\n" + strings.Repeat(`{"number":1,"call":"serve"}`+"\n", 100), []string{`"number":0,`}, false},
	} {
		var out bytes.Buffer
		err := childMain(t.Context(), strings.NewReader(test.in), &out, opener)
		if (err != nil) != test.fails {
			t.Errorf("%s: %v", name, err)
		}
		for _, want := range test.wants {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %s", name, out.String())
			}
		}
	}
	if err := ChildMain(t.Context(), strings.NewReader(string(good)+"\n"), io.Discard, func(isolate.GPUSettings) func() (loopback.GPU, error) {
		t.Error("it opens a GPU before the device")
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestUnknownCall: a request that is none is answered.
func TestUnknownCall(t *testing.T) {
	r := mustOpen(t, isolation("good"))
	_, err := r.call(t.Context(), request{Call: "what"})
	wantFailure(t, err, session.Failure{Reason: session.ReasonRDMA, Stage: "what", Errno: "ENOSYS", Text: `unknown call "what": function not implemented`})
	_, err = r.call(t.Context(), request{Call: callConnect})
	wantFailure(t, err, session.Failure{Reason: session.ReasonRDMA, Stage: "connect", Errno: "EINVAL", Text: "to nobody: invalid argument"})
}

// TestDeafParent: a child whose parent does not read any more ends.
func TestDeafParent(t *testing.T) {
	in, parent := io.Pipe()
	defer parent.Close()
	ended := make(chan error, 1)
	go func() {
		ended <- childMain(context.Background(), in, brokenWriter{}, func(o order) session.Opener { return played{"good", o} })
	}()
	text, _ := json.Marshal(order{GPU: isolate.GPUSettings{Roots: []string{"/r"}}, Spec: gpuSpec()})
	_, _ = parent.Write(append(text, '\n'))
	if err := <-ended; !errors.Is(err, syscall.EPIPE) {
		t.Errorf("%v", err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// FuzzAnswers: what a child says is bounded and never panics, and a failure of it has a
// reason and a text.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte("{\"number\":1,\"failure\":{\"what\":{\"reason\":\"rdma\",\"text\":\"x\"},\"errno_number\":125}}\nx\n"))
	f.Add([]byte("{\"failure\":{}}\n{\"failure\":null}\n{\"failure\":{\"what\":null}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		lines := 0
		_ = child.ReadLines(bytes.NewReader(text), mostLine, mostOutput, func(line []byte) bool {
			lines++
			var a answer
			if json.Unmarshal(line, &a) == nil {
				if f := a.Failure.failure(); f != nil {
					_ = f.Error()
				}
			}
			return true
		})
		if most := bytes.Count(text, []byte("\n")) + 1; lines > most {
			t.Errorf("%d lines of %d", lines, most)
		}
	})
}

// FuzzRequests: whatever a child is told, it ends, and answers no more than it was asked.
func FuzzRequests(f *testing.F) {
	f.Add([]byte("{\"number\":1,\"call\":\"write\",\"bytes\":5}\n{\"number\":1,\"call\":\"end\"}\n"))
	f.Add([]byte("{\"number\":1,\"call\":\"connect\"}\n{\"call\":\"teardown\"}\n"))
	ordered, err := json.Marshal(order{GPU: isolate.GPUSettings{Roots: []string{"/r"}}, Spec: gpuSpec()})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var out bytes.Buffer
		in := io.MultiReader(bytes.NewReader(append(ordered, '\n')), bytes.NewReader(text))
		err := childMain(t.Context(), in, &out, func(o order) session.Opener { return played{"good", o} })
		if answers, most := bytes.Count(out.Bytes(), []byte("\n")), bytes.Count(text, []byte("\n"))+2; err != nil || answers > most {
			t.Errorf("%v, %d answers to %d lines", err, answers, most)
		}
	})
}
