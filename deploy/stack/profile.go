package stack

import (
	"encoding/json"
	"fmt"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/profile"
)

// ProfileOf is the profile of a node that should have each port that is ACTIVE when its
// replay begins: of a replay the exporter learns nothing. nil for a node without such
// ports, whatever was recorded of it.
func ProfileOf(recording *capture.Recording) (*profile.Site, error) {
	at := recording.At(0)
	answers := map[string]json.RawMessage{}
	for i := range at.Answers {
		if a := &at.Answers[i]; a.Part == capture.PartNetlink {
			answers[a.Question] = a.Last.JSON
		}
	}
	var devices []struct {
		Index uint32 `json:"index"`
		Name  string `json:"name"`
		Ports uint32 `json:"ports"`
	}
	if len(answers["GET"]) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(answers["GET"], &devices); err != nil {
		return nil, fmt.Errorf("RDMA devices of a capture: %w", err)
	}
	site := &profile.Site{Name: "as-recorded"}
	for _, d := range devices {
		for port := uint32(1); port <= d.Ports; port++ {
			var state struct {
				State int `json:"state"`
			}
			if text := answers[fmt.Sprintf("PORT_GET %d %d", d.Index, port)]; len(text) == 0 || json.Unmarshal(text, &state) != nil || state.State != active {
				continue
			}
			site.Ports = append(site.Ports, profile.SitePort{Device: d.Name, Port: profile.Count(port)})
		}
	}
	if len(site.Ports) == 0 {
		return nil, nil
	}
	return site, nil
}

// active is the state of a port that works, by the kernel.
const active = 4
