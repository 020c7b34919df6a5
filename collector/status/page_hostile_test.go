package status

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/host"
	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/process"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// evil is a text as no device should have it: markup, control characters, invalid
// UTF-8, marks of writing direction, a template, and very long at will.
const evil = "</th></td></style><script>alert(1)</script>\" onclick=\"x\x00\x1b[31m\xff\u202e\u2066\u200f\n\u2028" + "{{.Sentence}}javascript:alert(2)"

// hostilePage is a page of a node on which every text from outside is evil.
func hostilePage() Page {
	long := strings.Repeat(evil, 100)
	d := device(evil, 4)
	d.Driver, d.PCIAddress, d.Firmware, d.Board = evil, evil, long, evil
	d.Ports[0].Label, d.Ports[0].LinkLayer, d.Ports[0].Netdev = evil, long, evil
	plane := device("smi1")
	plane.Parent = evil
	s := of(answered(d), answered(plane), hung(evil, 1))
	s.Taken, s.Asked = at, map[string]bool{}
	s.Errors = []snapshot.ErrorCount{{ErrorKey: snapshot.ErrorKey{Collector: evil, Device: evil, Port: evil, Source: long, Errno: evil}, Count: 1}}
	s.Affinity = &snapshot.AffinityPart{Err: fmt.Errorf("%s", long), Listing: affinity.Listing{
		Roles: map[string]string{evil: evil}, IOMMU: sysread.Some([]string{evil}),
		Pairs: []affinity.Pair{{GPU: evil, Device: evil, NIC: evil, Common: evil}},
	}}
	s.GPU = &snapshot.GPUPart{Units: []snapshot.UnitPart[gpu.Reading]{{Name: evil, Data: &gpu.Reading{State: gpu.StateUp, Err: fmt.Errorf("%s", evil), GPUs: []gpu.GPU{{Address: evil, Identity: gpu.Identity{UUID: evil, Name: long}}}}}}}
	s.Driver = &snapshot.DriverPart{Units: []snapshot.UnitPart[driver.Reading]{{Name: evil, Data: &driver.Reading{
		Kernel: sysread.Some(evil), Version: sysread.Some(evil), Loaded: sysread.Some(true), Flavor: evil, Library: sysread.Some(driver.Library{Path: evil, Version: evil}), Lockdown: sysread.Some(evil),
		Peermem: []driver.PeerModule{{Module: driver.Module{Name: evil, State: driver.StateLive, Version: sysread.Some(evil)}}}, MemoryPeers: driver.MemoryPeers{Clients: []driver.Client{{Name: evil, Version: sysread.Some(evil)}}},
		DMABufsErr: fmt.Errorf("%s", evil),
	}}}}
	s.Host = &snapshot.HostPart{Units: []snapshot.UnitPart[host.Reading]{{Name: evil, Data: &host.Reading{
		Platform: host.Platform{Vendor: sysread.Some(evil), Product: sysread.Some(evil)}, Nodes: []host.Node{{Name: evil, Device: evil}},
		Daemons: sysread.Some([]host.Daemon{{Name: evil}}), Interfaces: sysread.Some([]host.Interface{{Name: evil}}),
	}}}}
	user := process.User{PID: 1, GPUs: []string{evil}, Devices: []string{evil}}
	job := process.JobOf(&user)
	job.Variables, job.Others, job.NCCL = sysread.Some(map[string]string{"NCCL_IB_HCA": evil, evil: long}), []string{evil}, sysread.Some(evil)
	s.Process = &snapshot.ProcessPart{Listing: process.Listing{Visible: sysread.Some(true), Joined: true, Users: []process.User{user}}, Units: []snapshot.UnitPart[process.Job]{{Name: evil, Data: &job}}}
	s.KernelLog = &snapshot.KernelLogPart{Units: []snapshot.UnitPart[kmsg.Reading]{{Name: evil, Data: &kmsg.Reading{
		Err: fmt.Errorf("%s", evil), Counts: map[kmsg.Pattern]uint64{kmsg.Xid: 1}, Recent: []kmsg.Event{{Pattern: kmsg.Pattern(evil), Address: evil, Text: long}},
	}}}}
	measured := pair(completed(prober.DepthFull, 0, loopback.Slow, evil), completed(prober.DepthRegister, 0, loopback.Failed, long))
	measured.GPU, measured.Device, measured.Distance, measured.Withdrawn, measured.Skip = evil, evil, evil, "", prober.Reason(evil)
	measured.Full.Result.Paths[1].BytesPerSecond, measured.Full.Result.Paths[1].Ratio, measured.Baseline = sysread.Some(math.NaN()), sysread.Some(math.Inf(1)), sysread.Some(math.Inf(-1))
	measured.Full.Result.Registrations = []loopback.Registration{{Method: evil, Err: fmt.Errorf("%s", evil)}}
	s.Prober = &prober.Status{Interval: time.Hour, IsolationReason: evil, Pairs: []prober.PairStatus{measured}}
	found := &diagnosis.Diagnosis{
		Paths:    []diagnosis.Path{{GPU: evil, Device: evil, Port: 1, State: diagnosis.StateStaged, Evidence: diagnosis.EvidenceMeasured, Expected: true, Reasons: []string{evil, long}, Cause: evil}},
		Live:     []diagnosis.LiveUse{{Device: evil, Live: diagnosis.LiveSuspect, Reasons: []string{evil}}},
		Findings: []diagnosis.Finding{{Rule: evil, Severity: diagnosis.SeverityCritical, Subject: diagnosis.Subject{GPU: evil, Device: evil, Address: evil, Other: evil}, Seen: long, Hint: evil}},
		Rules:    []diagnosis.RuleResult{{Rule: evil, Result: diagnosis.ResultNotJudged, Missing: []string{evil}}},
		Expected: profile.Expectation{Name: evil, Source: profile.SourceFile, Ports: map[prober.Port]sysread.Maybe[uint64]{{Device: evil, Number: 1}: {}}, From: map[profile.Field]profile.Source{profile.FieldPorts: profile.SourceLearned}},
	}
	return Page{Version: evil, MetricsPath: "/m\"><script>", Replay: evil, Snapshot: s, Diagnosis: found}
}

// TestHostile: whatever devices, logs and jobs call themselves, the page stays a page
// and the JSON stays text.
func TestHostile(t *testing.T) {
	p := hostilePage()
	var page, index, document bytes.Buffer
	for _, err := range []error{p.WriteHTML(&page), p.WriteRunbooks(&index), p.Document().WriteJSON(&document)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, got := range []string{page.String(), index.String()} {
		checkHTML(t, got)
		checkTable(t, got)
		if strings.Contains(got, "<script") || strings.Contains(got, "href=\"javascript") {
			t.Error("markup from outside")
		}
	}
	for _, got := range []string{page.String(), document.String()} {
		if !utf8.ValidString(got) {
			t.Error("no UTF-8")
		}
		if bad := strings.IndexFunc(got, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); bad >= 0 {
			t.Errorf("%q is in %q", got[bad:bad+3], got[max(bad-40, 0):bad+10])
		}
		if len(got) > 300_000 {
			t.Errorf("%d bytes", len(got))
		}
	}
	if !strings.Contains(page.String(), "&lt;script&gt;") || strings.Contains(document.String(), "<script") {
		t.Error("what the devices are called is not shown, or as it is")
	}
	if numbers := regexp.MustCompile(`NaN|Inf`).FindString(page.String() + document.String()); numbers != "" {
		t.Errorf("%s is a number", numbers)
	}
}

// TestClean: all kinds of fields are cleaned, wherever they are.
func TestClean(t *testing.T) {
	nan, text := math.NaN(), "a\x00b"
	type inner struct {
		Texts   []string
		Text    *string
		Number  *float64
		Numbers []float64
		Number2 float64
		private string
	}
	v := struct{ Inner []inner }{[]inner{{[]string{"ok", "\u202eevil"}, &text, &nan, []float64{1, nan}, math.Inf(1), "\x00"}}}
	cleanValue(reflect.ValueOf(&v).Elem())
	got := v.Inner[0]
	if got.Texts[0] != "ok" || got.Texts[1] != "\ufffdevil" || *got.Text != "a\ufffdb" || got.Number != nil || got.Numbers[1] != 0 || got.Number2 != 0 || got.private != "\x00" {
		t.Errorf("%+v", got)
	}
	for in, want := range map[string]string{
		"plain": "plain", "ü 漢": "ü 漢", "a\nb": "a\ufffdb", "\xff": "\ufffd", "": "",
		strings.Repeat("ü", mostClean): strings.Repeat("ü", mostClean), strings.Repeat("x", mostClean+1): strings.Repeat("x", mostClean) + "…",
	} {
		if got := cleanText(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
		if isPlain(in) && in != want {
			t.Errorf("%q is taken for plain", in)
		}
	}
}
