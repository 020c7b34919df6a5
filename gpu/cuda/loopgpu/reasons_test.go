package loopgpu_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"gdr_exporter/gpu/cuda"
	"gdr_exporter/gpu/cuda/cudatest"
	"gdr_exporter/gpu/cuda/loopgpu"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// opened is a run whose GPU could not be opened, as loopback has it.
func opened(err error) *loopback.Result {
	return &loopback.Result{Stages: []loopback.StageResult{{Stage: loopback.StageOpen, Err: fmt.Errorf("GPU: %w", err)}}}
}

// TestSkipReasons: every reason is one of the prober's, and is found in the error
// of a run.
func TestSkipReasons(t *testing.T) {
	for err, want := range map[error]prober.Reason{
		&cuda.RefusedError{Reason: cuda.ReasonExclusive}:  prober.ReasonComputeMode,
		&cuda.RefusedError{Reason: cuda.ReasonProhibited}: prober.ReasonComputeMode,
		&cuda.RefusedError{Reason: cuda.ReasonMIG}:        prober.ReasonMIG,
		&cuda.RefusedError{Reason: cuda.ReasonMPS}:        prober.ReasonMPS,
		&cuda.RefusedError{Reason: cuda.ReasonMemory}:     prober.ReasonMemory,
		&cuda.LibraryError{}:                              prober.ReasonLibrary,
		&cuda.DeviceNodeError{Errno: unix.EPERM}:          prober.ReasonDeviceNode,
	} {
		if got := prober.Reason(opened(err).SkipReason()); got != want || !slices.Contains(prober.Reasons, want) {
			t.Errorf("%T %v: %q", err, err, got)
		}
	}
}

// TestErrorsThroughRun: what libcuda said keeps its type, out of the interface and
// out of a run's result.
func TestErrorsThroughRun(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	settings := filepath.Join(t.TempDir(), "settings")
	t.Setenv("DOUBLE_FILE", settings)
	options := cuda.Options{Roots: []string{cudatest.Build(t)}}
	cudatest.Set(t, settings, "DOUBLE_COMPUTE_MODE=3")
	if _, err := loopgpu.Open(cudatest.Address, options); opened(err).SkipReason() != string(prober.ReasonComputeMode) || opened(err).Sticky() {
		t.Errorf("%v", err)
	}
	cudatest.Set(t, settings, "DOUBLE_STICKY=cuMemcpyHtoD_v2:700")
	g, err := loopgpu.Open(cudatest.Address, options)
	if err != nil {
		t.Fatal(err)
	}
	m, err := g.Alloc(cuda.Granularity)
	if err != nil {
		t.Fatal(err)
	}
	err = m.Write(0, []byte{1})
	var failed *cuda.Error
	if !errors.As(opened(err).Err(), &failed) || failed.Code != cuda.IllegalAddress || !opened(err).Sticky() {
		t.Errorf("%v", err)
	}
	if err := errors.Join(m.Free(), g.Close()); !opened(err).Sticky() {
		t.Errorf("the context was given back: %v", err)
	}
	// This library is lost for the process: the next test's is another one.
	if _, err := loopgpu.Open(cudatest.Address, options); !opened(err).Sticky() {
		t.Errorf("it works again: %v", err)
	}
}
