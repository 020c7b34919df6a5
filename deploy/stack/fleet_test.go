package stack_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/deploy/stack"
	"gdr_exporter/deploy/stack/scenes"
)

// TestFleet: a hundred nodes lose peer memory at once, and somebody gets one page, of the
// cluster; nothing is told of a node, though Prometheus raises an alert of each.
func TestFleet(t *testing.T) {
	skipSlow(t)
	const nodes = 100
	scene, err := scenes.Fleet(nodes)
	if err != nil {
		t.Fatal(err)
	}
	speed, interval := pace(t, scene.Nodes)
	s := start(t, stack.Options{Nodes: scene.Nodes, Speed: speed, Scrape: interval, OnlyRead: true})
	held := map[string]int{"GDRPathStaged": nodes, "GDRPeermemMissing": nodes}
	await(t, s, "alerts of each node", 6*time.Hour, func() bool { return maps.Equal(raised(t, s, slices.Collect(maps.Keys(held))), held) })
	// What is held back would be told when the next group is.
	time.Sleep(s.Clock.Real(20 * time.Minute))
	var pages []string
	for _, n := range s.Receiver.Notifications() {
		for _, a := range n.Alerts {
			pages = append(pages, strings.TrimSpace(n.Receiver+" "+a.Status+" "+a.Labels["alertname"]+" "+a.Labels["node"]))
		}
	}
	if want := []string{"pager firing GDRManyNodesStaged"}; !slices.Equal(pages, want) {
		t.Errorf("told %d times: %v, want %v", len(pages), pages[:min(len(pages), 10)], want)
	}
}

// await waits until something holds.
func await(t *testing.T, s *stack.Stack, what string, most time.Duration, holds func() bool) {
	t.Helper()
	for !holds() {
		if s.Clock.Since() > most {
			t.Fatalf("waited %v in vain for %s", most, what)
		}
		time.Sleep(time.Second)
	}
}

// raised is how many alerts of each name fire in Prometheus, held back or not.
func raised(t *testing.T, s *stack.Stack, names []string) map[string]int {
	t.Helper()
	counts := map[string]int{}
	samples, err := s.Query(t.Context(), `count by (alertname) (ALERTS{alertstate="firing",alertname=~"`+strings.Join(names, "|")+`"})`)
	if err != nil {
		t.Fatal(err)
	}
	for _, sample := range samples {
		counts[sample.Labels["alertname"]] = int(sample.Value)
	}
	return counts
}

// TestNobody: without any target Prometheus says that there is none. Only a cluster of no
// nodes shows it.
func TestNobody(t *testing.T) {
	s := start(t, stack.Options{Speed: 60})
	await(t, s, "GDRExporterAbsent", 12*time.Hour, func() bool { return len(told(s)) > 0 })
	if got := told(s); !slices.Equal(slices.Sorted(maps.Keys(got[""])), []string{"GDRExporterAbsent"}) || len(got) != 1 {
		t.Errorf("told %v", got)
	}
}
