package nccllog

import (
	"fmt"
	"strings"
)

// FailureKind is a kind of error that NCCL reports.
type FailureKind string

// Kinds of failures.
const (
	FailureCompletion   FailureKind = "completion"   // a work request failed
	FailureRegistration FailureKind = "registration" // memory could not be registered
	FailureUserBuffer   FailureKind = "user_buffer"  // a buffer of the job's own stays unregistered: slower, nothing breaks
	FailureVerb         FailureKind = "verb"         // another call of libibverbs failed
	FailureTimeout      FailureKind = "timeout"
)

// Failure is an error with how often it was reported.
type Failure struct {
	Kind FailureKind `json:"kind"`
	Host string      `json:"host"`
	// Subject is the NIC where the line names one, else the call.
	Subject string `json:"subject"`
	// Code is the completion status with its name, or the errno's name.
	Code    string `json:"code"`
	Vendor  string `json:"vendor_error"` // decimal, as NCCL prints it
	Count   uint64 `json:"count"`
	Meaning string `json:"meaning"`
	Hint    string `json:"hint"`
	// consequence: another failure came first.
	consequence bool
}

type errorKey struct {
	kind                        FailureKind
	host, subject, code, vendor string
}

// decoded is what a code means.
type decoded struct{ name, meaning, hint string }

// statusFlush is IBV_WC_WR_FLUSH_ERR.
const statusFlush = 5

// statuses are the completion statuses of libibverbs that occur in practice.
var statuses = map[int]decoded{
	1:  {"LOC_LEN_ERR", "a message did not fit", "compare MTU and message sizes of both ends"},
	4:  {"LOC_PROT_ERR", "the NIC's own access to GPU memory failed", "look for ACS on the bridges between GPU and NIC and for IOMMU faults (gdr_exporter topo, dmesg); nvidia-peermem must match the driver"},
	5:  {"WR_FLUSH_ERR", "a consequence of an earlier error on this connection", "look for the first error, often on the other node"},
	8:  {"LOC_ACCESS_ERR", "the memory was registered without the access that was asked for", "update NCCL or its plugin"},
	9:  {"REM_INV_REQ_ERR", "the other side did not accept the request", "look at the other side's log"},
	10: {"REM_ACCESS_ERR", "the other side's memory was not, or no longer, registered", "look for buffers freed early; PyTorch's expandable segments with NCCL older than they need"},
	11: {"REM_OP_ERR", "the other side's NIC could not write GPU memory", "look on the other node for ACS, IOMMU faults and Xid errors"},
	12: {"RETRY_EXC_ERR", "the other side did not answer", "look for ports that went down on either node, a wrong GID (NCCL_IB_GID_INDEX), missing routes between rails, or a rank that died"},
	13: {"RNR_RETRY_EXC_ERR", "the other side had posted no receive", "look at the other side's log"},
}

// errnos are the texts of glibc in error lines.
var errnos = []struct {
	text string
	decoded
}{
	{"Bad address", decoded{"EFAULT", "the kernel does not know this memory: no nvidia-peermem, or one that does not match the driver", "load nvidia-peermem (modprobe nvidia-peermem), or use dma-buf"}},
	{"Cannot allocate memory", decoded{"ENOMEM", "the limit of locked memory, BAR1 or the NIC's tables are exhausted", "set ulimit -l unlimited (LimitMEMLOCK=infinity for services and container runtimes)"}},
	{"Invalid argument", decoded{"EINVAL", "flags, offset or mapping were refused", "see dmesg at that time; IOMMU and driver versions"}},
	{"Protocol not supported", decoded{"EPROTONOSUPPORT", "the kernel lacks dma-buf registration", "use nvidia-peermem or Linux 5.12 or later"}},
	{"Operation not supported", decoded{"EOPNOTSUPP", "the NIC's driver lacks it", "use nvidia-peermem, or update rdma-core and the driver"}},
	{"Unknown error 524", decoded{"ENOTSUPP", "the NVIDIA driver refuses this topology", "see dmesg; nvidia-smi topo -m"}},
	{"Bad file descriptor", decoded{"EBADF", "the dma-buf was gone", "update NCCL"}},
	{"Operation not permitted", decoded{"EPERM", "the container may not", "give it /dev/infiniband and IPC_LOCK"}},
	{"Permission denied", decoded{"EACCES", "the container may not", "give it /dev/infiniband and IPC_LOCK"}},
	{"No such device", decoded{"ENODEV", "the GID cannot be used here", "check NCCL_IB_GID_INDEX and the interface's addresses"}},
	{"Connection timed out", decoded{"ETIMEDOUT", "the other side's address was not found", "check that each rail reaches the other nodes' same rail (ARP, routes)"}},
	{"No such file or directory", decoded{"ENOENT", "a device file is missing", "give the container /dev/infiniband"}},
}

// failure reads a line about an error, and says whether it was one.
func (p *parser) failure(text, host string) bool {
	switch {
	case strings.Contains(text, "Got completion "):
		return p.completion(text, host)
	case strings.Contains(text, "Call to ibv_"):
		return p.call(text, host)
	case strings.Contains(text, "failed to NET register userbuff"):
		p.fail(&Failure{
			Kind: FailureUserBuffer, Host: host, Meaning: "a buffer of the job could not be registered with the NIC: it is copied first, and nothing else tells",
			Hint: "buffers of several segments (expandable segments) need dma-buf; see the registration errors",
		})
		return true
	case strings.Contains(text, "imed out"), strings.Contains(text, "timing out"): // the latter is PyTorch's watchdog
		p.fail(&Failure{Kind: FailureTimeout, Host: host, Meaning: "something took longer than its limit", Hint: "look for the first error on any rank"})
		return true
	default:
		return false
	}
}

func (p *parser) fail(f *Failure) {
	row := p.errors.at(errorKey{f.Kind, f.Host, f.Subject, f.Code, f.Vendor})
	count := row.Count
	*row = *f
	row.Count = count + 1
}

// completion reads one of
//
//	NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129
//	NET/IB : Got completion from peer 10.0.0.2<51161> with error 12, opcode 0, len 0, vendor err 129 (Recv)
//	NET/IB: Got completion from peer 10.0.0.2<51161> with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid ... hca mlx5_1
//	NET/IB: Got completion from peer ... with status=IBV_WC_RETRY_EXC_ERR(12) opcode=... vendor_err=129 ... hca mlx5_1
func (p *parser) completion(text, host string) bool {
	_, rest, _ := strings.Cut(text, "Got completion ")
	status, found := 0, false
	for _, mark := range []string{"status=", "status = ", "with error ", "ERR("} {
		if _, value, is := strings.Cut(rest, mark); is {
			if status, found = number(value); found {
				break
			}
		}
	}
	if !found {
		return false
	}
	vendor := ""
	for _, mark := range []string{"vendor err ", "vendor_err="} {
		if _, value, is := strings.Cut(rest, mark); is {
			vendor = clean(value[:min(digits(value), 10)])
		}
	}
	device, _ := after(rest, " hca ")
	what := statuses[status]
	if what.name == "" {
		what = decoded{"status", "see ibv_wc_status(3)", ""}
	}
	p.fail(&Failure{
		Kind: FailureCompletion, Host: host, Subject: clean(device), Code: fmt.Sprintf("%d %s", status, what.name), Vendor: vendor,
		Meaning: what.meaning, Hint: what.hint, consequence: status == statusFlush,
	})
	return true
}

// call reads "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
// of which older versions have the first four words.
func (p *parser) call(text, host string) bool {
	name, _ := after(text, "Call to ")
	_, rest, _ := strings.Cut(text, name)
	if !strings.Contains(rest, "failed") {
		return false
	}
	f := Failure{Kind: FailureVerb, Host: host, Subject: clean(name), Meaning: "see the log"}
	if strings.HasPrefix(name, "ibv_reg_") {
		f.Kind, f.Meaning = FailureRegistration, "memory could not be registered with the NIC"
		f.Hint = "the log has no errno: dmesg at that time, ulimit -l, lsmod | grep peermem"
	}
	for i := range errnos {
		if strings.Contains(rest, errnos[i].text) {
			f.Code, f.Meaning, f.Hint = errnos[i].name, errnos[i].meaning, errnos[i].hint
			break
		}
	}
	p.fail(&f)
	return true
}

// kindOf is a warning without what differs from one occurrence to the next.
func kindOf(text string) string {
	var b strings.Builder
	inNumber := false
	for i := 0; i < len(text) && b.Len() < mostText; i++ {
		c := text[i]
		number := c >= '0' && c <= '9' || inNumber && (c >= 'a' && c <= 'f' || c == 'x')
		if !number {
			b.WriteByte(c)
		} else if !inNumber {
			b.WriteByte('#')
		}
		inNumber = number
	}
	return b.String()
}
