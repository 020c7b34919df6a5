package status

import (
	"fmt"
	"slices"
	"strings"

	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/session"
)

// metLines are what this check measured with other nodes.
func (n *checkNode) metLines() []CheckLine {
	var lines []CheckLine
	seen := map[string]bool{}
	for i := range n.options.Met {
		r := &n.options.Met[i]
		line := CheckLine{ID: "met/" + printable(r.Target), Title: "path to " + printable(r.Target), Seen: r.seen(), Status: r.checkStatus(), Rules: []CheckRule{}}
		if seen[line.ID] {
			continue // named twice
		}
		seen[line.ID] = true
		if line.Status != CheckOK {
			line.Do = "gdr_exporter peer " + cleaned(r.Target) + " shows each rail; see /runbooks/peer_path_bad"
		}
		lines = append(lines, line)
	}
	return lines
}

// corrupt reports whether data arrived wrong.
func (r *PeerReport) corrupt() bool {
	return slices.ContainsFunc(r.Paths, func(p peer.Path) bool {
		return slices.ContainsFunc(append([]*peer.Measurement{p.Ping}, p.Bandwidth...), func(m *peer.Measurement) bool { return m != nil && m.Class == peer.ClassCorrupt })
	})
}

func (r *PeerReport) checkStatus() CheckStatus {
	switch {
	case r.corrupt():
		return CheckCritical
	case r.Outcome == PeerBad:
		return CheckWarning
	case r.Outcome == PeerNotMeasured:
		return CheckNotJudged
	}
	return CheckOK
}

// seen is the report in one line: what is wrong, or else what the rails do together.
func (r *PeerReport) seen() string {
	var parts []string
	if r.Outcome == PeerFine {
		parts = append(parts, checkPlural(len(r.Paths), "rail"))
		for _, memory := range []session.Memory{session.Host, session.GPU, session.Staged} {
			if sum, has := r.Sums[memory]; has {
				parts = append(parts, fmt.Sprintf("%s memory %.2f GB/s each way", memory, sum/1e9))
			}
		}
		return strings.Join(parts, ", ")
	}
	parts = r.troubles()
	if len(parts) == 0 {
		parts = []string{"nothing was measured"}
	}
	return checkSome(parts, 4)
}

// countMet adds what was measured with other nodes to what the findings say.
func (c *Check) countMet(met []PeerReport) {
	for i := range met {
		switch met[i].checkStatus() {
		case CheckCritical:
			c.Counts.Critical++
		case CheckWarning:
			c.Counts.Warning++
		case CheckNotJudged:
			c.Unjudged = append(c.Unjudged, fmt.Sprintf("the path to %s: %s", printable(met[i].Target), met[i].seen()))
		}
	}
}
