package snapshot

import "time"

// gpuFacts returns what holds of GPUs now.
func gpuFacts(s *Snapshot, _ map[Fact]bool, hang time.Duration) map[Fact]bool {
	return stuckFacts(CollectorGPU, s.GPU, hang)
}
