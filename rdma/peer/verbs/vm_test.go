package verbs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/cmd/vmtest/node"
	"gdr_exporter/gpu/cuda"
	"gdr_exporter/gpu/cuda/cudatest"
	"gdr_exporter/gpu/cuda/loopgpu"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/peer/session"
)

// What follows runs in two virtual machines at once, joined by soft-RoCE:
//
//	vmtest --nodes 2 --env GDR_IN_KERNEL=1 -- verbs.test -test.v -test.run '^TestInKernel'

const doubleGPU = "0000:3b:00.0" // of the libcuda double

func inNodes(t *testing.T) context.Context {
	t.Helper()
	if os.Getenv("GDR_IN_KERNEL") == "" || node.Count() != 2 {
		t.Skip("runs in two virtual machines: see cmd/vmtest --nodes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func meet(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	if err := node.Barrier(ctx, name); err != nil {
		t.Fatal(err)
	}
}

// exchange gives the other node something, and takes what that gives.
func exchange[T any](ctx context.Context, t *testing.T, name string, own T) T {
	t.Helper()
	text, err := json.Marshal(own)
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Put(fmt.Sprintf("%s-%d", name, node.Number()), text); err != nil {
		t.Fatal(err)
	}
	if text, err = node.Get(ctx, fmt.Sprintf("%s-%d", name, 3-node.Number())); err != nil {
		t.Fatal(err)
	}
	var theirs T
	if err := json.Unmarshal(text, &theirs); err != nil {
		t.Fatal(err)
	}
	return theirs
}

// open opens an endpoint on rxe0. Its GPU is one of the libcuda double.
func open(ctx context.Context, t *testing.T, spec session.Spec, roots []string) session.Endpoint {
	t.Helper()
	opener := Opener{OpenGPU: func(address string) (loopback.GPU, error) { return loopgpu.Open(address, cuda.Options{Roots: roots}) }}
	spec.Port = session.Port{Device: "rxe0", Port: 1}
	spec.Deadline = 4 * time.Minute
	spec.Shape = session.Shape{Buffer: 4 << 20, Message: 256 << 10, Chunk: 256 << 10, QueuePairs: 2, Depth: 8}
	if spec.Memory != session.Host {
		spec.GPU = doubleGPU
	}
	e, err := opener.Open(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// connect connects an endpoint to the other node's.
func connect(ctx context.Context, t *testing.T, name string, e session.Endpoint, change func(*loopback.Address)) {
	t.Helper()
	text := exchange(ctx, t, name, e.Address().Text)
	if change != nil {
		a, err := loopback.ParseAddress(text)
		if err != nil {
			t.Fatal(err)
		}
		change(&a)
		if text, err = json.Marshal(a); err != nil {
			t.Fatal(err)
		}
	}
	peer, err := Opener{}.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if want := node.Address(3-node.Number(), 0).String(); peer.Where != want {
		t.Errorf("the peer is at %s, want %s", peer.Where, want)
	}
	if err := e.Connect(ctx, peer); err != nil {
		t.Fatal(err)
	}
	meet(ctx, t, name+"-connected")
}

// resources are how many objects the kernel has of rxe0.
func resources(t *testing.T) string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "rdma", "resource", "show", "rxe0").CombinedOutput()
	if err != nil {
		t.Fatalf("rdma resource: %v\n%s", err, output)
	}
	return strings.TrimSpace(string(output))
}

// TestInKernelEndpoints: both nodes write to each other at once, and each finds all of
// the other's data in its own memory.
func TestInKernelEndpoints(t *testing.T) {
	ctx := inNodes(t)
	roots := []string{cudatest.Build(t)}
	before := resources(t)
	for _, memory := range []session.Memory{session.Host, session.GPU, session.Staged} {
		t.Run(string(memory), func(t *testing.T) {
			// Soft-RoCE of Linux 6.1 lets some writes fail that it had to send again,
			// on a busy machine: perftest's too.
			const attempts = 4
			for attempt := range attempts {
				err := bothWays(ctx, t, fmt.Sprintf("%s%d", memory, attempt), memory, roots)
				failed := err != nil
				if err != nil {
					t.Logf("attempt %d: %v", attempt, err)
				}
				if theirs := exchange(ctx, t, fmt.Sprintf("failed-%s%d", memory, attempt), failed); !failed && !theirs {
					return
				}
				var f *session.Failure
				if failed && (!errors.As(err, &f) || !slices.Contains([]string{"IBV_WC_REM_INV_REQ_ERR", "IBV_WC_RETRY_EXC_ERR", "IBV_WC_WR_FLUSH_ERR"}, f.Status)) {
					t.Fatal(err)
				}
			}
			t.Errorf("%d attempts have failed", attempts)
		})
	}
	meet(ctx, t, "closed")
	if after := resources(t); after != before {
		t.Errorf("the kernel has %s, before it was %s", after, before)
	}
}

// bothWays is one attempt. It returns what the network may be at fault for.
func bothWays(ctx context.Context, t *testing.T, name string, memory session.Memory, roots []string) error {
	t.Helper()
	e := open(ctx, t, session.Spec{Memory: memory, Sends: true, Receives: true}, roots)
	defer func() { _ = e.Close() }() // told by the cleanup
	f := e.Facts()
	if f.MTU != 4096 || f.GID != node.Address(node.Number(), 0).String() || f.QueuePairs != 2 || (memory != session.Host) != (f.GPU == doubleGPU) || (memory == session.GPU) != (f.Method != "") {
		t.Errorf("facts %+v", f)
	}
	connect(ctx, t, name, e, nil)
	const bytes = 16 << 20
	if err := e.Fill(ctx, uint64(node.Number())); err != nil {
		t.Fatal(err)
	}
	meet(ctx, t, name+"-filled")
	w, writeErr := e.Write(ctx, bytes, 0)
	// Staged memory needs this side until the other one has written all.
	serve, enough := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- e.Serve(serve) }()
	theirs := exchange(ctx, t, name+"-written", w)
	enough()
	if err := errors.Join(writeErr, <-served); err != nil {
		return err
	}
	if w.Bytes != bytes || theirs.Bytes != bytes {
		t.Logf("wrote %d bytes, the other node %d, of %d", w.Bytes, theirs.Bytes, bytes)
		return nil // the other node says why
	}
	t.Logf("%s memory, both ways at once: %.1f MB/s", memory, float64(w.Bytes)/1e6/w.Elapsed.Seconds())
	v, err := e.Verify(ctx, uint64(3-node.Number()), theirs.Extents)
	if err != nil || v.Mismatches != 0 || v.Bytes != e.Address().Length && memory != session.Staged {
		t.Errorf("verified %+v of %d bytes, %v", v, e.Address().Length, err)
	}
	// And it would see data that is wrong.
	if v, err := e.Verify(ctx, 99, theirs.Extents); err != nil || v.Mismatches == 0 {
		t.Errorf("another seed's: %+v, %v", v, err)
	}
	return nil
}

// TestInKernelPing: node 1 may write to node 2, and nobody to node 1.
func TestInKernelPing(t *testing.T) {
	ctx := inNodes(t)
	initiator := node.Number() == 1
	e := open(ctx, t, session.Spec{Memory: session.Host, Sends: initiator, Receives: !initiator}, nil)
	if (e.Address().Length == 0) != initiator {
		t.Errorf("%d bytes can be written to", e.Address().Length)
	}
	connect(ctx, t, "ping", e, nil)
	p, err := e.Ping(ctx, 64)
	if initiator {
		if err != nil || len(p.Latencies) != 64 || p.Lost != 0 {
			t.Errorf("%d answers, %d lost, %v", len(p.Latencies), p.Lost, err)
		} else {
			t.Logf("median %v", slices.Sorted(slices.Values(p.Latencies))[32])
		}
	} else if f := (*session.Failure)(nil); !errors.As(err, &f) || f.Stage != "ping" || f.Errno != "EBADF" {
		t.Errorf("the responder writes: %v", err)
	}
	meet(ctx, t, "pinged")
}

// TestInKernelNobody: whoever writes to a queue pair that is not there learns it by the
// status of the completion.
func TestInKernelNobody(t *testing.T) {
	ctx := inNodes(t)
	initiator := node.Number() == 1
	e := open(ctx, t, session.Spec{Memory: session.Host, Sends: initiator, Receives: !initiator}, nil)
	connect(ctx, t, "nobody", e, func(a *loopback.Address) {
		for i := range a.QueuePairs {
			a.QueuePairs[i].Number += 1000
		}
	})
	if initiator {
		p, err := e.Ping(ctx, 1)
		var f *session.Failure
		if !errors.As(err, &f) || f.Reason != session.ReasonRDMA || f.Stage != "ping" || f.Status != "IBV_WC_RETRY_EXC_ERR" || f.Errno != "" || p.Lost != 1 {
			t.Errorf("%+v, %+v", p, err)
		}
	}
	meet(ctx, t, "nobody-pinged")
}
