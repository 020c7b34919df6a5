package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/diagnosis"
)

// TestLogVerdict: each change is one line with pair, numbers and reason.
func TestLogVerdict(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	staged := diagnosis.Path{
		GPU: "0000:1b:00.0", Device: "mlx5_0", Port: 1, Distance: "PIX", State: diagnosis.StateStaged, Evidence: diagnosis.EvidenceInferred, Expected: true,
		Reasons: []string{"peermem: not loaded", "dma-buf: EOPNOTSUPP"}, Cause: "peermem_not_loaded", Since: at,
	}
	direct := staged
	direct.State, direct.Reasons, direct.Cause = diagnosis.StateDirect, nil, ""
	finding := diagnosis.Finding{
		Rule: "port_down", Severity: diagnosis.SeverityWarning, Subject: diagnosis.Subject{Device: "mlx5_3", Port: 1}, Seen: "state DOWN", Hint: "Check the cable.", Since: at,
	}
	critical := finding
	critical.Severity = diagnosis.SeverityCritical
	for name, test := range map[string]struct {
		change diagnosis.Change
		want   []string
	}{
		"staged": {diagnosis.Change{Path: &staged, Before: diagnosis.StateDirect, Numbers: "host 24.5 GB/s"}, []string{
			"level=warn", "msg=path", "gpu_address=0000:1b:00.0", "device=mlx5_0", "state=staged", "before=direct", "evidence=inferred", "EOPNOTSUPP", "cause=peermem_not_loaded", `measured="host 24.5 GB/s"`,
		}},
		"direct":   {diagnosis.Change{Path: &direct, Before: diagnosis.StateStaged}, []string{"level=info", "state=direct", "before=staged"}},
		"finding":  {diagnosis.Change{Finding: &finding}, []string{"level=warn", "msg=finding", "rule=port_down", "device=mlx5_3", "port=1", `seen="state DOWN"`, `hint="Check the cable."`}},
		"critical": {diagnosis.Change{Finding: &critical}, []string{"level=error", "severity=critical"}},
		"gone":     {diagnosis.Change{Finding: &critical, Gone: true}, []string{"level=info", `msg="finding gone"`, "rule=port_down"}},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			logVerdict(newLogger("info", "logfmt", &b))(test.change)
			if got := b.String(); strings.Count(got, "\n") != 1 {
				t.Errorf("not one line: %q", got)
			} else {
				for _, want := range test.want {
					if !strings.Contains(got, want) {
						t.Errorf("%q is not in %q", want, got)
					}
				}
			}
		})
	}
}

// TestLibraries: a library that nobody knows is a mistake on the command line.
func TestLibraries(t *testing.T) {
	for _, good := range []string{"ucx", "nccl:2.21.5", "nccl:2.27.3"} {
		var l libraryList
		if err := l.Set(good); err != nil || len(l) != 1 || l[0] != good {
			t.Errorf("%s: %v, %v", good, l, err)
		}
	}
	for _, bad := range []string{"", "nccl", "nccl:1.0", "mpi:4.1"} {
		var l libraryList
		if err := l.Set(bad); err == nil {
			t.Errorf("%q is taken: %v", bad, l)
		}
	}
}

// TestNamedPairs: what --probe.pairs names is expected, and nothing if it names none.
func TestNamedPairs(t *testing.T) {
	var pairs pairList
	if err := pairs.Set("nearest"); err != nil || pairs.named() != nil {
		t.Errorf("nearest names pairs: %v", err)
	}
	if err := pairs.Set("0000:1b:00.0/mlx5_0,0000:2c:00.0/mlx5_1:2"); err != nil {
		t.Fatal(err)
	}
	named := pairs.named()
	if !named("0000:1b:00.0", "mlx5_0") || !named("0000:2c:00.0", "mlx5_1") || named("0000:1b:00.0", "mlx5_1") {
		t.Error("other pairs are named")
	}
}
