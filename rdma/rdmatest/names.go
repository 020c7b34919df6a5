package rdmatest

import "fmt"

// counter is a file name and the width of the number behind it in bits.
type counter struct {
	name string
	bits int
}

// PMA counters (kernel, drivers/infiniband/core/sysfs.c): widths are those of the PortCounters MAD, traffic those of PortCountersExtended.
var pmaErrors = []counter{
	{"symbol_error", 16}, {"link_error_recovery", 8}, {"link_downed", 8}, {"port_rcv_errors", 16},
	{"port_rcv_remote_physical_errors", 16}, {"port_rcv_switch_relay_errors", 16}, {"port_xmit_discards", 16},
	{"port_xmit_constraint_errors", 8}, {"port_rcv_constraint_errors", 8}, {"local_link_integrity_errors", 4},
	{"excessive_buffer_overrun_errors", 4}, {"VL15_dropped", 16}, {"port_xmit_wait", 32},
}

var pmaData = []counter{{"port_xmit_data", 64}, {"port_rcv_data", 64}, {"port_xmit_packets", 64}, {"port_rcv_packets", 64}}

var pmaExtended = []counter{
	{"unicast_xmit_packets", 64}, {"unicast_rcv_packets", 64}, {"multicast_xmit_packets", 64}, {"multicast_rcv_packets", 64},
}

// pmaFull is the set of a port that claims IB_PMA_CLASS_CAP_EXT_WIDTH, as every mlx5 port does.
var pmaFull = join(pmaErrors, pmaData, pmaExtended)

// pmaBasic is the set of a port without 64-bit counters: its traffic counters stick at 32 bits.
var pmaBasic = join(pmaErrors, []counter{
	{"port_xmit_data", 32}, {"port_rcv_data", 32}, {"port_xmit_packets", 32}, {"port_rcv_packets", 32},
})

// pma64 is counters_ext of kernels before 4.5.
var pma64 = wide("port_xmit_data_64", "port_rcv_data_64", "port_xmit_packets_64", "port_rcv_packets_64", "port_unicast_xmit_packets",
	"port_unicast_rcv_packets", "port_multicast_xmit_packets", "port_multicast_rcv_packets")

// mlx5 (drivers/infiniband/hw/mlx5/counters.c), in position order. Q counters are 32-bit in hardware.
var (
	mlx5Basic = narrow("rx_write_requests", "rx_read_requests", "rx_atomic_requests", "rx_dct_connect", "out_of_buffer")
	mlx5Retry = narrow("out_of_sequence", "duplicate_request", "rnr_nak_retry_err", "packet_seq_err", "implied_nak_seq_err",
		"local_ack_timeout_err")
	mlx5Errors = narrow("resp_local_length_error", "resp_cqe_error", "req_cqe_error", "req_remote_invalid_request",
		"req_remote_access_errors", "resp_remote_access_errors", "resp_cqe_flush_error", "req_cqe_flush_error",
		"req_transport_retries_exceeded", "req_rnr_retries_exceeded", "roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart",
		"roce_slow_restart_cnps", "roce_slow_restart_trans")
	mlx5Congestion = wide("rp_cnp_ignored", "rp_cnp_handled", "np_ecn_marked_roce_packets", "np_cnp_sent", "rx_icrc_encapsulated")
	mlx5All        = join(mlx5Basic, mlx5Retry, mlx5Errors, mlx5Congestion)
	mlx5Vport      = join(mlx5Basic, mlx5Retry)
)

// mlx4 (drivers/infiniband/hw/mlx4/main.c): diagnostic counters, 32 bits, never cleared.
var (
	mlx4Port = narrow("rq_num_lle", "sq_num_lle", "rq_num_lqpoe", "sq_num_lqpoe", "rq_num_lpe", "sq_num_lpe", "rq_num_wrfe", "sq_num_wrfe",
		"sq_num_mwbe", "sq_num_bre", "sq_num_rire", "rq_num_rire", "sq_num_rae", "rq_num_rae", "sq_num_roe", "sq_num_tree", "sq_num_rree",
		"rq_num_rnr", "sq_num_rnr", "rq_num_oos", "sq_num_oos", "rq_num_dup", "sq_num_to")
	mlx4Device = join(mlx4Port, narrow("num_cqovf", "rq_num_udsdprd"))
)

// bnxt_re (drivers/infiniband/hw/bnxt_re/hw_counters.c) before the 2025 renaming: gauges among the counters.
var bnxtPort = join(
	gauges("active_pds", "active_ahs", "active_qps", "active_rc_qps", "active_ud_qps", "active_srqs", "active_cqs", "active_mrs", "active_mws",
		"watermark_qps", "watermark_cqs", "watermark_mrs", "db_fifo_register"),
	wide("rx_pkts", "rx_bytes", "tx_pkts", "tx_bytes", "recoverable_errors", "rx_roce_errors", "rx_roce_discards", "tx_roce_errors",
		"tx_roce_discards", "to_retransmits", "seq_err_naks_rcvd", "max_retry_exceeded", "rnr_naks_rcvd", "missing_resp",
		"unrecoverable_err", "bad_resp_err", "local_qp_op_err", "local_protection_err", "mem_mgmt_op_err", "remote_invalid_req_err",
		"remote_access_err", "remote_op_err", "dup_req", "res_exceed_max", "res_length_mismatch", "res_exceeds_wqe", "res_opcode_err",
		"res_rx_invalid_rkey", "res_rx_domain_err", "res_cq_load_err", "res_srq_load_err", "oos_drop_count", "rx_out_of_buffer",
		"tx_atomic_req", "tx_read_req", "tx_read_resp", "tx_write_req", "tx_send_req", "rx_atomic_req", "rx_read_req", "rx_write_req",
		"rx_send_req", "tx_roce_only_pkts", "tx_roce_only_bytes", "rx_roce_only_pkts", "rx_roce_only_bytes", "rx_roce_good_pkts",
		"rx_roce_good_bytes", "tx_cnp_pkts", "rx_cnp_pkts", "rx_ecn_marked_pkts", "pacing_reschedule", "pacing_complete",
		"pacing_alerts"))

// irdma (drivers/infiniband/hw/irdma/hw.c and verbs.c): generation 3 dropped prefixes and put spaces in names.
var (
	irdmaIP = wide("ip4InOctets", "ip4InPkts", "ip4InDiscards", "ip4InTruncatedPkts", "ip4InReasmRqd", "ip4InMcastOctets", "ip4InMcastPkts",
		"ip4OutOctets", "ip4OutPkts", "ip4OutSegRqd", "ip4OutMcastOctets", "ip4OutMcastPkts", "ip4OutNoRoutes", "ip6InOctets", "ip6InPkts",
		"ip6InDiscards", "ip6InTruncatedPkts", "ip6InReasmRqd", "ip6InMcastOctets", "ip6InMcastPkts", "ip6OutOctets", "ip6OutPkts",
		"ip6OutSegRqd", "ip6OutMcastOctets", "ip6OutMcastPkts", "ip6OutNoRoutes", "rxVlanErrors", "cnpHandled", "cnpIgnored", "cnpSent")
	irdmaPort = join(irdmaIP, wide("tcpInSegs", "tcpOutSegs", "tcpRetransSegs", "tcpInOptErrors", "tcpInProtoErrors", "iwInRdmaReads",
		"iwInRdmaSends", "iwInRdmaWrites", "iwOutRdmaReads", "iwOutRdmaSends", "iwOutRdmaWrites", "iwRdmaBnd", "iwRdmaInv", "RxUDP",
		"TxUDP", "RxECNMrkd"))
	irdmaGen3Port = join(irdmaIP, wide("RetransSegs", "InOptErrors", "InProtoErrors", "InRdmaReads", "InRdmaSends", "InRdmaWrites",
		"OutRdmaReads", "OutRdmaSends", "OutRdmaWrites", "RdmaBnd", "RdmaInv", "RxUDP", "TxUDP", "RxECNMrkd", "RNR sent", "RNR received",
		"ord limit count", "ird limit count", "Rx atomics", "Tx atomics", "Nak Sequence Error", "Nak Sequence Error Implied", "RTO",
		"Rcvd Out of order packets", "CRC errors"))
)

// efa (drivers/infiniband/hw/efa/efa_verbs.c).
var (
	efaDevice = wide("submitted_cmds", "completed_cmds", "cmds_err", "no_completion_cmds", "keep_alive_rcvd", "alloc_pd_err",
		"create_qp_err", "create_cq_err", "reg_mr_err", "alloc_ucontext_err", "create_ah_err", "mmap_err")
	efaPort = wide("tx_bytes", "tx_pkts", "rx_bytes", "rx_pkts", "rx_drops", "send_bytes", "send_wrs", "recv_bytes", "recv_wrs",
		"rdma_read_wrs", "rdma_read_bytes", "rdma_read_wr_err", "rdma_read_resp_bytes", "rdma_write_wrs", "rdma_write_bytes",
		"rdma_write_wr_err", "rdma_write_recv_bytes", "retrans_bytes", "retrans_pkts", "retrans_timeout_events",
		"unresponsive_remote_events", "impaired_remote_conn_events")
)

// hfi1 (drivers/infiniband/hw/hfi1/chip.c): names of 32-bit counters end in ",32". The named ones are from prometheus/node_exporter#2023
// and the driver; the numbered ones keep the driver's patterns, so that count and shape are right while not every name is.
var (
	hfi1Device = join(
		wide("RcvOverflow", "RxTidFull", "RxTidInvalid", "RxTidFltGen", "RxCtxtEgr", "RxCtxtEgrS", "CcePciCrSt", "CcePciTrSt", "CcePioWrSt",
			"RcvUrgent", "SDmaEngErr", "TxCtxtEgrErr"),
		wide("CceMiscInt,32", "CceErrInt,32", "CceSdmaInt,32", "RcvAvailInt,32", "RcvUrgentInt,32", "SendCreditInt,32", "DcRecvErr,32"),
		series("Pio Reserved %d", 0, 64), series("SDMAInt%d,32", 0, 16), series("SDMAIdleInt%d,32", 0, 16), series("SDMAProgress%d,32", 0, 16),
		series("Cce Reserved %d", 0, 48), series("Rcv Reserved %d", 0, 64), series("Tx Reserved %d", 0, 64), series("Misc Reserved %d", 0, 16))
	hfi1Port = join(
		wide("TxPkt", "RxPkt", "TxWords", "RxWords", "TxFlits", "RxFlits", "TxWait", "RxFECN", "RxBECN", "TxUnsupVL", "TxHdrErr", "RxDropPkt",
			"RcTimeOut", "RcResend", "RcQAcks", "RcSeqNak", "RcDupRdReq", "RcRnrNak", "RcDelayComp", "RcLoopPkts", "PktDrop", "DmaWait",
			"UnalignedCnt"),
		wide("SwLinkUp,32", "SwLinkDn,32", "LinkUnknown,32", "SwUnkFrame,32", "XmitWaitVL,32", "LinkDnErr,32", "TxFlitVL0", "TxFlitVL1"),
		series("RcvHdrOvr%d", 0, 160))
)

// mana (drivers/infiniband/hw/mana/counters.c); current_rate is a gauge.
var (
	manaPort = join(wide("requester_timeout", "requester_oos_nak", "requester_rnr_nak", "responder_rnr_nak", "responder_oos",
		"responder_dup_request", "requester_implicit_nak", "requester_readresp_psn_mismatch", "nak_inv_req", "nak_access_error",
		"nak_opp_error", "nak_inv_read", "responder_local_len_error", "requestor_local_prot_error", "responder_rem_access_error",
		"responder_local_qp_error", "responder_malformed_wqe", "general_hw_error", "requester_rnr_nak_retries_exceeded",
		"requester_retries_exceeded", "total_fatal_error", "received_cnps", "num_qps_congested", "rate_inc_events", "num_qps_recovered",
		"dup_rx_requests", "tx_bytes", "rx_bytes", "rx_send_requests", "rx_write_requests", "rx_read_requests", "tx_packets",
		"rx_packets"), gauges("current_rate"))
	manaDevice = wide("sent_cnps", "received_ecns", "received_cnp_count", "qp_congested_events", "qp_recovered_events", "rate_inc_events")
)

// erdma (drivers/infiniband/hw/erdma/erdma_verbs.c) and rxe (drivers/infiniband/sw/rxe/rxe_hw_counters.c).
var (
	erdmaPort = wide("tx_reqs_cnt", "tx_packets_cnt", "tx_bytes_cnt", "tx_disable_drop_cnt", "tx_bps_limit_drop_cnt",
		"tx_pps_limit_drop_cnt", "rx_packets_cnt", "rx_bytes_cnt", "rx_disable_drop_cnt", "rx_bps_limit_drop_cnt", "rx_pps_limit_drop_cnt")
	rxePort = wide("sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err", "rcvd_seq_err",
		"ack_deferred", "retry_exceeded_err", "retry_rnr_exceeded_err", "completer_retry_err", "send_err", "link_downed", "rdma_sends",
		"rdma_recvs")
)

func join(sets ...[]counter) []counter {
	var all []counter
	for _, set := range sets {
		all = append(all, set...)
	}
	return all
}

func sized(bits int, names []string) []counter {
	set := make([]counter, 0, len(names))
	for _, name := range names {
		set = append(set, counter{name, bits})
	}
	return set
}

func wide(names ...string) []counter   { return sized(64, names) }
func narrow(names ...string) []counter { return sized(32, names) }
func gauges(names ...string) []counter { return sized(16, names) }

func series(format string, from, to int) []counter {
	var set []counter
	for i := from; i < to; i++ {
		set = append(set, counter{fmt.Sprintf(format, i), 64})
	}
	return set
}

// value returns the content of the index-th counter of a port (0: of the device). Values of one port differ, those of different
// ports and devices too, and none is at its width's maximum, where PMA counters stick: a swapped or shifted value is always seen.
func (c counter) value(ordinal, port, index int) uint64 {
	o, p, i := uint64(ordinal), uint64(port), uint64(index)
	switch c.bits {
	case 4:
		return 1 + (o*3+p*2+i)%14
	case 8:
		return 16 + (o*37+p*5+i*11)%200
	case 16:
		return 1000 + (o*977+p*389+i*131)%60_000
	case 32:
		return 1_000_003 + (o*104_729_009+p*15_485_867+i*1_299_709)%4_000_000_000
	}
	return 70_000_000_001 + o*104_395_303_009 + p*15_485_863_057 + i*982_451_653
}
