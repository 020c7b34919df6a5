package collector

import (
	"path/filepath"
	"testing"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback"
)

// probeSnapshot is a host with a ledger and two RDMA devices, under a driver.
func probeSnapshot(ledger *loopback.Ledger, version string) *snapshot.Snapshot {
	device := func(name string) snapshot.UnitPart[rdma.Device] { return snapshot.UnitPart[rdma.Device]{Name: name} }
	return &snapshot.Snapshot{
		RDMA:   &snapshot.RDMAPart{Units: []snapshot.UnitPart[rdma.Device]{device("mlx5_0"), device("mlx5_1")}},
		Probe:  &snapshot.ProbePart{Units: []snapshot.UnitPart[loopback.Ledger]{{Name: "ledger", Data: ledger}}},
		Driver: &snapshot.DriverPart{Units: []snapshot.UnitPart[driver.Reading]{{Name: "driver", Data: &driver.Reading{Version: sysread.Some(version)}}}},
	}
}

var probeLedger = &loopback.Ledger{
	Version: 1, Transferred: map[string]uint64{"mlx5_0": 1_800_000_000, "mlx5_9": 5},
	GPUs: map[string]loopback.LedgerGPU{"0000:1b:00.0": {DriverVersion: "580.95.05", GPUDirectRDMA: true, DMABuf: true}, "0000:3b:00.0": {DriverVersion: "580.95.05"}},
}

func TestProbeGolden(t *testing.T) {
	p := newPage()
	showProbe(p, probeSnapshot(probeLedger, "580.95.05"))
	comparePage(t, p, filepath.Join("testdata", "probe", "ledger.metrics"))
}

// TestProbeForgets: attributes under another driver say nothing of this one, a
// ledger without runs has a counter for every device, and none says nothing.
func TestProbeForgets(t *testing.T) {
	for name, test := range map[string]struct {
		ledger *loopback.Ledger
		driver string
		want   int
	}{
		"another driver": {probeLedger, "590.1", 3},
		"no run":         {&loopback.Ledger{Version: 1, Transferred: map[string]uint64{}}, "580.95.05", 2},
		"unreadable":     {&loopback.Ledger{}, "580.95.05", 0},
		"stuck":          {nil, "580.95.05", 0},
	} {
		p := newPage()
		showProbe(p, probeSnapshot(test.ledger, test.driver))
		if p.used != test.want {
			t.Errorf("%s: %d series, want %d", name, p.used, test.want)
		}
	}
}
