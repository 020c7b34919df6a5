package snapshot

import "gdr_exporter/gpu"

// Collectors that NVML serves. Its errors and durations are counted under gpu.
const (
	CollectorGPU    = "gpu"
	CollectorNVLink = "nvlink"
	CollectorFabric = "fabric"
)

// GPUPart is NVML's share of a Snapshot: one unit, since NVML calls are made
// one after the other whatever GPU they concern.
type GPUPart = Part[gpu.Reading, struct{}]

type gpuSource = source[*gpu.Reader, gpu.Reading, struct{}]

func newGPUSource(options *Options, ledger *Ledger, reader *gpu.Reader) *gpuSource {
	units := []*gpu.Reader{reader}
	return newSource(CollectorGPU, options, ledger, func() ([]*gpu.Reader, struct{}, error) {
		return units, struct{}{}, nil
	})
}

// NVML returns what NVML said, nil if it was not asked or did not answer.
func (s *Snapshot) NVML() *gpu.Reading {
	if s.GPU == nil || len(s.GPU.Units) == 0 {
		return nil
	}
	return s.GPU.Units[0].Data
}
