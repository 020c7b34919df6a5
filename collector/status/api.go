package status

import (
	"time"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
)

// SchemaVersion is the version of Document. Fields may be added under the same
// version; it goes up when one changes its meaning or goes away.
const SchemaVersion = 1

// Level says how a node is, in a word.
type Level string

// Levels.
const (
	LevelOK      Level = "ok"      // every expected pair is direct, and no finding is worse than info
	LevelWarning Level = "warning" // every expected pair is direct, but there is a warning
	LevelProblem Level = "problem" // an expected pair is staged or degraded, or there is a critical finding
	LevelUnknown Level = "unknown" // of an expected pair nobody can say whether it is direct, or nothing is judged
	LevelNone    Level = "none"    // no pair is expected to use GPUDirect RDMA, and nothing is wrong
)

// Levels are all levels.
var Levels = []Level{LevelOK, LevelWarning, LevelProblem, LevelUnknown, LevelNone}

// Document is what GET /api/v1/status answers: all that is known of a node and what
// it means. The status page shows the same. What is not known or does not apply is
// null, never 0; a list that is empty is [].
//
// Texts that come from the host are printable, on one line and of bounded length.
type Document struct {
	SchemaVersion   int       `json:"schema_version"`   // version of this form, 1
	ExporterVersion string    `json:"exporter_version"` // version of the exporter
	Taken           time.Time `json:"taken"`            // when the host was read
	// Replay says what is replayed in the place of this host; null: it is this host.
	Replay  *string    `json:"replay"`
	Summary DocSummary `json:"summary"`
	// Context is where the exporter runs and what it cannot see from there.
	Context DocContext `json:"context"`
	// Findings are what is wrong or good to know, the worst first; at most 500.
	Findings        []DocFinding `json:"findings"`
	FindingsOmitted int          `json:"findings_omitted"` // findings beyond
	// Pairs are all pairs of GPU and RDMA device, in the order of both.
	Pairs   []DocPair   `json:"pairs"`
	GPUs    []DocGPU    `json:"gpus"`
	Devices []DocDevice `json:"devices"` // RDMA devices
	// Prober is what measures; null where nothing does.
	Prober *DocProber `json:"prober"`
	Driver *DocDriver `json:"driver"` // null: not read, or reading it hangs
	Host   *DocHost   `json:"host"`   // null: not read, or reading it hangs
	// Processes are those that use a GPU and an RDMA device; null: not read, as by
	// default.
	Processes    *DocProcesses   `json:"processes"`
	KernelLog    *DocKernelLog   `json:"kernel_log"` // null: not read
	Expectations DocExpectations `json:"expectations"`
	// Rules are all rules by what became of them.
	Rules []DocRule `json:"rules"`
	// Parts are the parts of what was read, with their age.
	Parts []DocPart `json:"parts"`
	// ReadErrors are what could not be read since the exporter started, at most 200;
	// the metrics have them all.
	ReadErrors        []DocReadError `json:"read_errors"`
	ReadErrorsOmitted int            `json:"read_errors_omitted"` // kinds of read error beyond
}

// DocSummary answers whether GPUDirect RDMA is in use on the node.
type DocSummary struct {
	Level    Level  `json:"level"`
	Sentence string `json:"sentence"` // the same in words
	// Live says whether jobs use GPUDirect RDMA now; null: it is not known of any device.
	Live *string `json:"live"`
	// Judged: there are verdicts. Else the collector path is switched off.
	Judged bool `json:"judged"`
	// Expected counts the pairs that are expected to use GPUDirect RDMA; the next ones
	// count these by state.
	Expected    int `json:"expected_pairs"`
	Direct      int `json:"direct"`
	Degraded    int `json:"degraded"`
	Staged      int `json:"staged"`
	Unsupported int `json:"unsupported"`
	Unknown     int `json:"unknown"`
	// Critical, Warnings and Infos count the findings by severity.
	Critical int `json:"findings_critical"`
	Warnings int `json:"findings_warning"`
	Infos    int `json:"findings_info"`
}

// DocContext is where the exporter runs.
type DocContext struct {
	Sentence string `json:"sentence"` // the same in words
	// Root: its effective user id is 0.
	Root        *bool `json:"root"`
	Container   *bool `json:"container"`    // its root file system is not the host's
	HostPID     *bool `json:"host_pid"`     // its PID namespace is the host's
	HostNetwork *bool `json:"host_network"` // its network namespace is the host's
	// Capabilities are those of its effective ones that matter here.
	Capabilities []string `json:"capabilities"`
	Memlock      *string  `json:"memlock"` // its own limit of locked memory, in words
	// Missing is what cannot be seen, with what it takes.
	Missing []DocMissing `json:"missing"`
}

// DocMissing is evidence that could not be had.
type DocMissing struct {
	What  string   `json:"what"`  // what could not be read, and the privilege for it
	Rules []string `json:"rules"` // rules that could not be judged for want of it
}

// DocFinding is something that is wrong, or good to know.
type DocFinding struct {
	Rule     string             `json:"rule"` // see Rules
	Severity diagnosis.Severity `json:"severity"`
	Title    string             `json:"title"`   // what is wrong, in a few words
	Subject  DocSubject         `json:"subject"` // what it is about
	Seen     string             `json:"seen"`    // what was seen, with numbers
	Hint     string             `json:"hint"`    // what to do
	Since    time.Time          `json:"since"`   // as far as this exporter knows
	Runbook  string             `json:"runbook"` // path of its runbook on this server
}

// DocSubject is what a finding is about. Null is what does not apply.
type DocSubject struct {
	GPU     *string `json:"gpu"`    // PCI address
	Device  *string `json:"device"` // RDMA device
	Port    *int    `json:"port"`
	Address *string `json:"address"` // another PCI function
	Other   *string `json:"other"`   // such as "pid 4711", "containerd"
}

// DocPair is a pair of GPU and RDMA device.
type DocPair struct {
	GPU    string `json:"gpu"`    // PCI address
	Device string `json:"device"` // RDMA device
	Port   *int   `json:"port"`   // that is judged and measured; null for a pair that is neither
	// Distance is PIX, PXB, P2C, PHB, NODE or SYS, as nvidia-smi topo -m has it, or
	// unknown.
	Distance string `json:"distance"`
	// Nearest: no other RDMA device is nearer to the GPU.
	Nearest bool `json:"nearest"`
	// Expected: libraries use GPUDirect RDMA on this pair, so that it matters.
	Expected bool `json:"expected"`
	// State is what is said of the pair; null for one that is neither expected nor
	// measured.
	State    *diagnosis.State    `json:"state"`
	Evidence *diagnosis.Evidence `json:"evidence"` // what State rests on
	Reasons  []string            `json:"reasons"`  // why, the decisive one first
	// Cause is the rule that explains State best.
	Cause *string    `json:"cause"`
	Since *time.Time `json:"since"` // when it got this state, as far as this exporter knows
	// Link is the PCIe path; null where the tree does not show one.
	Link *DocLink `json:"link"`
	// Measured is what the prober knows of the pair; null for a pair that it does not
	// measure.
	Measured *DocMeasured `json:"measured"`
	// Libraries say whether NCCL and UCX would use GPUDirect RDMA on the pair, by each
	// generation of their rules; of expected pairs.
	Libraries []DocChoice `json:"libraries"`
}

// DocLink is the PCIe path between a GPU and an RDMA device.
type DocLink struct {
	Common *string `json:"common_bridge"` // address of the nearest common bridge
	// BytesPerSecond is what the narrowest link carries as it is now, Possible what it
	// could at full speed and width.
	BytesPerSecond *float64 `json:"bytes_per_second"`
	Possible       *float64 `json:"possible_bytes_per_second"`
	// Redirected: ACS sends the traffic up to the root complex.
	Redirected *bool  `json:"acs_redirected"`
	IOMMU      string `json:"iommu"` // none, passthrough, translated, unknown
}

// DocMeasured is what measurements say of a pair.
type DocMeasured struct {
	// Full is the full run that stands, Registration the newest one that tried to
	// register GPU memory; null: none does.
	Full         *DocRun `json:"full"`
	Registration *DocRun `json:"registration"`
	// Unconfirmed is a result that would worsen what is known and waits to be repeated.
	Unconfirmed *DocRun    `json:"unconfirmed"`
	LastAttempt *time.Time `json:"last_attempt"` // of a run of any depth
	Due         *time.Time `json:"due"`          // when the next full run is due
	Skip        *string    `json:"skip"`         // why it is due and not measured
	Withdrawn   *string    `json:"withdrawn"`    // why earlier results say nothing any more
	HungSince   *time.Time `json:"hung_since"`   // since when a run hangs
	HungStage   *string    `json:"hung_stage"`   // in what it does
	Running     bool       `json:"running"`      // it is being measured now
	// Baseline is the rate of path gpu that the pair has when all is well.
	Baseline *float64 `json:"baseline_bytes_per_second"`
	// Mismatches counts words of 8 bytes that arrived wrong since the exporter started.
	Mismatches uint64 `json:"mismatches"`
}

// DocRun is a completed measurement.
type DocRun struct {
	Depth      string    `json:"depth"` // register, full
	Time       time.Time `json:"time"`  // when it began
	AgeSeconds float64   `json:"age_seconds"`
	// Outcome is fine, slow, failed, corrupt, unsupported or not judged.
	Outcome string   `json:"outcome"`
	Reasons []string `json:"reasons"` // why it is not fine
	Idle    bool     `json:"idle"`    // the pair was idle; else it was measured under load
	// Method is how GPU memory was registered for the rates: peermem, dmabuf.
	Method        *string           `json:"method"`
	NCCLMethod    *string           `json:"nccl_method"` // that current NCCL would use
	Registrations []DocRegistration `json:"registrations"`
	Paths         []DocPathRate     `json:"paths"`
}

// DocRegistration is an attempt to register GPU memory.
type DocRegistration struct {
	Method string  `json:"method"` // peermem, dmabuf
	Works  bool    `json:"works"`
	Error  *string `json:"error"`
}

// DocPathRate is what was measured of a way of the data.
type DocPathRate struct {
	// Path is host, gpu_read, gpu_write, gpu or staged.
	Path           string   `json:"path"`
	BytesPerSecond *float64 `json:"bytes_per_second"`
	Ratio          *float64 `json:"ratio"` // to path host
	LatencyMedian  *float64 `json:"latency_median_seconds"`
	LatencyP99     *float64 `json:"latency_p99_seconds"`
	CPUSecondsGB   *float64 `json:"cpu_seconds_per_gb"` // per 10^9 bytes
	Mismatches     *int     `json:"mismatches"`         // words of 8 bytes that arrived wrong
	Error          *string  `json:"error"`              // why it ended early
}

// DocChoice is whether a library would use GPUDirect RDMA on a pair.
type DocChoice struct {
	Library  string `json:"library"`  // nccl, ucx
	Rule     string `json:"rule"`     // generation of the library's rules: its first version
	Versions string `json:"versions"` // of which the rules hold
	// Uses is null where it cannot be told.
	Uses   *bool  `json:"uses"`
	Reason string `json:"reason"` // why not, by which file, or what is not known
}

// DocGPU is a GPU.
type DocGPU struct {
	Address       string            `json:"address"` // PCI address as sysfs writes it
	Presence      snapshot.Presence `json:"presence"`
	Index         *int              `json:"index"` // NVML's
	UUID          *string           `json:"uuid"`
	Name          *string           `json:"name"`
	ResetRequired bool              `json:"reset_required"`
	NUMANode      *int              `json:"numa_node"`
	MIG           *bool             `json:"mig"`
	Processes     *int              `json:"processes"` // with a compute context
	NVLinks       *int              `json:"nvlinks"`
	NVLinksActive *int              `json:"nvlinks_active"`
	// NVLinksDown are the numbers of links that are known not to be active.
	NVLinksDown []int `json:"nvlinks_down"`
	// FabricState is of its registration: 0 not supported, 1 not started, 2 in
	// progress, 3 completed.
	FabricState *int `json:"fabric_state"`
	// Its PCIe link: generation and lanes, now and at most.
	PCIeGeneration    *int `json:"pcie_generation"`
	PCIeGenerationMax *int `json:"pcie_generation_max"`
	PCIeWidth         *int `json:"pcie_width"`
	PCIeWidthMax      *int `json:"pcie_width_max"`
}

// DocDevice is an RDMA device.
type DocDevice struct {
	Name string `json:"name"`
	// Answers: it could be read. Else StuckSeconds is how long it has been hanging.
	Answers      bool     `json:"answers"`
	StuckSeconds *float64 `json:"stuck_seconds"`
	Role         *string  `json:"role"` // compute, storage, management, unused
	Driver       *string  `json:"driver"`
	Address      *string  `json:"address"` // PCI address
	Firmware     *string  `json:"firmware"`
	Board        *string  `json:"board"`
	Parent       *string  `json:"plane_of"` // the device that has the traffic of this plane
	Hidden       bool     `json:"hidden"`   // its counters belong to another network namespace
	// Live says whether GPUDirect RDMA is used through it now; null: not asked, as of
	// devices whose role is not compute.
	Live        *diagnosis.Live `json:"live"`
	LiveReasons []string        `json:"live_reasons"` // what was seen, or what is missing
	Ports       []DocPort       `json:"ports"`
}

// DocPort is a port of an RDMA device.
type DocPort struct {
	Port          string  `json:"port"`
	State         *string `json:"state"` // NOP, DOWN, INIT, ARMED, ACTIVE, ACTIVE_DEFER
	PhysicalState *string `json:"physical_state"`
	// BytesPerSecond is its rate; null unless it is ACTIVE.
	BytesPerSecond *float64 `json:"bytes_per_second"`
	LinkLayer      *string  `json:"link_layer"` // InfiniBand, Ethernet
	Netdev         *string  `json:"netdev"`
	// Expected: it should be ACTIVE, by profile or because it was; null where nothing
	// is expected of ports.
	Expected *bool `json:"expected"`
	// Restricted are the counter directories of which the driver refuses every file.
	Restricted []string `json:"restricted"`
}

// DocProber is what measures the pairs.
type DocProber struct {
	IntervalSeconds float64    `json:"interval_seconds"` // between full runs; 0: none are scheduled
	Isolation       string     `json:"isolation"`        // in_process, process
	IsolationReason *string    `json:"isolation_reason"` // why that is not what was asked for
	QuiescedUntil   *time.Time `json:"quiesced_until"`
}

// DocDriver is the state of the NVIDIA driver, of peer memory and of dma-buf.
type DocDriver struct {
	Kernel         *string        `json:"kernel"` // release
	Loaded         *bool          `json:"loaded"`
	Version        *string        `json:"version"`
	Flavor         *string        `json:"flavor"` // open, proprietary
	LibraryVersion *string        `json:"library_version"`
	LibraryPath    *string        `json:"library_path"`
	Mismatch       *bool          `json:"library_mismatch"` // of the driver and its library
	Peermem        []DocModule    `json:"peermem"`          // peer memory modules
	Clients        []DocClient    `json:"memory_peers"`     // peer memory clients that the RDMA stack shows
	RDMAStack      *string        `json:"rdma_stack"`       // ofed, inbox, unknown
	Lockdown       *string        `json:"lockdown"`         // of the kernel
	TopologyAny    *bool          `json:"topology_any"`     // the driver lets NICs attach to dma-bufs whatever the PCIe topology
	DMABufs        *int           `json:"dma_bufs"`         // buffers of GPU memory exported now
	DMABufBytes    *uint64        `json:"dma_buf_bytes"`    // their sum
	DMABufsRead    *time.Time     `json:"dma_bufs_read"`
	DMABufsError   *string        `json:"dma_bufs_error"` // why they are not known
	NVML           *string        `json:"nvml"`           // state of NVML: up, quiesced, no_library, ...
	NVMLError      *string        `json:"nvml_error"`
	NVMLStuck      *DocStuck      `json:"nvml_stuck"` // a call that does not return
	Attributes     []DocAttribute `json:"attributes"` // what CUDA says of GPUs, from measurements
}

// DocStuck is a call that does not return.
type DocStuck struct {
	Call    string  `json:"call"`
	GPU     *string `json:"gpu"`
	Seconds float64 `json:"seconds"`
}

// DocAttribute is what CUDA says that a GPU can do.
type DocAttribute struct {
	GPU           string `json:"gpu"`
	GPUDirectRDMA bool   `json:"gpu_direct_rdma"` // attribute 116
	DMABuf        bool   `json:"dma_buf"`         // attribute 124
}

// DocModule is a kernel module.
type DocModule struct {
	Name       string  `json:"name"`
	Loaded     *bool   `json:"loaded"`
	Version    *string `json:"version"`
	OnDisk     *bool   `json:"on_disk"` // modprobe would find it
	Hooked     *bool   `json:"hooked"`  // it uses the RDMA stack that is running
	References *uint64 `json:"references"`
}

// DocClient is a peer memory client.
type DocClient struct {
	Name    string  `json:"name"`
	Version *string `json:"version"`
	Regions *uint64 `json:"regions"` // memory regions registered now
}

// DocHost is how the host is wired for RDMA.
type DocHost struct {
	Vendor  *string `json:"vendor"`  // of the machine, by its firmware
	Product *string `json:"product"` // of the machine, by its firmware
	// SharedRDMA: RDMA devices are in all network namespaces.
	SharedRDMA *bool          `json:"shared_rdma"`
	IOMMU      []string       `json:"iommu"`      // IOMMU units; [] none, null not known
	Nodes      []DocNode      `json:"nodes"`      // character devices of RDMA
	Daemons    []DocDaemon    `json:"daemons"`    // that start jobs; null not known
	Interfaces []DocInterface `json:"interfaces"` // network interfaces of RDMA ports; null not known
}

// DocNode is a character device below /dev/infiniband.
type DocNode struct {
	Name    string  `json:"name"`
	Device  *string `json:"device"` // RDMA device that it is of
	Present bool    `json:"present"`
	Usable  *bool   `json:"usable"` // the exporter may open it
}

// DocDaemon is a process that starts jobs.
type DocDaemon struct {
	Name    string  `json:"name"`
	PID     int     `json:"pid"`
	Memlock *string `json:"memlock"` // limit of locked memory that jobs inherit, in words
}

// DocInterface is a network interface of an RDMA port.
type DocInterface struct {
	Name string `json:"name"`
	Up   *bool  `json:"up"`
	IPv4 int    `json:"ipv4"` // addresses that are not link-local
	IPv6 int    `json:"ipv6"` // addresses that are not link-local
}

// DocProcesses are the processes that use a GPU and an RDMA device.
type DocProcesses struct {
	Error *string `json:"error"` // why they cannot be listed
	// Visible: the exporter sees the host's processes.
	Visible *bool `json:"visible"`
	// Joined: it is known who uses both. Else an empty list does not say that nobody does.
	Joined  bool     `json:"joined"`
	Jobs    []DocJob `json:"jobs"`
	Omitted int      `json:"omitted"` // jobs beyond
}

// DocJob is such a process.
type DocJob struct {
	PID       int           `json:"pid"`
	GPUs      []string      `json:"gpus"`
	Devices   []string      `json:"devices"`
	NCCL      *string       `json:"nccl"`      // version
	UCX       *bool         `json:"ucx"`       // it has UCX mapped
	Memlock   *string       `json:"memlock"`   // its limit of locked memory, in words
	Variables []DocVariable `json:"variables"` // of NCCL, UCX and NVSHMEM; null not known
	Notes     []DocJobNote  `json:"notes"`     // what they do to GPUDirect RDMA
}

// DocVariable is a variable of a job's environment.
type DocVariable struct {
	Name  string  `json:"name"`
	Value *string `json:"value"` // null: only its name is kept
}

// DocJobNote is what a variable does.
type DocJobNote struct {
	Variable string           `json:"variable"`
	Effect   diagnosis.Effect `json:"effect"`
	Text     string           `json:"text"`
}

// DocKernelLog is what the kernel's log says of interconnects.
type DocKernelLog struct {
	Error  *string    `json:"error"`  // why it cannot be read
	Since  *time.Time `json:"since"`  // since when lines are counted
	Oldest *time.Time `json:"oldest"` // the oldest line that the log still had
	Lost   *uint64    `json:"lost"`   // lines that were overwritten before they were read
	// Counts are of the patterns that were seen.
	Counts []DocPattern `json:"counts"`
	Recent []DocEvent   `json:"recent"` // the newest events, the newest first; at most 64
}

// DocPattern is a kind of line.
type DocPattern struct {
	Pattern string     `json:"pattern"`
	Means   string     `json:"means"` // what such a line says
	Count   uint64     `json:"count"` // since lines are counted
	Last    *time.Time `json:"last"`  // the newest since boot
}

// DocEvent is a line of the kernel's log.
type DocEvent struct {
	Time    time.Time `json:"time"`
	Pattern string    `json:"pattern"`
	Address *string   `json:"address"` // PCI function that it names
	Code    *int      `json:"code"`    // of an Xid or SXid
	Text    string    `json:"text"`
}

// DocExpectations are what the node should have.
type DocExpectations struct {
	Profile *string        `json:"profile"` // its name
	Source  profile.Source `json:"source"`
	// Fields are what is expected, each with where that comes from.
	Fields []DocExpected `json:"fields"`
}

// DocExpected is something that is expected.
type DocExpected struct {
	Field  profile.Field  `json:"field"`
	Source profile.Source `json:"source"`
	Value  string         `json:"value"` // in words
}

// DocRule is a rule by what became of it.
type DocRule struct {
	Rule     string             `json:"rule"`
	Severity diagnosis.Severity `json:"severity"` // of its findings
	Title    string             `json:"title"`
	Result   diagnosis.Result   `json:"result"`
	Missing  []string           `json:"missing"` // why it was not judged
	Runbook  string             `json:"runbook"` // path on this server
}

// DocPart is a part of what was read.
type DocPart struct {
	Collector       string    `json:"collector"`
	Taken           time.Time `json:"taken"`
	AgeSeconds      float64   `json:"age_seconds"` // when the document's host was read
	DurationSeconds float64   `json:"duration_seconds"`
	Error           *string   `json:"error"`
	Stuck           []string  `json:"stuck"` // devices that do not answer
}

// DocReadError is a kind of read error.
type DocReadError struct {
	Collector string  `json:"collector"`
	Device    *string `json:"device"`
	Port      *string `json:"port"`
	Source    string  `json:"source"` // file, netlink request or NVML call
	Errno     string  `json:"errno"`
	Count     uint64  `json:"count"` // since the exporter started
}
