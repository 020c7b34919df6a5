package nccllog

// Verdict is how the job's data goes over the network.
type Verdict string

// Verdicts.
const (
	VerdictDirect  Verdict = "direct"  // all connections use GPUDirect RDMA
	VerdictStaged  Verdict = "staged"  // some or all copy through host memory
	VerdictSocket  Verdict = "socket"  // TCP
	VerdictUnknown Verdict = "unknown" // the log does not say
)

// Severity is how bad something is.
type Severity string

// Severities of a report and of its findings.
const (
	SeverityFine      Severity = "fine"
	SeverityInfo      Severity = "info" // of findings only
	SeverityWarning   Severity = "warning"
	SeverityCritical  Severity = "critical"
	SeverityNotJudged Severity = "not_judged" // of reports only
)

// Report is what a log says. Lists are never null; what the tables had no place
// for is in LeftOut.
type Report struct {
	Verdict  Verdict  `json:"verdict"`
	Severity Severity `json:"severity"`
	// Headline is the answer in a sentence.
	Headline string    `json:"headline"`
	Findings []Finding `json:"findings"` // worst first

	Connections Connections `json:"connections"`
	Rails       []Rail      `json:"rails"` // staged ones first
	Pairs       []Pair      `json:"node_pairs"`
	Devices     []Device    `json:"devices"`
	Refusals    []Refusal   `json:"refusals"`

	NCCLVersions   []Tally     `json:"nccl_versions"`
	CUDAVersions   []Tally     `json:"cuda_versions"`        // that NCCL was built for
	DriverVersions []Tally     `json:"cuda_driver_versions"` // 12.4 for the 12040 of cuDriverGetVersion
	Plugins        []Tally     `json:"plugins"`
	Networks       []Tally     `json:"networks"` // "Using network X", by process
	Summary        Summary     `json:"summary"`
	Settings       []Setting   `json:"settings"`
	Failures       []Failure   `json:"failures"`
	Warnings       []Tally     `json:"warnings"` // WARN lines of other kinds
	Benchmarks     []Benchmark `json:"benchmarks"`

	Input   Input             `json:"input"`
	LeftOut map[string]uint64 `json:"left_out"` // by table: what it had no place for
	// NodeFindings are those of the node that the log was read on.
	NodeFindings []string `json:"node_findings"`
}

// Input is what was read.
type Input struct {
	Lines       uint64 `json:"lines"`
	Bytes       uint64 `json:"bytes"` // unpacked, without line ends
	NCCLLines   uint64 `json:"nccl_lines"`
	BinaryLines uint64 `json:"binary_lines"` // not UTF-8
	LongLines   uint64 `json:"long_lines"`   // pieces of lines longer than 64 KiB
	Hosts       int    `json:"hosts"`
	Processes   int    `json:"processes"`
	// Damage is why reading ended before the end of the file, "" if it did not.
	Damage string `json:"damage,omitempty"`
}

// Connections counts the lines about connections.
type Connections struct {
	Direct uint64 `json:"direct"` // over an RDMA network with GPUDirect RDMA
	Staged uint64 `json:"staged"` // over an RDMA network through host memory
	Socket uint64 `json:"socket"` // TCP
	// Unclear are those whose line is cut off where it would say.
	Unclear uint64  `json:"unclear"`
	PXN     uint64  `json:"pxn"` // of all: through another GPU of the node, over NVLink
	Local   []Tally `json:"local"`
}

// Summary is what NCCL sums up by itself.
type Summary struct {
	Begun     uint64 `json:"communicators_begun"` // ranks at Init START
	Completed uint64 `json:"communicators_completed"`
	// RingsDirect and RingsStaged count "Connected all rings, use ring PXN x GDR y"
	// by y. NCCL says 1 too where nothing leaves the node.
	RingsDirect  uint64 `json:"rings_gdr"`
	RingsStaged  uint64 `json:"rings_no_gdr"`
	RingsPXN     uint64 `json:"rings_pxn"`
	Rings        uint64 `json:"rings_connected"` // with or without that tail
	Trees        uint64 `json:"trees_connected"`
	MostRanks    int    `json:"most_ranks"` // of a communicator
	MostNodes    int    `json:"most_nodes"` // of a communicator; 0 if no line says
	MostChannels int    `json:"most_channels"`
	// NVLS and NoNVLS count "NVLS multicast support is [not] available on dev".
	NVLS   uint64 `json:"nvls_available"`
	NoNVLS uint64 `json:"nvls_not_available"`
	// DMABUF counts the GPUs of processes that have "DMA-BUF is available".
	DMABUF uint64 `json:"dmabuf_gpus"`
}

// Finding is something to know or to do.
type Finding struct {
	Severity Severity `json:"severity"`
	Seen     string   `json:"seen"`
	Hint     string   `json:"hint,omitempty"`
}

// Exit codes of the command nccl-log.
const (
	ExitFine      = 0
	ExitWarning   = 1
	ExitCritical  = 2
	ExitNotJudged = 3
	ExitUsage     = 64
)

// ExitCode is the exit code that the report asks for.
func (r *Report) ExitCode() int {
	switch r.Severity {
	case SeverityFine:
		return ExitFine
	case SeverityWarning:
		return ExitWarning
	case SeverityCritical:
		return ExitCritical
	default:
		return ExitNotJudged
	}
}
