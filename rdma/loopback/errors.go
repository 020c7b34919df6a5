package loopback

import (
	"fmt"
	"syscall"

	"gdr_exporter/collector/sysread"
)

// Error says which call of libibverbs failed, and how.
type Error struct {
	Call   string           // "ibv_reg_mr", "ibv_modify_qp RTR"; "completion" for one with a status
	Errno  syscall.Errno    // 0 if the call has none
	Status CompletionStatus // of a completion
	Vendor uint32           // its vendor_err: a firmware's sub-code
}

// Error names the call and the reason. perftest prints vendor codes in
// hexadecimal and NCCL in decimal: both are here.
func (e *Error) Error() string {
	if e.Status != 0 {
		return fmt.Sprintf("completion with %v, vendor error 0x%x (%d)", e.Status, e.Vendor, e.Vendor)
	}
	return fmt.Sprintf("%s: %s (%v)", e.Call, e.ErrnoName(), e.Errno)
}

// Unwrap returns the errno, if any.
func (e *Error) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// ErrnoName is the errno's symbolic name, or that of the completion status.
func (e *Error) ErrnoName() string {
	if e.Status != 0 {
		return e.Status.String()
	}
	return sysread.ErrnoName(e.Errno)
}

// CompletionStatus is enum ibv_wc_status.
type CompletionStatus int

// Statuses of a NIC that cannot reach memory: with GPU memory, the PCIe path (ACS,
// IOMMU) or a registration that has gone.
const (
	LocalProtection CompletionStatus = 4  // the memory on the side that posted the write
	RemoteOperation CompletionStatus = 11 // that on the other side: the answer of a NIC that could not write
)

var statusNames = []string{
	"IBV_WC_SUCCESS", "IBV_WC_LOC_LEN_ERR", "IBV_WC_LOC_QP_OP_ERR", "IBV_WC_LOC_EEC_OP_ERR",
	"IBV_WC_LOC_PROT_ERR", "IBV_WC_WR_FLUSH_ERR", "IBV_WC_MW_BIND_ERR", "IBV_WC_BAD_RESP_ERR",
	"IBV_WC_LOC_ACCESS_ERR", "IBV_WC_REM_INV_REQ_ERR", "IBV_WC_REM_ACCESS_ERR", "IBV_WC_REM_OP_ERR",
	"IBV_WC_RETRY_EXC_ERR", "IBV_WC_RNR_RETRY_EXC_ERR", "IBV_WC_LOC_RDD_VIOL_ERR", "IBV_WC_REM_INV_RD_REQ_ERR",
	"IBV_WC_REM_ABORT_ERR", "IBV_WC_INV_EECN_ERR", "IBV_WC_INV_EEC_STATE_ERR", "IBV_WC_FATAL_ERR",
	"IBV_WC_RESP_TIMEOUT_ERR", "IBV_WC_GENERAL_ERR", "IBV_WC_TM_ERR", "IBV_WC_TM_RNDV_INCOMPLETE",
}

// String is the status's name in verbs.h.
func (s CompletionStatus) String() string {
	if s >= 0 && int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("IBV_WC_%d", int(s))
}
