package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/host"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/deploy/runbooks"
)

// TestCapturedPages: the first thing that is said of each embedded node answers
// whether GPUDirect RDMA works on it, and the JSON says the same as the page.
func TestCapturedPages(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration
		level Level
		want  string
	}{
		"h100-8x8":         {3 * time.Second, LevelOK, "GPUDirect RDMA works on all 8 expected GPU-NIC pairs (8 measured)."},
		"b200-8x8":         {3 * time.Second, LevelOK, "works on all 8 expected"},
		"gdr-lost":         {3 * time.Second, LevelProblem, "works on 7 of 8 expected GPU-NIC pairs only: 1 staged through host memory (GPU 0000:18:00.0 with mlx5_0). Likely cause: a loaded nvidia-peermem does not take GPU memory."},
		"h100-8x8-demo":    {200 * time.Second, LevelProblem, "works on 7 of 8"},
		"pcie-downtrained": {3 * time.Second, LevelProblem, "1 degraded"},
		"h200-1":           {3 * time.Second, LevelNone, "There is no RDMA device on this node"},
		"soft-roce":        {3 * time.Second, LevelNone, "There is no NVIDIA GPU on this node"},
	} {
		t.Run(name, func(t *testing.T) {
			p := captured(t, name, c.after)
			document := p.Document()
			if sum := &document.Summary; sum.Level != c.level || !strings.Contains(sum.Sentence, c.want) {
				t.Errorf("%s: %s", sum.Level, sum.Sentence)
			}
			var b bytes.Buffer
			if err := p.WriteHTML(&b); err != nil {
				t.Fatal(err)
			}
			checkHTML(t, b.String())
			checkTable(t, b.String())
			want(t, b.String(), document.Summary.Sentence, levelLooks[c.level].Word)
			for i := range document.Findings {
				want(t, b.String(), document.Findings[i].Seen, document.Findings[i].Hint)
			}
		})
	}
}

// judged is a page of expected pairs in these states.
func judged(states ...diagnosis.State) Page {
	d := &diagnosis.Diagnosis{Time: at}
	for i, state := range states {
		d.Paths = append(d.Paths, diagnosis.Path{GPU: fmt.Sprintf("0000:%02x:00.0", i), Device: fmt.Sprintf("mlx5_%d", i), Port: 1, State: state, Evidence: diagnosis.EvidenceMeasured, Expected: true})
	}
	return Page{Snapshot: &snapshot.Snapshot{Taken: at}, Diagnosis: d}
}

func TestSummary(t *testing.T) {
	const direct, degraded, staged, unsupported, unknown = diagnosis.StateDirect, diagnosis.StateDegraded, diagnosis.StateStaged, diagnosis.StateUnsupported, diagnosis.StateUnknown
	with := func(p Page, change func(*diagnosis.Diagnosis)) Page {
		change(p.Diagnosis)
		return p
	}
	find := func(severity diagnosis.Severity) func(*diagnosis.Diagnosis) {
		return func(d *diagnosis.Diagnosis) {
			d.Findings = []diagnosis.Finding{{Rule: "port_down", Severity: severity, Subject: diagnosis.Subject{Device: "mlx5_0", Port: 1}}}
		}
	}
	for name, c := range map[string]struct {
		page  Page
		level Level
		want  string
	}{
		"not judged":  {Page{Snapshot: &snapshot.Snapshot{Taken: at}}, LevelUnknown, "is not judged"},
		"one":         {judged(direct), LevelOK, "works on the 1 expected GPU-NIC pair (1 measured)."},
		"inferred":    {with(judged(direct), func(d *diagnosis.Diagnosis) { d.Paths[0].Evidence = diagnosis.EvidenceInferred }), LevelOK, "(1 inferred, not measured)."},
		"unknown":     {judged(direct, unknown), LevelUnknown, "is not known of 1 of 2 expected GPU-NIC pairs; it works on 1."},
		"all unknown": {judged(unknown), LevelUnknown, "is not known of 1 of 1 expected GPU-NIC pair; it works on 0."},
		"mixed": {
			judged(direct, staged, degraded, unsupported, unknown), LevelProblem,
			"works on 1 of 5 expected GPU-NIC pairs only: 1 staged through host memory (GPU 0000:01:00.0 with mlx5_1), 1 degraded (GPU 0000:02:00.0 with mlx5_2), 1 unsupported (GPU 0000:03:00.0 with mlx5_3), 1 not known",
		},
		"many":         {judged(staged, staged, staged), LevelProblem, "3 staged through host memory."},
		"unsupported":  {judged(unsupported), LevelNone, "works on 0 of 1 expected GPU-NIC pair only: 1 unsupported"},
		"warning":      {with(judged(direct), find(diagnosis.SeverityWarning)), LevelWarning, "Worst finding: a port is down that should be up (mlx5_0 port 1)."},
		"critical":     {with(judged(direct), find(diagnosis.SeverityCritical)), LevelProblem, "Worst finding:"},
		"info":         {with(judged(direct), find(diagnosis.SeverityInfo)), LevelOK, "(1 measured)."},
		"not expected": {with(judged(staged), func(d *diagnosis.Diagnosis) { d.Paths[0].Expected = false }), LevelNone, "neither a GPU nor an RDMA device"},
	} {
		sum := c.page.Document().Summary
		if sum.Level != c.level || !strings.Contains(sum.Sentence, c.want) {
			t.Errorf("%s: %s: %s", name, sum.Level, sum.Sentence)
		}
	}
}

func TestContext(t *testing.T) {
	yes, no := sysread.Some(true), sysread.Some(false)
	for want, c := range map[string]host.Context{
		"Measured on the host itself, as root with CAP_SYS_ADMIN (privileged).":                                                  {Root: yes, Container: no, Capabilities: sysread.Some(uint64(1) << 21), HostPID: yes, HostNetwork: yes},
		"Measured in a container, as root without CAP_SYS_ADMIN (not privileged), without the host's PID and network namespace.": {Root: yes, Container: yes, Capabilities: sysread.Some(uint64(1) << 14), HostPID: no, HostNetwork: no},
		"Measured on the host itself or in a container that shares its files, as a user other than root.":                        {Root: no},
	} {
		p := Page{Snapshot: &snapshot.Snapshot{Taken: at, Host: &snapshot.HostPart{Units: []snapshot.UnitPart[host.Reading]{{Name: "host", Data: &host.Reading{Context: c}}}}}}
		if got := p.Document().Context.Sentence; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	p := judged()
	p.Diagnosis.Rules = []diagnosis.RuleResult{{Rule: "a", Result: diagnosis.ResultNotJudged, Missing: []string{"x", "y"}}, {Rule: "b", Result: diagnosis.ResultNotJudged, Missing: []string{"x"}}}
	missing := p.Document().Context.Missing
	if len(missing) != 2 || missing[0].What != "x" || !slices.Equal(missing[0].Rules, []string{"a", "b"}) || !slices.Equal(missing[1].Rules, []string{"a"}) {
		t.Errorf("%+v", missing)
	}
}

// TestRunbooks: every rule has a runbook, which says what was found here; others have none.
func TestRunbooks(t *testing.T) {
	p := captured(t, "gdr-lost", 3*time.Second)
	var index bytes.Buffer
	if err := p.WriteRunbooks(&index); err != nil {
		t.Fatal(err)
	}
	checkHTML(t, index.String())
	checkTable(t, index.String())
	for _, rule := range diagnosis.Rules() {
		var b bytes.Buffer
		if found, err := p.WriteRunbook(&b, rule.ID); !found || err != nil {
			t.Fatalf("%s: %v, %v", rule.ID, found, err)
		}
		checkHTML(t, b.String())
		want(t, b.String(), rule.Title, rule.Hint)
		if !strings.Contains(index.String(), `href="`+RunbookRoot+rule.ID+`"`) {
			t.Errorf("the index has no %s", rule.ID)
		}
		if at := rule.ID == "path_staged"; at != strings.Contains(text(b.String()), "It is found on this node. ✗ Critical: "+rule.Title) {
			t.Errorf("%s: %s", rule.ID, text(b.String()))
		}
	}
	alerts := 0
	for _, name := range runbooks.Names() {
		var b bytes.Buffer
		if found, err := p.WriteRunbook(&b, name); !found || err != nil {
			t.Fatalf("%s: %v, %v", name, found, err)
		}
		checkHTML(t, b.String())
		want(t, b.String(), "What it means", "What the job feels", "How to confirm it by hand", "How to fix it", "When to ignore it")
		if alert := unicode.IsUpper(rune(name[0])); alert == strings.Contains(b.String(), "On this node") || !strings.Contains(index.String(), `href="`+RunbookRoot+name+`"`) {
			t.Errorf("%s is an alert: %v", name, alert)
		} else if alert {
			alerts++
		}
	}
	if len(alertNames()) != alerts || alerts < 40 {
		t.Errorf("%d alerts, of %d it is known", alerts, len(alertNames()))
	}
	var b bytes.Buffer
	if found, err := p.WriteRunbook(&b, "GDRDataCorruption"); !found || err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`<a href="/runbooks/data_corruption">`, `<code>gdr_exporter ctl quiesce</code>`} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("without %s: %s", part, b.String())
		}
	}
	b.Reset()
	if found, err := p.WriteRunbook(&b, "no_such<script>"); found || err != nil || b.Len() > 0 {
		t.Errorf("%v, %v, %s", found, err, b.String())
	}
}

// TestBounds: a page of a node with everything wrong is bounded.
func TestBounds(t *testing.T) {
	p := judged()
	for i := range mostFindings + 9 {
		p.Diagnosis.Findings = append(p.Diagnosis.Findings, diagnosis.Finding{Rule: "port_down", Subject: diagnosis.Subject{Port: i}})
	}
	for range mostReadErrors + 4 {
		p.Snapshot.Errors = append(p.Snapshot.Errors, snapshot.ErrorCount{ErrorKey: snapshot.ErrorKey{Errno: "EIO"}})
	}
	document := p.Document()
	if len(document.Findings) != mostFindings || document.FindingsOmitted != 9 || len(document.ReadErrors) != mostReadErrors || document.ReadErrorsOmitted != 4 || document.Summary.Infos != mostFindings+9 {
		t.Errorf("%d findings, %d omitted; %d errors, %d omitted; %d infos", len(document.Findings), document.FindingsOmitted, len(document.ReadErrors), document.ReadErrorsOmitted, document.Summary.Infos)
	}
	var b bytes.Buffer
	if err := p.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	want(t, b.String(), fmt.Sprintf("And %d more", mostFindings+9-mostShownFindings), fmt.Sprintf("And %d more", mostReadErrors+4-mostShownErrors))
}

func TestNatural(t *testing.T) {
	names := []string{"mlx5_10", "mlx5_2", "mlx5_1", "irdma0", "mlx5_010", "mlx5_bond_0", "", "mlx5_"}
	slices.SortFunc(names, natural)
	if want := []string{"", "irdma0", "mlx5_", "mlx5_1", "mlx5_2", "mlx5_10", "mlx5_010", "mlx5_bond_0"}; !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
}

// TestNullIsNotZero: of a node of which nothing is known nothing is said to be 0 or false.
func TestNullIsNotZero(t *testing.T) {
	s := of(hung("mlx5_0", time.Minute))
	document := decoded(t, Page{Snapshot: s}).(map[string]any)
	for _, name := range []string{"replay", "prober", "driver", "host", "processes", "kernel_log"} {
		if value, there := document[name]; !there || value != nil {
			t.Errorf("%s is %v", name, value)
		}
	}
	device, _ := json.Marshal(document["devices"])
	if want := `"answers":false`; !strings.Contains(string(device), want) || !strings.Contains(string(device), `"driver":null`) {
		t.Errorf("%s", device)
	}
	if document["schema_version"] != float64(SchemaVersion) {
		t.Errorf("version %v", document["schema_version"])
	}
}

// BenchmarkPage is the page of a node with 8 GPUs and 8 NICs, without reading it.
func BenchmarkPage(b *testing.B) {
	p := captured(b, "h100-8x8", 3*time.Second)
	big := bigNode()
	for name, page := range map[string]Page{"8x8": p, "16x18": big} {
		b.Run(name+"/html", func(b *testing.B) {
			for b.Loop() {
				if err := page.WriteHTML(&bytes.Buffer{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/json", func(b *testing.B) {
			for b.Loop() {
				if err := page.Document().WriteJSON(&bytes.Buffer{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
