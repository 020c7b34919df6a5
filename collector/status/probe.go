package status

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/rdma/loopback"
)

// ProbeReport is one run of one pair, in the form of the command probe and its
// JSON. What is not known is null.
type ProbeReport struct {
	GPU      string           `json:"gpu"` // PCI address, "" for a run on host memory alone
	Device   string           `json:"device"`
	Port     int              `json:"port"`
	Distance string           `json:"distance"`
	Outcome  loopback.Outcome `json:"outcome"`
	Reasons  []string         `json:"reasons"` // why it is not fine

	Library       string              `json:"library"` // the libibverbs that was loaded
	Started       time.Time           `json:"started"`
	Seconds       float64             `json:"duration_seconds"`
	Method        string              `json:"method"`      // registration that the rates were measured with
	NCCLMethod    string              `json:"nccl_method"` // that current NCCL would try
	Registrations []ProbeRegistration `json:"registrations"`
	NICDMABuf     *bool               `json:"nic_dmabuf"`
	GID           string              `json:"gid"`
	GIDIndex      *int                `json:"gid_index"`
	GIDType       string              `json:"gid_type"`
	MTU           int                 `json:"mtu_bytes"`
	Relaxed       *bool               `json:"relaxed_ordering"`
	Paths         []ProbePath         `json:"paths"`
	Stages        []ProbeStage        `json:"stages"`
	Transferred   uint64              `json:"transferred_bytes"`
}

// ProbeRegistration is an attempt to register GPU memory.
type ProbeRegistration struct {
	Method  string  `json:"method"`
	Errno   string  `json:"errno"` // "" if it worked
	Error   string  `json:"error,omitempty"`
	Seconds float64 `json:"duration_seconds"`
}

// ProbePath is what was measured of a path.
type ProbePath struct {
	Path           string   `json:"path"`
	BytesPerSecond *float64 `json:"bytes_per_second"`
	Ratio          *float64 `json:"ratio_to_host"`
	LatencyMedian  *float64 `json:"latency_median_seconds"`
	LatencyP99     *float64 `json:"latency_p99_seconds"`
	CPU            *float64 `json:"cpu_seconds_per_gigabyte"`
	Mismatches     *int     `json:"mismatches"`
	Verified       uint64   `json:"verified_bytes"`
	Stage          string   `json:"failed_stage,omitempty"`
	Error          string   `json:"error,omitempty"`
}

// ProbeStage is how a stage went.
type ProbeStage struct {
	Stage   string  `json:"stage"`
	Path    string  `json:"path,omitempty"`
	Seconds float64 `json:"duration_seconds"`
	Error   string  `json:"error,omitempty"`
}

// NewProbeReport judges a run by the default limits. distance is that of the pair;
// a run without GPU has none.
func NewProbeReport(gpu string, distance affinity.Distance, r *loopback.Result) ProbeReport {
	report := ProbeReport{
		GPU: gpu, Device: r.Device, Port: r.Port, Library: r.Library, Started: r.Started, Seconds: r.Duration.Seconds(),
		Method: string(r.Method), NCCLMethod: string(r.NCCLMethod), NICDMABuf: pointer(r.NICDMABuf.Known, r.NICDMABuf.Value),
		MTU: r.MTU, Relaxed: pointer(r.RelaxedOrdering.Known, r.RelaxedOrdering.Value), Transferred: r.TransferredBytes,
		Registrations: []ProbeRegistration{}, Paths: []ProbePath{},
	}
	judgement := loopback.Judge(r, distance.Direct(), loopback.DefaultLimits)
	report.Outcome, report.Reasons = judgement.Outcome, judgement.Reasons
	if gpu != "" {
		report.Distance = distance.String()
	}
	if r.GID.Known {
		report.GID, report.GIDIndex, report.GIDType = r.GID.Value.Address.String(), &r.GID.Value.Index, r.GID.Value.Type
	}
	for _, registration := range r.Registrations {
		report.Registrations = append(report.Registrations, ProbeRegistration{
			Method: string(registration.Method), Errno: errnoOf(registration.Err), Error: textOf(registration.Err), Seconds: registration.Duration.Seconds(),
		})
	}
	for _, stage := range r.Stages {
		report.Stages = append(report.Stages, ProbeStage{string(stage.Stage), string(stage.Path), stage.Duration.Seconds(), textOf(stage.Err)})
	}
	for i := range r.Paths {
		report.Paths = append(report.Paths, probePath(&r.Paths[i]))
	}
	return report
}

func probePath(p *loopback.PathResult) ProbePath {
	path := ProbePath{
		Path: string(p.Path), BytesPerSecond: pointer(p.BytesPerSecond.Known, p.BytesPerSecond.Value), Ratio: pointer(p.Ratio.Known, p.Ratio.Value),
		LatencyMedian: pointer(p.LatencyMedian.Known, p.LatencyMedian.Value.Seconds()), LatencyP99: pointer(p.LatencyP99.Known, p.LatencyP99.Value.Seconds()),
		CPU: pointer(p.CPUSecondsPerGB.Known, p.CPUSecondsPerGB.Value), Mismatches: pointer(p.Mismatches.Known, p.Mismatches.Value), Verified: p.Verified,
	}
	if p.Err != nil {
		path.Stage, path.Error = string(p.Stage), p.Err.Error()
	}
	return path
}

func errnoOf(err error) string {
	if err == nil {
		return ""
	}
	return sysread.ErrnoName(err)
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// WriteProbeJSON writes reports as a JSON array.
func WriteProbeJSON(w io.Writer, reports []ProbeReport) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(reports)
}

// WriteTable writes a report for a terminal.
func (p *ProbeReport) WriteTable(w io.Writer) error {
	var b strings.Builder
	b.WriteString(p.title() + "\n")
	if len(p.Paths) > 0 {
		out := newTable(&b, "path", "rate", "of host", "latency", "99 %", "CPU s/GB", "data")
		for i := range p.Paths {
			out.AppendRow(p.Paths[i].row())
		}
		out.Render()
	}
	for _, line := range p.facts() {
		b.WriteString(" " + line + "\n")
	}
	fmt.Fprintf(&b, " outcome: %s\n", p.Outcome)
	for _, reason := range p.Reasons {
		fmt.Fprintf(&b, "   %s\n", reason)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (p *ProbeReport) title() string {
	on := fmt.Sprintf("%s port %d", p.Device, p.Port)
	if p.GPU == "" {
		return on + ", host memory alone"
	}
	return fmt.Sprintf("GPU %s and %s, %s", p.GPU, on, p.Distance)
}

func (p *ProbePath) row() table.Row {
	data := "-"
	switch {
	case p.Error != "":
		data = "failed: " + p.Stage
	case p.Mismatches != nil && *p.Mismatches > 0:
		data = fmt.Sprintf("%d WRONG", *p.Mismatches)
	case p.Mismatches != nil:
		data = "verified"
	}
	return table.Row{p.Path, gigabytes(p.BytesPerSecond), formatted("%.2f", p.Ratio), micros(p.LatencyMedian), micros(p.LatencyP99), formatted("%.3f", p.CPU), data}
}

func formatted(format string, value *float64) string {
	if value == nil {
		return "-"
	}
	return fmt.Sprintf(format, *value)
}

func micros(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f us", *seconds*1e6)
}

// facts are what the rates were measured with.
func (p *ProbeReport) facts() []string {
	var lines []string
	for _, r := range p.Registrations {
		how := "works"
		if r.Errno != "" {
			how = "fails with " + r.Errno
		}
		lines = append(lines, fmt.Sprintf("registration by %s: %s", r.Method, how))
	}
	if p.Method != "" {
		line := "measured with " + p.Method
		if p.NCCLMethod != p.Method {
			line += ", although current NCCL would try " + p.NCCLMethod
		}
		lines = append(lines, line)
	}
	if p.GIDIndex != nil {
		lines = append(lines, fmt.Sprintf("GID %d %s, %s, path MTU %d", *p.GIDIndex, p.GID, p.GIDType, p.MTU))
	}
	if p.Transferred == 0 {
		return lines
	}
	return append(lines, fmt.Sprintf("moved %d MB over the NIC in %.1f s", p.Transferred/1e6, p.Seconds))
}

// ProbeLegend says what the numbers of a table mean.
const ProbeLegend = "host: host memory to host memory, what NIC and stack can do.  gpu_read: the NIC reads GPU memory.  gpu_write: it writes GPU memory.\n" +
	"gpu: GPU to GPU, as jobs do with GPUDirect RDMA.  staged: through copies in host memory, as jobs do without it.\n" +
	"All are RDMA writes of the NIC to itself: they say nothing of cable, switch and the other side. Rates are of one direction while both are in use.\n"
