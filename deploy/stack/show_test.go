package stack_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v2"

	"gdr_exporter/collector/capture/embedded"
	"gdr_exporter/deploy/stack"
	"gdr_exporter/deploy/stack/scenes"
)

// Of an interval of 30 s a show may see every second or third scrape only; not a multiple
// of a minute, or a port that flaps each minute looks as if it were down or up.
const (
	scaledInterval = 78 * time.Second
	leastInterval  = 1300 * time.Millisecond
)

const healthy = "h100-8x8"

// start starts a stack, or skips where something that it needs is not installed.
func start(t *testing.T, options stack.Options) *stack.Stack {
	t.Helper()
	s, err := stack.Start(t.Context(), options)
	if missing := (*stack.MissingError)(nil); errors.As(err, &missing) {
		t.Skip(missing)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// skipSlow skips a show that takes minutes.
func skipSlow(t *testing.T) {
	t.Helper()
	switch {
	case testing.Short():
		t.Skip("takes some minutes")
	case raced:
		t.Skip("too slow with the race detector: make test runs it once more without")
	}
}

// pace chooses how fast time runs: so that the machine makes all pages between scrapes.
func pace(t *testing.T, nodes []stack.Node) (speed float64, interval time.Duration) {
	t.Helper()
	if os.Getenv("STACK_UNSCALED") != "" {
		return 1, 30 * time.Second
	}
	recording, err := embedded.Open(healthy)
	if err != nil {
		t.Fatal(err)
	}
	once, err := stack.PageTime(stack.Node{Name: "measured", Recording: recording})
	if err != nil {
		t.Fatal(err)
	}
	all := once * time.Duration(len(nodes))
	for i := range nodes {
		all += once * time.Duration(nodes[i].Copies) // which cost Prometheus as much, though they are not made
	}
	all /= time.Duration(min(runtime.GOMAXPROCS(0), 2))
	// As much again for Prometheus, and half of the machine to spare.
	interval = min(max(leastInterval, 4*all), 10*leastInterval)
	speed = float64(scaledInterval) / float64(interval)
	t.Logf("a page takes %v, scrapes are %v apart, time runs %.0f times as fast", once, interval, speed)
	return speed, interval
}

// realExporter starts the exporter itself on a capture, with a profile. It ends with the test.
func realExporter(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "gdr_exporter")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "gdr_exporter/cmd/gdr_exporter").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	address := stack.FreeAddress()
	site := filepath.Join(dir, "profile.yaml")
	if err := os.WriteFile(site, []byte("ports:\n- device: mlx5_0\n- device: mlx5_2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, binary, "--replay="+name, "--profile="+site, "--web.listen-address="+address)
	cmd.WaitDelay = time.Minute
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	return address
}

// told are the names of the alerts that came, by cluster and name, with when each came
// first by the clock.
func told(s *stack.Stack) map[string]map[string]time.Duration {
	all := map[string]map[string]time.Duration{}
	for _, n := range s.Receiver.Notifications() {
		for _, a := range n.Alerts {
			cluster, name := a.Labels["cluster"], a.Labels["alertname"]
			if all[cluster] == nil {
				all[cluster] = map[string]time.Duration{}
			}
			after := s.Clock.At(a.StartsAt).Sub(s.Clock.Began())
			if before, known := all[cluster][name]; a.Status == "firing" && (!known || after < before) {
				all[cluster][name] = after
			}
		}
	}
	return all
}

// missing are the alerts that have not come yet.
func missing(s *stack.Stack, all []scenes.Scene) []string {
	came := told(s)
	var names []string
	for _, scene := range all {
		for _, name := range scene.Told {
			if _, is := came[scene.Name][name]; !is {
				names = append(names, scene.Name+": "+name)
			}
		}
	}
	return names
}

// TestShow: a real Prometheus and a real Alertmanager over all scenes: each raises its
// alerts, in the time that the rules allow, and no other; the healthy ones none for far
// more than half an hour.
func TestShow(t *testing.T) {
	skipSlow(t)
	all, err := scenes.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, capture := range []string{"gdr-lost", healthy} {
		scene := scenes.Scene{Name: "exporter-" + capture, Told: map[string][]string{"gdr-lost": {"GDRPathStaged"}}[capture]}
		scene.Nodes = []stack.Node{{Name: scene.Name, Cluster: scene.Name, Address: realExporter(t, capture)}}
		all = append(all, scene)
	}
	if only := os.Getenv("STACK_SCENES"); only != "" {
		named := regexp.MustCompile(only)
		all = slices.DeleteFunc(all, func(s scenes.Scene) bool { return !named.MatchString(s.Name) })
	}
	var nodes []stack.Node
	for _, scene := range all {
		nodes = append(nodes, scene.Nodes...)
	}
	speed, interval := pace(t, nodes)
	s := start(t, stack.Options{Nodes: nodes, Speed: speed, Scrape: interval, OnlyRead: true, History: scenes.History})
	// What comes last is told after three hours.
	const enough, late = 3*time.Hour + 20*time.Minute, 6 * time.Hour
	for s.Clock.Since() < enough || len(missing(s, all)) > 0 && s.Clock.Since() < late {
		time.Sleep(interval)
	}
	waits := waiting(t)
	came := told(s)
	for _, scene := range all {
		t.Run(scene.Name, func(t *testing.T) {
			got, want := slices.Sorted(maps.Keys(came[scene.Name])), slices.Sorted(slices.Values(scene.Told))
			if !slices.Equal(got, want) {
				t.Errorf("told %v, want %v", got, want)
			}
			for name, after := range came[scene.Name] {
				t.Logf("%s after %v", name, after.Round(time.Second))
				if after < waits[name] {
					t.Errorf("%s came after %v, and should wait for %v", name, after, waits[name])
				}
			}
		})
		delete(came, scene.Name)
	}
	for cluster, names := range came {
		t.Errorf("cluster %q: told %v, and there is no such scene", cluster, names)
	}
}

// waiting is for how long each alert waits, by the rules.
func waiting(t *testing.T) map[string]time.Duration {
	t.Helper()
	names, err := filepath.Glob("../prometheus/rules/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no rules: %v", err)
	}
	all := map[string]time.Duration{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Groups []struct {
				Rules []struct {
					Alert string         `yaml:"alert"`
					For   model.Duration `yaml:"for"`
				} `yaml:"rules"`
			} `yaml:"groups"`
		}
		if err := yaml.Unmarshal(text, &file); err != nil {
			t.Fatal(err)
		}
		for _, group := range file.Groups {
			for _, rule := range group.Rules {
				if rule.Alert != "" {
					all[rule.Alert] = time.Duration(rule.For)
				}
			}
		}
	}
	return all
}
