package snapshot

import (
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
)

// gpuFacts returns what holds of GPUs now. While NVML hangs or is quiesced, what
// only it can tell is taken to hold still.
func gpuFacts(s *Snapshot, before map[Fact]bool, hang time.Duration) map[Fact]bool {
	facts := stuckFacts(CollectorGPU, s.GPU, hang)
	reading := s.NVML()
	if reading == nil || reading.State == gpu.StateQuiesced {
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

// driverFacts returns what holds of the driver's modules now. What could not be
// read is taken to hold still: unreadable is not unloaded.
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
	note := func(fact Fact, holds sysread.Maybe[bool]) {
		if holds.Value || !holds.Known && before[fact] {
			facts[fact] = true
		}
	}
	reading := part.Units[0].Data
	note(Fact{Collector: CollectorDriver, Device: "nvidia", Kind: FactLoaded}, reading.Loaded)
	note(Fact{Collector: CollectorDriver, Kind: FactMismatch}, reading.LibraryMismatch())
	for i := range reading.Peermem {
		m := &reading.Peermem[i]
		note(Fact{Collector: CollectorDriver, Device: m.Name, Kind: FactLoaded}, m.Loaded())
	}
	return facts
}
