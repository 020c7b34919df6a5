package collector

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/loopback/prober"
)

// Families of what the node should have.
var (
	profileInfo = gauge("gdr_profile_info",
		"By what the exporter knows what the node should have, value 1: source is file (--profile), embedded (a usual platform, by product name and GPU model), learned (the best that was seen here) or none; name is the profile's.")
	rdmaPortExpected = gauge("gdr_rdma_port_expected",
		"1 if the port should be ACTIVE: a profile names it, or it was ACTIVE here for a minute and its device is a compute device. Others have no series.")
)

// showExpected shows what the node should have.
func showExpected(p *page, s *snapshot.Snapshot) {
	if s.Expected == nil {
		return
	}
	source := s.Expected.Source
	if source == "" {
		source = profile.SourceNone
	}
	p.add(profileInfo, 1, pairs("name", s.Expected.Name, "source", string(source)))
	for _, port := range slices.SortedFunc(maps.Keys(s.Expected.Ports), comparePorts) {
		p.add(rdmaPortExpected, 1, pairs("device", port.Device, "port", strconv.Itoa(port.Number)))
	}
}

func comparePorts(a, b prober.Port) int {
	return cmp.Or(strings.Compare(a.Device, b.Device), a.Number-b.Number)
}
