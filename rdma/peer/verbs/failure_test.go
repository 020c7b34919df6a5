package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/peer/session"
)

// gpuError is as libcuda's.
type gpuError struct{}

func (gpuError) Error() string     { return "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)" }
func (gpuError) ErrnoName() string { return "CUDA_ERROR_OUT_OF_MEMORY" }

// refusal is as those of loopback.
type refusal struct{ reason string }

func (r refusal) Error() string      { return "not now" }
func (r refusal) SkipReason() string { return r.reason }

func TestFailure(t *testing.T) {
	at := func(stage loopback.Stage, err error) error { return &loopback.StageError{Stage: stage, Err: err} }
	reg := &loopback.Error{Call: "ibv_reg_mr", Errno: syscall.EFAULT}
	retry := &loopback.Error{Call: "completion", Status: 12, Vendor: 0x81}
	for name, test := range map[string]struct {
		err  error
		want session.Failure
	}{
		"call": {at(loopback.StageRegister, fmt.Errorf("host memory of 8 bytes: %w", reg)), session.Failure{
			Reason: session.ReasonRDMA, Stage: "register", Call: "ibv_reg_mr", Errno: "EFAULT", Text: "host memory of 8 bytes: ibv_reg_mr: EFAULT (bad address)",
		}},
		"completion": {at(loopback.StageWrite, retry), session.Failure{
			Reason: session.ReasonRDMA, Stage: "write", Call: "completion", Status: "IBV_WC_RETRY_EXC_ERR", Text: "completion with IBV_WC_RETRY_EXC_ERR, vendor error 0x81 (129)",
		}},
		"GPU": {at(loopback.StageAlloc, fmt.Errorf("GPU: %w", gpuError{})), session.Failure{
			Reason: session.ReasonRDMA, Stage: "alloc", Errno: "CUDA_ERROR_OUT_OF_MEMORY", Text: "GPU: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)",
		}},
		"errno without a call": {at(loopback.StageConnect, fmt.Errorf("RoCE: %w", syscall.EPROTONOSUPPORT)), session.Failure{
			Reason: session.ReasonRDMA, Stage: "connect", Errno: "EPROTONOSUPPORT", Text: "RoCE: protocol not supported",
		}},
		"teardown as well": {errors.Join(at(loopback.StageRegister, reg), at(loopback.StageTeardown, errors.New("GPU hangs"))), session.Failure{
			Reason: session.ReasonRDMA, Stage: "register", Call: "ibv_reg_mr", Errno: "EFAULT", Text: "ibv_reg_mr: EFAULT (bad address); teardown: GPU hangs",
		}},
		"no stage": {errors.New("what"), session.Failure{Reason: session.ReasonRDMA, Stage: "verify", Text: "what"}},
		"locked":   {at(loopback.StageOpen, refusal{loopback.SkipLocked}), session.Failure{Reason: session.ReasonLocked, Stage: "open", Text: "not now"}},
		"GPU full": {at(loopback.StageGate, refusal{loopback.SkipMemory}), session.Failure{Reason: session.ReasonGate, Stage: "gate", Text: "not now"}},
		"port":     {at(loopback.StageGate, refusal{loopback.SkipPort}), session.Failure{Reason: session.ReasonRDMA, Stage: "gate", Text: "not now"}},
	} {
		got := failure(loopback.StageVerify, test.err)
		if got.Reason != test.want.Reason || got.Stage != test.want.Stage || got.Call != test.want.Call || got.Errno != test.want.Errno ||
			got.Status != test.want.Status || got.Text != test.want.Text || got.Peer {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, *got, test.want)
		}
		if !errors.Is(got, test.err) && !strings.Contains(name, "teardown") {
			t.Errorf("%s: what it came from is lost", name)
		}
	}
}

// TestEnd: sessions find out by the errno that a context ended a call.
func TestEnd(t *testing.T) {
	err := &loopback.StageError{Stage: loopback.StageWrite, Err: &loopback.Error{Call: "stopped", Errno: syscall.ECANCELED}}
	if got := orNil(loopback.StageWrite, err); !errors.Is(got, syscall.ECANCELED) {
		t.Errorf("%v", got)
	}
	if got := orNil(loopback.StageWrite, nil); got != nil {
		t.Errorf("%v", got)
	}
}

func TestResults(t *testing.T) {
	f := facts(loopback.Result{
		GID: sysread.Some(loopback.GID{Index: 1, Address: netip.MustParseAddr("::ffff:10.0.0.1"), Type: "RoCE v2"}), MTU: 4096, QueuePairs: 4, MessageSize: 1 << 20,
		GPU: sysread.Some(loopback.GPUFacts{Address: "0000:17:00.0"}), Method: loopback.MethodDMABuf,
	})
	if want := (session.Facts{GID: "10.0.0.1", GIDType: "RoCE v2", MTU: 4096, QueuePairs: 4, MessageSize: 1 << 20, GPU: "0000:17:00.0", Method: string(loopback.MethodDMABuf)}); f != want {
		t.Errorf("facts %+v, want %+v", f, want)
	}
	if f := facts(loopback.Result{}); f != (session.Facts{}) {
		t.Errorf("facts of nothing: %+v", f)
	}
	w := written(loopback.Written{Bytes: 9, Elapsed: time.Second, CPU: time.Millisecond, Extents: []loopback.Extent{{Offset: 8, Length: 16}}})
	if w.Bytes != 9 || w.Elapsed != time.Second || w.CPU != time.Millisecond || len(w.Extents) != 1 || w.Extents[0] != (session.Extent{Offset: 8, Length: 16}) {
		t.Errorf("written %+v", w)
	}
}

// TestVerification: wrong data is a result, a failure to look is not.
func TestVerification(t *testing.T) {
	corrupt := &loopback.StageError{Stage: loopback.StageVerify, Err: fmt.Errorf("%w: 3 words", loopback.ErrCorrupt)}
	if v, err := verification(loopback.Verification{Bytes: 64, Mismatches: 3}, corrupt); err != nil || v != (session.Verification{Bytes: 64, Mismatches: 3}) {
		t.Errorf("%+v, %v", v, err)
	}
	broken := &loopback.StageError{Stage: loopback.StageVerify, Err: syscall.EIO}
	var f *session.Failure
	if _, err := verification(loopback.Verification{Bytes: 8}, broken); !errors.As(err, &f) || f.Stage != "verify" || f.Errno != "EIO" {
		t.Errorf("%v", err)
	}
}
