package snapshot

import (
	"context"
	"time"

	"gdr_exporter/gpu"
)

// Collectors that NVML serves. Its errors and durations are counted under gpu.
const (
	CollectorGPU    = "gpu"
	CollectorNVLink = "nvlink"
	CollectorFabric = "fabric"
)

// GPUPart is NVML's share of a Snapshot: one unit, since NVML calls are made
// one after the other whatever GPU they concern.
type GPUPart = Part[gpu.Reading, NVMLListing]

// NVMLListing says what NVML is doing.
type NVMLListing struct {
	// Call is the call in progress when the Snapshot was taken; its Name is ""
	// if there was none. It is where a read hangs that did not return in time.
	Call gpu.Call
}

// gpuSource is the source of NVML's part.
type gpuSource struct {
	*source[*gpu.Reader, gpu.Reading, NVMLListing]
	reader *gpu.Reader
}

func newGPUSource(options *Options, ledger *Ledger, reader *gpu.Reader) *gpuSource {
	units := []*gpu.Reader{reader}
	return &gpuSource{newSource(CollectorGPU, options, ledger, func() ([]*gpu.Reader, NVMLListing, error) {
		return units, NVMLListing{}, nil
	}), reader}
}

// part is source.part with the call that did not return in time.
func (s *gpuSource) part(ctx context.Context) *GPUPart {
	part := s.source.part(ctx)
	if len(part.Units) > 0 && part.Units[0].StuckFor > 0 {
		part.Listing.Call, _ = s.reader.Calling()
	}
	return part
}

// NVML returns what NVML said, nil if it was not asked or did not answer.
func (s *Snapshot) NVML() *gpu.Reading {
	if s.GPU == nil || len(s.GPU.Units) == 0 {
		return nil
	}
	return s.GPU.Units[0].Data
}

// NVMLStuck returns how long a read of NVML has been hanging, and in which call;
// 0 if it answered or was not asked.
func (s *Snapshot) NVMLStuck() (time.Duration, gpu.Call) {
	if s.GPU == nil || len(s.GPU.Units) == 0 {
		return 0, gpu.Call{}
	}
	return s.GPU.Units[0].StuckFor, s.GPU.Listing.Call
}
