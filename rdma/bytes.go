package rdma

import "gdr_exporter/collector/sysread"

// byteSource names the counters whose sum is all bytes received or sent by a
// port's RDMA traffic.
type byteSource struct {
	source            Source
	receive, transmit []string
}

// byteSources are the places where drivers count bytes, best first. mlx5, mlx4,
// hfi1, qib and mthca: the PMA counters, in words. bnxt_re, efa and mana:
// rx_bytes. erdma: rx_bytes_cnt. irdma: IP octets, which on its RDMA functions
// are the RDMA traffic. mlx5 where sysfs hides the PMA counters and somebody has
// switched on the optional ones (Linux 6.15): rdma_rx_bytes. Soft-RoCE, siw and usnic count no bytes at all.
var byteSources = []byteSource{
	{SourceCountersExt, []string{"port_rcv_data_64"}, []string{"port_xmit_data_64"}},
	{SourceCounters, []string{"port_rcv_data"}, []string{"port_xmit_data"}},
	{SourceHW, []string{"rx_bytes"}, []string{"tx_bytes"}},
	{SourceHW, []string{"rx_bytes_cnt"}, []string{"tx_bytes_cnt"}},
	{SourceHW, []string{"ip4InOctets", "ip6InOctets"}, []string{"ip4OutOctets", "ip6OutOctets"}},
	{SourceHW, []string{"rdma_rx_bytes"}, []string{"rdma_tx_bytes"}},
}

// byteChooser picks a port's byte source once and stays with it: were it to
// change when one file fails, the counter would jump.
type byteChooser struct {
	chosen *byteSource
}

// choose returns bytes received and sent, where known.
func (c *byteChooser) choose(counters []Counter) (receive, transmit sysread.Maybe[float64]) {
	if c.chosen != nil {
		return c.chosen.sum(counters)
	}
	for i := range byteSources {
		receive, transmit = byteSources[i].sum(counters)
		if receive.Known && transmit.Known {
			c.chosen = &byteSources[i]
			return receive, transmit
		}
	}
	return sysread.Maybe[float64]{}, sysread.Maybe[float64]{}
}

func (s *byteSource) sum(counters []Counter) (receive, transmit sysread.Maybe[float64]) {
	return sumOf(counters, s.source, s.receive), sumOf(counters, s.source, s.transmit)
}

// sumOf is known only if every file is.
func sumOf(counters []Counter, source Source, files []string) sysread.Maybe[float64] {
	var sum float64
	for _, file := range files {
		value, known := find(counters, Info(source, file))
		if !known {
			return sysread.Maybe[float64]{}
		}
		sum += value
	}
	return sysread.Some(sum)
}

func find(counters []Counter, info *CounterInfo) (float64, bool) {
	for i := range counters {
		if counters[i].Info == info {
			return counters[i].Scaled(), true
		}
	}
	return 0, false
}
