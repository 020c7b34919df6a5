package stack_test

import (
	"os"
	"regexp"
	"testing"
	"time"

	"go.yaml.in/yaml/v2"
)

// later are pairs in which the narrower alert may be told before the wider one is known.
var later = map[[2]string]string{
	{"GDRNodeNeverReported", "GDRExporterDown"}:     "that a node never answered is certain after an hour only",
	{"GDRManyPathsUnverified", "GDRPathUnverified"}: "info of a node is told to nobody by the example",
	{"GDRPeerCertificateEnds", "GDRPeerUnmeasured"}: "it looks back three hours",
	{"RDMAManyPortsDown", "RDMAPortFlapping"}:       "a port has flapped before",
	{"RDMANICMissing", "RDMAPortFlapping"}:          "a port has flapped before",
	{"RDMANICMissing", "RDMAPortDown"}:              "a port that is not there has no state, and is not down",
	{"RDMAPortDown", "RDMAPortFlapping"}:            "a port has flapped before",
	{"RDMAPortRateLow", "GDRProbeHung"}:             "a lower rate hangs no probe: the others of that rule do",
}

// TestHeldBackInTime: what holds back another alert fires before it. What a recording rule
// says arrives after one interval for each group on the way, and groups are not evaluated
// at the same time: three intervals of 30 s.
func TestHeldBackInTime(t *testing.T) {
	const lag = 90 * time.Second
	waits := waiting(t)
	text, err := os.ReadFile("../alertmanager/alertmanager.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Inhibit []struct {
			Source []string `yaml:"source_matchers"`
			Target []string `yaml:"target_matchers"`
		} `yaml:"inhibit_rules"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`[A-Z]\w+`)
	seen := map[[2]string]bool{}
	for _, rule := range file.Inhibit {
		for _, source := range name.FindAllString(rule.Source[0], -1) {
			for _, target := range name.FindAllString(rule.Target[0], -1) {
				if _, known := waits[target]; !known {
					t.Errorf("no alert %s", target)
				}
				seen[[2]string{source, target}] = true
				if _, may := later[[2]string{source, target}]; !may && waits[source]+lag > waits[target] {
					t.Errorf("%s waits for %v, and %s, which it holds back, for %v", source, waits[source], target, waits[target])
				}
			}
		}
	}
	if len(seen) < 40 {
		t.Errorf("%d pairs", len(seen))
	}
	for pair := range later {
		if !seen[pair] {
			t.Errorf("%v holds back nothing", pair)
		}
	}
}
