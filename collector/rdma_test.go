package collector

import (
	"path/filepath"
	"testing"

	"gdr_exporter/rdma"
	"gdr_exporter/rdma/nldev"
)

// TestOptionalCounters: of optional counters those that are switched on are
// shown. mlx5 has up to a dozen of them, of which usually none is on.
func TestOptionalCounters(t *testing.T) {
	port := rdma.Port{Number: 1, Label: "1", LinkLayer: "InfiniBand", Optional: []nldev.Optional{
		{Name: "cc_rx_ce_pkts", Enabled: true}, {Name: "cc_rx_cnp_pkts"}, {Name: "cc_tx_cnp_pkts"},
	}}
	p := newPage()
	newRDMAView(noRoles{}).port(p, &rdma.Device{Identity: rdma.Identity{Name: "mlx5_0"}}, &port)
	comparePage(t, p, filepath.Join("testdata", "rdma", "optional.metrics"))
}
