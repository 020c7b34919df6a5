package snapshot

import (
	"time"

	"gdr_exporter/gpu"
)

// gpuFacts returns what holds of GPUs now. While NVML hangs, what only it can
// tell is taken to hold still.
func gpuFacts(s *Snapshot, before map[Fact]bool, hang time.Duration) map[Fact]bool {
	facts := stuckFacts(CollectorGPU, s.GPU, hang)
	reading := s.NVML()
	if reading == nil {
		for fact := range before {
			if fact.Kind != FactStuck {
				facts[fact] = true
			}
		}
		return facts
	}
	if reading.State == gpu.StateUp {
		facts[Fact{Collector: CollectorGPU, Kind: FactNVML}] = true
	} else if reading.State != gpu.StateNoLibrary && reading.State != gpu.StateNoDriver {
		// That there is no driver is usual and said by the first snapshot.
		facts[Fact{Collector: CollectorGPU, Device: string(reading.State), Kind: FactNVMLFailed}] = true
	}
	for _, g := range s.GPUs().All {
		if g.Presence == PresenceLost {
			facts[Fact{Collector: CollectorGPU, Device: g.Address, Kind: FactLost}] = true
		}
	}
	return facts
}

// driverFacts returns what holds of the driver's modules now.
func driverFacts(part *DriverPart, before map[Fact]bool, hang time.Duration) map[Fact]bool {
	facts := stuckFacts(CollectorDriver, part, hang)
	if len(part.Units) == 0 || part.Units[0].Data == nil {
		for fact := range before {
			if fact.Kind != FactStuck {
				facts[fact] = true
			}
		}
		return facts
	}
	reading := part.Units[0].Data
	if reading.Loaded.Value {
		facts[Fact{Collector: CollectorDriver, Device: "nvidia", Kind: FactLoaded}] = true
	}
	if reading.LibraryMismatch().Value {
		facts[Fact{Collector: CollectorDriver, Kind: FactMismatch}] = true
	}
	for i := range reading.Peermem {
		if m := &reading.Peermem[i]; m.Loaded().Value {
			facts[Fact{Collector: CollectorDriver, Device: m.Name, Kind: FactLoaded}] = true
		}
	}
	return facts
}
