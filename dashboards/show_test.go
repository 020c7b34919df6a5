package dashboards_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/dashboards/internal/scene"
	"gdr_exporter/deploy/stack"
)

// noGrowth is why a query of errors gives nothing: ports without are left out.
const noGrowth = "only counters that grow are shown, and no replay has these errors"

// silent are queries without data, with the reason, by dashboard/panel/query. Everything
// else must have some, with what package scene serves.
var silent = map[string]string{
	"gdr-node/PCIe errors (AER)/B":                                     noGrowth,
	"gdr-rdma-fabric/Lowest rate of rails, share of the port's rate/A": "the page with peers has no ports",

	"gdr-rdma-fabric/Errors within an hour/C": noGrowth,
	"gdr-rdma-fabric/Errors within an hour/D": noGrowth,
	"gdr-rdma-fabric/Errors within an hour/E": noGrowth,
	"gdr-rdma-fabric/Errors within an hour/G": noGrowth,
	"gdr-rdma-fabric/Errors within an hour/H": noGrowth,
	"gdr-rdma-fabric/Errors within an hour/I": noGrowth,
}

// Why an alert's expression gives nothing here. That each fires is tested in
// deploy/prometheus/tests and deploy/stack.
const (
	needsMany  = "needs many nodes with the fault"
	needsPast  = "compares with an hour, a day or a week ago"
	allAnswer  = "all targets answer, and have a label node"
	noSuchCase = "no embedded capture and none of the pages has this fault"
)

// quiet are alerts whose expression gives nothing, with the reason: all others find what
// they look for.
var quiet = map[string]string{
	"GDRManyNodesStaged": needsMany, "GDRManyNodesDegraded": needsMany, "RDMAManyPortsDown": needsMany, "GDRManyExportersDown": needsMany,
	"GDRManyPathsUnverified": needsPast, "GDRPathUnverified": needsPast, "GPUP2PLost": needsPast, "PCIeGPUGenerationLost": needsPast,
	"GDRExporterAbsent": allAnswer, "GDRExporterDown": allAnswer, "GDRNodeNeverReported": allAnswer, "GDRNodeLabelMissing": allAnswer,
	"GDRCollectorFailing": noSuchCase, "GDRDeviceReadStuck": noSuchCase, "GDRNVMLFailing": noSuchCase, "NVLinkErrors": noSuchCase,
	"NVLinkFabricStuck": noSuchCase, "NVLinkFabricUnhealthy": noSuchCase, "GDRDataCorruption": noSuchCase, "GDRPathDecline": noSuchCase,
	"GDRLibraryRefuses": noSuchCase, "GDRUCXRefuses": noSuchCase, "GDRLiveStaging": noSuchCase, "GDRPeermemMissing": noSuchCase,
	"PCIeAERUncorrectable": noSuchCase, "PCIeAERCorrectable": noSuchCase, "PCIeReplays": noSuchCase, "PCIeIOMMUTranslates": noSuchCase,
	"GDRPeerNodeBad": needsMany, "GDRPeerRailBad": needsMany, "GDRPeerListsDiffer": needsMany, "GDRPeerUnmeasured": needsPast, "GDRPeerAsymmetric": noSuchCase, "GDRPeerCertificateEnds": noSuchCase, "GDRManyPeerCertificatesEnd": needsMany,
	"KernelInterconnectErrors": needsPast, "RDMAPortRateLow": needsPast, "RDMAPortNoSubnetManager": noSuchCase, "RDMACongestion": noSuchCase, "RDMARetransmissions": noSuchCase,
}

// asked is one query, with the nodes that are tried in place of $node.
type asked struct {
	where, expr string
	nodes       []string
	must        bool // must give data
}

// TestAgainstPrometheus: a real Prometheus, which scrapes replays, has data for each query
// of each panel and variable and for each rule.
func TestAgainstPrometheus(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Prometheus, for a minute")
	}
	nodes, end, err := scene.Nodes()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = end() })
	s, err := stack.Start(t.Context(), stack.Options{Nodes: nodes, Scrape: 5 * time.Second, WithoutAlertmanager: true})
	var missing *stack.MissingError
	if errors.As(err, &missing) {
		t.Skip(missing)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })

	open := queries(t, nodes)
	total, began := len(open), time.Now()
	// A slow machine takes its time: as long as something new has data, there is hope.
	for last := began; len(open) > 0 && time.Since(last) < 4*time.Minute; {
		before := len(open)
		open = slices.DeleteFunc(open, func(q asked) bool { return hasData(t, s.Prometheus, q) })
		if len(open) < before {
			last = time.Now()
		}
		if !slices.ContainsFunc(open, func(q asked) bool { return q.must }) {
			break
		}
		time.Sleep(2 * time.Second)
	}
	for _, q := range open {
		if q.must {
			t.Errorf("%s: no data: %s", q.where, q.expr)
		}
	}
	t.Logf("%d queries, %d of them without data for a reason, after %s", total, len(open), time.Since(began).Round(time.Second))
}

// queries are all queries of panels, annotations and rules.
func queries(t *testing.T, nodes []stack.Node) []asked {
	t.Helper()
	var names []string
	for i := range nodes {
		names = append(names, nodes[i].Name)
	}
	// Those that show the most come first.
	slices.SortStableFunc(names, func(a, b string) int { return strings.Index(b, "h100-8x8-demo") - strings.Index(a, "h100-8x8-demo") })
	var all []asked
	seen := map[string]bool{}
	everyQuery(t, func(m *model, where, expr string) {
		q := asked{where: where, expr: expr, nodes: []string{".*"}, must: silent[where] == "" && !strings.Contains(where, "/annotation ")}
		if m.UID == "gdr-node" {
			q.nodes = names
		}
		seen[where] = true
		all = append(all, q)
	})
	all = append(all, variables(t, names)...)
	for _, r := range rules(t) {
		seen[r.Alert] = true
		all = append(all, asked{where: "rule " + r.Record + r.Alert, expr: r.Expr, nodes: []string{""}, must: r.Record != "" || quiet[r.Alert] == ""})
	}
	for where := range maps.Keys(silent) {
		if !seen[where] {
			t.Errorf("%s is no query", where)
		}
	}
	for name := range maps.Keys(quiet) {
		if !seen[name] {
			t.Errorf("%s is no alert", name)
		}
	}
	return all
}

// variables are the queries of variables, as queries.
func variables(t *testing.T, nodes []string) []asked {
	t.Helper()
	definition := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
	var all []asked
	for _, m := range models(t) {
		for _, v := range m.Templating.List {
			if v.Type != "query" {
				continue
			}
			found := definition.FindStringSubmatch(v.Definition)
			if found == nil {
				t.Errorf("%s: variable %s: %s", m.file, v.Name, v.Definition)
				continue
			}
			all = append(all, asked{where: m.UID + "/variable " + v.Name, expr: "count by (" + found[2] + ") (" + found[1] + ")", nodes: nodes, must: true})
		}
	}
	return all
}

// hasData asks Prometheus. An error of a query, which no wait mends, fails the test.
func hasData(t *testing.T, prometheus string, q asked) bool {
	t.Helper()
	for _, node := range q.nodes {
		expr := strings.NewReplacer("$__rate_interval", "40s", "$__range", "5m", "$cluster", ".*", "$device", ".*", "$gpu", ".*", "$node", node).Replace(q.expr)
		n, err := ask(t.Context(), prometheus, expr)
		if err != nil {
			t.Fatalf("%s: %v\n%s", q.where, err, expr)
		}
		if n > 0 {
			return true
		}
	}
	return false
}

// ask returns the number of series that an instant query gives.
func ask(ctx context.Context, prometheus, expr string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, prometheus+"/api/v1/query", strings.NewReader(url.Values{"query": {expr}}.Encode()))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("Prometheus: %s", answer.Error)
	}
	return len(answer.Data.Result), nil
}
