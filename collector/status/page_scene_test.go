package status

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/capture/embedded"
	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/snapshot/snapshottest"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// everything asks for all collectors.
func everything(string) bool { return true }

// captured is the page of an embedded capture some time after its beginning, read by
// the real readers and diagnosed by the real rules.
func captured(t testing.TB, name string, after time.Duration) Page {
	t.Helper()
	recording, err := embedded.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	begun := recording.Header.Began
	now := begun
	clock := func() time.Time { return now }
	p := capture.Move(recording, clock)
	defer p.Close()
	taker := snapshottest.Builder(recording, p, clock).Taker()
	defer taker.Close()
	engine := diagnosis.NewEngine(diagnosis.EngineOptions{})
	page := Page{Version: "1.2.3", MetricsPath: "/metrics", Replay: "Replay of the capture " + name + ": nothing here is of this host."}
	for _, at := range []time.Duration{0, after} {
		now = begun.Add(at)
		page.Snapshot = taker.Take(t.Context(), everything)
		page.Diagnosis = engine.Diagnose(page.Snapshot)
	}
	return page
}

// bigNode is a page of a made-up node with 16 GPUs and 18 RDMA devices, on which
// all that a page can say is said of some pair.
func bigNode() Page {
	const gpus, nics = 16, 18
	s := &snapshot.Snapshot{Taken: at, RDMA: &snapshot.RDMAPart{Taken: at, Listing: snapshot.RDMAListing{Present: true, Devices: nics}},
		Affinity: &snapshot.AffinityPart{Taken: at, Listing: affinity.Listing{Roles: map[string]string{}}}, Prober: &prober.Status{Interval: time.Hour, Isolation: prober.InProcess}}
	d := &diagnosis.Diagnosis{Time: at}
	for n := range nics {
		name := fmt.Sprintf("mlx5_%d", n)
		s.RDMA.Units = append(s.RDMA.Units, answered(device(name, 4)))
		s.Affinity.Listing.Roles[name] = "compute"
		if n >= gpus {
			s.Affinity.Listing.Roles[name] = "storage"
		}
	}
	for g := range gpus {
		address := fmt.Sprintf("0000:%02x:00.0", 0x18+3*g)
		s.Affinity.Listing.Functions = append(s.Affinity.Listing.Functions, affinity.Node{Address: address, Kind: affinity.KindGPU, Driver: "nvidia"})
		for n := range nics {
			p := affinity.Pair{GPU: address, Device: fmt.Sprintf("mlx5_%d", n), Distance: affinity.SYS}
			switch {
			case n == g:
				p.Distance, p.Nearest = affinity.PIX, true
			case n/8 == g/8:
				p.Distance = affinity.NODE
			}
			s.Affinity.Listing.Pairs = append(s.Affinity.Listing.Pairs, p)
		}
		state := diagnosis.States[g%len(diagnosis.States)]
		path := diagnosis.Path{GPU: address, Device: fmt.Sprintf("mlx5_%d", g), Port: 1, Distance: "PIX", State: state, Evidence: diagnosis.EvidenceMeasured, Expected: g != 3, Since: at.Add(-time.Hour)}
		if state != diagnosis.StateDirect {
			path.Reasons = []string{"gpu: 0.31 of the host path, below 0.85"}
		}
		d.Paths = append(d.Paths, path)
		measured := pair(completed(prober.DepthFull, 10*time.Minute, loopback.Fine), nil)
		measured.GPU, measured.Device, measured.Baseline = address, path.Device, sysread.Some(24.1e9)
		s.Prober.Pairs = append(s.Prober.Pairs, measured)
	}
	for i, rule := range diagnosis.Rules() {
		result := diagnosis.RuleResult{Rule: rule.ID, Result: diagnosis.ResultClear}
		switch i % 9 {
		case 0:
			result.Result = diagnosis.ResultFound
			d.Findings = append(d.Findings, diagnosis.Finding{Rule: rule.ID, Severity: rule.Severity, Subject: diagnosis.Subject{GPU: d.Paths[0].GPU, Device: "mlx5_0", Port: 1}, Seen: "made up", Hint: rule.Hint, Since: at.Add(-time.Hour)})
		case 1:
			result.Result, result.Missing = diagnosis.ResultNotJudged, []string{"the kernel's log cannot be read (EPERM): it needs /dev/kmsg and CAP_SYSLOG"}
		}
		d.Rules = append(d.Rules, result)
	}
	d.Live = []diagnosis.LiveUse{{Device: "mlx5_0", Live: diagnosis.LiveInUse, Reasons: []string{"4 memory regions"}}, {Device: "mlx5_1", Live: diagnosis.LiveSuspect, Reasons: []string{"12.0 GB/s move"}}}
	s.KernelLog = &snapshot.KernelLogPart{Units: []snapshot.UnitPart[kmsg.Reading]{{Name: "kmsg", Data: &kmsg.Reading{
		Since: at.Add(-time.Hour), Counts: map[kmsg.Pattern]uint64{kmsg.XidNVLink: 2}, Last: map[kmsg.Pattern]kmsg.Event{kmsg.XidNVLink: {Pattern: kmsg.XidNVLink, Time: at}},
		Recent: []kmsg.Event{{Pattern: kmsg.XidNVLink, Time: at, Address: d.Paths[0].GPU, Code: 74, Text: "NVRM: Xid (PCI:0000:18:00): 74, " + strings.Repeat("x", 200)}},
	}}}}
	return Page{Version: "1.2.3", MetricsPath: "/metrics", Snapshot: s, Diagnosis: d}
}

// browserPages are the pages that are looked at in a browser.
func browserPages(t *testing.T) map[string]Page {
	t.Helper()
	empty := of()
	empty.Taken, empty.RDMA.Listing = at, snapshot.RDMAListing{}
	pages := map[string]Page{
		"empty": {Version: "1.2.3", MetricsPath: "/metrics", Snapshot: empty, Diagnosis: diagnosis.NewEngine(diagnosis.EngineOptions{}).Diagnose(asked(empty))}, "16x18": bigNode(),
		"peers":         {Version: "1.2.3", MetricsPath: "/metrics", Snapshot: withPeers(40, troubled)},
		"h100-8x8-demo": captured(t, "h100-8x8-demo", 200*time.Second),
	}
	for _, name := range []string{"h100-8x8", "gdr-lost", "soft-roce", "h200-1", "busy-node"} {
		pages[name] = captured(t, name, 3*time.Second)
	}
	return pages
}

// asked makes a Snapshot one that was asked for everything.
func asked(s *snapshot.Snapshot) *snapshot.Snapshot {
	s.Asked = map[string]bool{snapshot.CollectorPath: true, snapshot.CollectorRDMA: true}
	return s
}
