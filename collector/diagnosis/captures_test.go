package diagnosis

import (
	"slices"
	"testing"
	"time"

	"gdr_exporter/collector/capture/embedded"
)

// seconds is a time in seconds.
func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// capturedFailures are the embedded captures of nodes with a failure, at seconds
// after their beginning, and the rules that find it.
var capturedFailures = map[string]struct {
	at    []int
	finds []string
}{
	"acs-on":             {[]int{3}, []string{idDegraded, idACSRedirect}},
	"busy-node":          {[]int{3}, nil},
	"counters-saturated": {[]int{3}, []string{idSaturated}},
	"driver-mismatch":    {[]int{3, 70}, []string{idDriverMismatch, idNVMLFailed, idUnverified}},
	"gdr-lost":           {[]int{3}, []string{idStaged, idPeermemRefused}},
	"h100-8x8-demo":      {[]int{3, 125}, nil},
	// The GPU's next device takes over, and has not been measured with it yet.
	"nic-gone":         {[]int{3, 90}, []string{idNICMissing, idUnverified}},
	"nvlink-down":      {[]int{3}, []string{idNVLinks}},
	"pcie-downtrained": {[]int{3}, []string{idDegraded, idNoBenefit, idLinkWidth}},
	"port-flapping":    {[]int{3, 40}, []string{idPortDown}},
}

// TestCapturedFailures: the failures that embedded captures are made to show are
// found, read by the real readers.
func TestCapturedFailures(t *testing.T) {
	for _, name := range embedded.Names() {
		c, failing := capturedFailures[name]
		if !failing && !slices.Contains(healthyCaptures, name) {
			t.Errorf("capture %s is neither healthy nor has it a failure", name)
		}
		t.Run(name, func(t *testing.T) {
			e := NewEngine(EngineOptions{})
			var d *Diagnosis
			for _, at := range c.at {
				d = e.Diagnose(capturedAt(t, name, seconds(at)))
			}
			if d == nil {
				return
			}
			if got, want := found(d), slices.Sorted(slices.Values(c.finds)); !slices.Equal(got, want) {
				t.Errorf("findings of %q, want %q", got, want)
				for i := range d.Findings {
					t.Logf("%+v", d.Findings[i])
				}
				for i := range d.Paths {
					t.Logf("%+v", d.Paths[i])
				}
			}
		})
	}
}
