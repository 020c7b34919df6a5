package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// exporterOwn are the families that are not of the host: in them a replay may
// differ from the host whose capture it shows. Each says why.
var exporterOwn = []struct{ pattern, why string }{
	{`go_.*`, "of the exporter's Go runtime"},
	{`process_.*`, "of the exporter's process"},
	{`promhttp_.*`, "about the scrapes of this exporter"},
	{`gdr_replay_info`, "says that it is a replay"},
	{`gdr_scrape_collector_duration_seconds`, "how long this exporter took"},
	{`gdr_device_read_duration_seconds`, "how long this exporter took"},
	{`gdr_.*_timestamp_seconds`, "when this exporter read something"},
}

var exporterOwnFamily = func() *regexp.Regexp {
	var all []string
	for _, own := range exporterOwn {
		all = append(all, own.pattern)
	}
	return regexp.MustCompile("^(" + strings.Join(all, "|") + ")$")
}()

// pseudonymLabels are those whose values an anonymised capture replaces.
var pseudonymLabels = []string{"node_guid", "sys_image_guid"}

// sample is one sample of a page that is not the exporter's own.
type sample struct {
	series string            // name and labels but for pseudonymLabels
	names  map[string]string // pseudonymLabels that are not empty
	value  float64
}

// samplesOf reads a page: samples in the order of their series.
func samplesOf(t *testing.T, page string) []sample {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	var all []sample
	for name, family := range families {
		if exporterOwnFamily.MatchString(name) {
			continue
		}
		for _, metric := range family.Metric {
			s := sample{names: map[string]string{}}
			kept := slices.DeleteFunc(metric.Label, func(label *dto.LabelPair) bool {
				is := slices.Contains(pseudonymLabels, label.GetName()) && label.GetValue() != ""
				if is {
					s.names[label.GetName()] = label.GetValue()
				}
				return is
			})
			s.series = seriesKey(name, kept)
			switch {
			case metric.Gauge != nil:
				s.value = metric.Gauge.GetValue()
			case metric.Counter != nil:
				s.value = metric.Counter.GetValue()
			default:
				t.Fatalf("%s is neither gauge nor counter", name)
			}
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b sample) int { return strings.Compare(a.series, b.series) })
	return all
}

func (s sample) String() string { return fmt.Sprintf("%s %v %v", s.series, s.names, s.value) }

// same reports whether two samples are the same but for pseudonyms.
func (s sample) same(other sample) bool {
	return s.series == other.series && (s.value == other.value || math.IsNaN(s.value) && math.IsNaN(other.value)) && len(s.names) == len(other.names)
}

// pageDiffers says in which sample two pages differ, "" for in none.
func pageDiffers(want, got []sample) string {
	if differs := differsButForNames(want, got); differs != "" {
		return differs
	}
	for i := range want {
		if !maps.Equal(want[i].names, got[i].names) {
			return fmt.Sprintf("%v, got %v", want[i], got[i])
		}
	}
	return ""
}

func differsButForNames(want, got []sample) string {
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(got):
			return fmt.Sprintf("%d samples, got %d: %v is missing", len(want), len(got), want[i])
		case i >= len(want):
			return fmt.Sprintf("%d samples, got %d: %v", len(want), len(got), got[i])
		case !want[i].same(got[i]):
			return fmt.Sprintf("%v, got %v", want[i], got[i])
		}
	}
	return ""
}

// renamed checks that of two pages the second one is the first one with each name
// replaced by a pseudonym: always the same for a name, another for each name, and
// never the name itself. It returns what is wrong, and how many names there are.
func renamed(want, got []sample) (wrong string, names int) {
	if differs := differsButForNames(want, got); differs != "" {
		return differs, 0
	}
	pseudonyms, meant := map[string]string{}, map[string]string{}
	for i := range want {
		for label, name := range want[i].names {
			pseudonym := got[i].names[label]
			if known, is := pseudonyms[name]; is && known != pseudonym {
				return fmt.Sprintf("%s is both %s and %s", name, known, pseudonym), 0
			}
			if known, is := meant[pseudonym]; is && known != name {
				return fmt.Sprintf("%s is both %s and %s", pseudonym, known, name), 0
			}
			if pseudonym == name || pseudonym == "" {
				return fmt.Sprintf("%v shows %q", got[i], pseudonym), 0
			}
			pseudonyms[name], meant[pseudonym] = pseudonym, name
		}
	}
	return "", len(pseudonyms)
}

// checkCaptures replays, outside the virtual machine, what TestInKernelCapture
// left: the pages are those from inside, and the anonymised capture has nothing
// that identifies the machine.
func checkCaptures(t *testing.T, exporter, dir string) {
	t.Helper()
	read := func(name string) []byte {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	page := string(read(pageFile))
	live := samplesOf(t, page)
	for _, family := range []string{"gdr_rdma_port_state_id{", "gdr_rdma_port_hw_", "gdr_affinity_distance_id{", "gdr_pcie_link_width_lanes{"} {
		if !strings.Contains(page, family) {
			t.Errorf("the page has no %s: what is compared is not much", family)
		}
	}
	if differs := pageDiffers(live, replayedPage(t, exporter, filepath.Join(dir, rawFile))); differs != "" {
		t.Errorf("raw: in the virtual machine %s in the replay", differs)
	}
	wrong, names := renamed(live, replayedPage(t, exporter, filepath.Join(dir, anonymousFile)))
	if wrong != "" || names == 0 {
		t.Errorf("anonymised: %d names: in the virtual machine %s in the replay", names, wrong)
	}
	t.Logf("%d samples are the same in the virtual machine and in both replays; %d names are replaced", len(live), names)
	var s secrets
	if err := json.Unmarshal(read(secretsFile), &s); err != nil {
		t.Fatal(err)
	}
	checkSecrets(t, &s, unpacked(t, read(rawFile)), unpacked(t, read(anonymousFile)))
}

// replayedPage is the page of a replay.
func replayedPage(t *testing.T, exporter, capture string) []sample {
	t.Helper()
	args := append([]string{"--replay=" + capture, "--web.listen-address=127.0.0.1:0"}, captureFlagsInKernel...)
	r := startRunning(t, exec.Command(exporter, append(args, fresh...)...))
	page := metrics(t, r)
	r.signal(t, syscall.SIGTERM)
	if !strings.Contains(page, "gdr_replay_info{") {
		t.Error("the page is not marked as a replay")
	}
	return samplesOf(t, page)
}

// checkSecrets looks for what identifies the machine. That the raw capture has it
// shows that the look can find something.
func checkSecrets(t *testing.T, s *secrets, raw, anonymous string) {
	t.Helper()
	raw, anonymous = strings.ToLower(raw), strings.ToLower(anonymous)
	for kind, c := range map[string]struct {
		all      []string
		readable bool // by the readers, so that it is in the raw capture
	}{
		"host name or id": {s.Names, false}, "MAC address": {s.MACs, false}, "GUID": {s.GUIDs, true}, "GID": {s.GIDs, true}, "IP address": {s.IPs, false},
	} {
		inRaw := 0
		for _, secret := range c.all {
			secret = strings.ToLower(secret)
			if strings.Contains(anonymous, secret) {
				t.Errorf("the anonymised capture has the %s %s", kind, secret)
			}
			if strings.Contains(raw, secret) {
				inRaw++
			}
		}
		if len(c.all) == 0 || c.readable && inRaw == 0 {
			t.Errorf("%s: %d known, %d in the raw capture: nothing is proved", kind, len(c.all), inRaw)
		}
		t.Logf("%s: %d, of which %d in the raw capture and none in the anonymised one", kind, len(c.all), inRaw)
	}
}

// TestRenamed: the comparison of pages finds what it is there for.
func TestRenamed(t *testing.T) {
	of := func(guids ...string) []sample {
		var all []sample
		for i, guid := range guids {
			all = append(all, sample{series: fmt.Sprint("info", i), names: map[string]string{"node_guid": guid}, value: 1})
		}
		return all
	}
	for name, c := range map[string]struct {
		want, got []sample
		says      string
	}{
		"pseudonyms":          {of("a", "b", "a"), of("x", "y", "x"), ""},
		"two for one":         {of("a", "b", "a"), of("x", "y", "z"), "a is both x and z"},
		"one for two":         {of("a", "b"), of("x", "x"), "x is both a and b"},
		"the name":            {of("a", "b"), of("x", "b"), `shows "b"`},
		"missing":             {of("a", "b"), of("x"), "is missing"},
		"more":                {of("a"), of("x", "y"), "1 samples, got 2"},
		"none in its place":   {of("a"), []sample{{series: "info0", value: 1}}, "got"},
		"another value":       {of("a"), []sample{{series: "info0", names: map[string]string{"node_guid": "x"}, value: 2}}, "got"},
		"another series":      {of("a"), []sample{{series: "info", names: map[string]string{"node_guid": "x"}, value: 1}}, "got"},
		"what is not a value": {[]sample{{series: "a", value: math.NaN()}}, []sample{{series: "a", value: math.NaN()}}, ""},
	} {
		if wrong, _ := renamed(c.want, c.got); (c.says == "") != (wrong == "") || !strings.Contains(wrong, c.says) {
			t.Errorf("%s: %q", name, wrong)
		}
	}
	if differs := pageDiffers(of("a", "b"), of("a", "c")); !strings.Contains(differs, "c") {
		t.Errorf("names: %q", differs)
	}
}
