package dashboards_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// firstMatrix is the range of a call's argument.
func firstMatrix(c *parser.Call) (time.Duration, bool) {
	for _, a := range c.Args {
		switch a := a.(type) {
		case *parser.MatrixSelector:
			return a.Range, true
		case *parser.SubqueryExpr:
			return a.Range, true
		}
	}
	return 0, false
}

// unused are families that no panel and no rule reads, with the reason; names are
// regular expressions.
var unused = map[string]string{
	"gdr_gpu_p2p_status_id|gdr_gpu_ancestor_level_id": "a series for each pair of GPUs, for the status page; gdr_gpu_p2p_peers says that some are missing",
	"gdr_gpu_c2c_links":      "Grace only, a fact of the hardware",
	"gdr_gpu_reset_required": "gdr_gpu_recovery_action_id says the same where the driver is new enough, and there is a finding",
	"gdr_fabric_info":        "for joins of the nodes of one NVLink domain",
	"gdr_pcie_ats_enabled":   "its absence is usual; there is a finding where it matters",
	"gdr_peermem_parameter|gdr_peermem_marker_present|gdr_peermem_clients_omitted":             "evidence of gdr_peermem_library_detects and of findings",
	"gdr_peermem_client_(re|dere)g_pages_total":                                                "as the bytes, in another unit",
	"gdr_peermem_client_registered":                                                            "gdr_peermem_client_live_mrs has its series where this is 1",
	"gdr_rdma_(port|device)_hw_lifespan_seconds":                                               "a setting of the driver",
	"gdr_rdma_port_hw_((active|watermark)_.+|current_rate|num_qps_congested|db_fifo_register)": "gauges of single drivers (bnxt_re, irdma, hfi1), for those who know them",
	"gdr_rdma_port_(pfc_enabled|ecn_(notification|reaction)_enabled|dcb_supported|ethtool_supported|netdev_hidden|source_info|optional_counter_enabled)": "by priority or port: evidence of findings; the fabric dashboard has the sums",
	"gdr_rdma_port_pcie_outbound_stalled_(read|write)_ratio": "the device's own mean; the panel takes the time, which adds up over any range",
	"gdr_rdma_device_restricted":                             "as gdr_rdma_port_restricted, of devices",
	"gdr_rdma_monitor_events_total":                          "the exporter's own working, for bug reports",
	"gdr_nvlink_(malformed_packet|buffer_overrun|receive_general|receive_remote|local_link_integrity)_errors_total": "with --collector.nvlink.per-link only",
}

// TestFamiliesAreUsed: each family of the exporter serves a panel or a rule, or it is
// said why not.
func TestFamiliesAreUsed(t *testing.T) {
	used := map[string]bool{}
	var patterns []*labels.Matcher
	note := func(where, expr string) {
		parser.Inspect(parsed(t, where, expr), func(n parser.Node, _ []parser.Node) error {
			if s, is := n.(*parser.VectorSelector); is {
				used[s.Name] = true
				for _, l := range s.LabelMatchers {
					if l.Name == "__name__" && l.Type == labels.MatchRegexp {
						patterns = append(patterns, l)
					}
				}
			}
			return nil
		})
	}
	everyQuery(t, func(_ *model, where, expr string) { note(where, expr) })
	for _, r := range rules(t) {
		note(r.Record+r.Alert, r.Expr)
	}
	read := func(family string) bool {
		for _, p := range patterns {
			if p.Matches(family) {
				return true
			}
		}
		return used[family]
	}
	known := families(t)
	for family := range known {
		if reason := unusedBecause(family); read(family) == (reason != "") {
			t.Errorf("%s: read by panels or rules %t, reason why not %q", family, read(family), reason)
		}
	}
	for pattern := range unused {
		if !matchesAny(pattern, known) {
			t.Errorf("%s matches no family any more", pattern)
		}
	}
}

func unusedBecause(family string) string {
	for pattern, reason := range unused {
		if regexp.MustCompile("^(?:" + pattern + ")$").MatchString(family) {
			return reason
		}
	}
	return ""
}

func matchesAny(pattern string, known map[string]map[string]bool) bool {
	expression := regexp.MustCompile("^(?:" + pattern + ")$")
	for family := range known {
		if expression.MatchString(family) {
			return true
		}
	}
	return strings.TrimSpace(pattern) == ""
}
