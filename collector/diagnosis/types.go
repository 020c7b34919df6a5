package diagnosis

import (
	"time"

	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
)

// State is what is said of a pair, as the label state has it.
type State string

// States of a pair.
const (
	StateDirect      State = "direct"      // GPUDirect RDMA works
	StateDegraded    State = "degraded"    // it works badly: slow, or data arrives wrong
	StateStaged      State = "staged"      // it does not work: jobs copy through host memory
	StateUnsupported State = "unsupported" // it cannot work with this GPU or NIC, and never did
	StateUnknown     State = "unknown"     // nobody can say
)

// States are all states.
var States = []State{StateDirect, StateDegraded, StateStaged, StateUnsupported, StateUnknown}

// Evidence is what a state rests on, as the label evidence has it.
type Evidence string

// Kinds of evidence.
const (
	EvidenceMeasured   Evidence = "measured"   // a full run
	EvidenceRegistered Evidence = "registered" // a registration run
	EvidenceInferred   Evidence = "inferred"   // preconditions or live use only
	EvidenceNone       Evidence = "none"
)

// Evidences are all kinds of evidence.
var Evidences = []Evidence{EvidenceMeasured, EvidenceRegistered, EvidenceInferred, EvidenceNone}

// Path is what is said of a pair.
type Path struct {
	GPU, Device string
	Port        int
	Distance    string
	State       State
	Evidence    Evidence
	// Expected: libraries use GPUDirect RDMA on this pair by its distance and role,
	// or a profile or --probe.pairs names it.
	Expected bool
	// Reasons say why, the decisive one first. Never empty unless State is direct.
	Reasons []string
	// Cause is the ID of the rule that explains the state best, "" if none does.
	Cause string
	// Since is when it got this state, as far as this exporter knows.
	Since time.Time
}

// Live is whether GPUDirect RDMA is being used through a NIC now.
type Live string

// Values of Live.
const (
	LiveInUse      Live = "in_use"      // peer memory regions, or an nvidia dma-buf attached to it
	LiveSuspect    Live = "suspect"     // a GPU job moves bytes through it, and nothing of GPU memory is registered anywhere
	LiveIdle       Live = "idle"        // no process uses it together with a GPU
	LiveCannotTell Live = "cannot_tell" // see its reason
)

// Lives are all values of Live.
var Lives = []Live{LiveInUse, LiveSuspect, LiveIdle, LiveCannotTell}

// LiveUse is what is seen of a compute NIC's use.
type LiveUse struct {
	Device  string
	Live    Live
	Reasons []string // what was seen, or what is missing
}

// Severity is how bad a finding is.
type Severity string

// Severities.
const (
	SeverityInfo     Severity = "info"
	SeverityWarning  Severity = "warning"
	SeverityCritical Severity = "critical"
)

// Subject is what a finding is about. Fields that do not apply are empty.
type Subject struct {
	GPU     string // PCI address
	Device  string // RDMA device
	Port    int    // 0: not of a port
	Address string // other PCI function
	Other   string // "pid 4711", "containerd"
}

// Finding is something that is wrong, or should be known.
type Finding struct {
	Rule     string
	Severity Severity
	Subject  Subject
	Seen     string // what was seen, with numbers
	Hint     string // what to do
	Since    time.Time
}

// Result is what became of a rule.
type Result string

// Results of a rule, as the label result has it.
const (
	ResultClear     Result = "clear"
	ResultFound     Result = "found"
	ResultNotJudged Result = "not_judged"
)

// Results are all results.
var Results = []Result{ResultClear, ResultFound, ResultNotJudged}

// RuleResult is what became of a rule.
type RuleResult struct {
	Rule    string
	Result  Result
	Missing []string // why it was not judged: what could not be read, and the privilege for it
}

// LibraryChoice is whether a communication library would use GPUDirect RDMA on a
// pair, by a rule of that library.
type LibraryChoice struct {
	GPU, Device string
	Library     string // nccl, ucx
	Rule        string // generation of the library's rules, see Libraries
	Uses        bool
	Reason      string // why not, or by which marker
}

// Diagnosis is what a Snapshot means. It is immutable.
type Diagnosis struct {
	Time     time.Time
	Paths    []Path // of expected and measured pairs, in the order of GPU and device
	Live     []LiveUse
	Findings []Finding // worst first
	Rules    []RuleResult
	Choices  []LibraryChoice
	Expected profile.Expectation
}

// Input is what is judged.
type Input struct {
	Snapshot *snapshot.Snapshot
	Expected profile.Expectation
	// Libraries are the generations of library rules that the site's jobs use, as
	// --libraries names them: a refusal by one of them is a finding.
	Libraries []string
	// Named: --probe.pairs names pairs; those are expected.
	Named func(gpu, device string) bool
}
