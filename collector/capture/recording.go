package capture

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"gdr_exporter/collector/sysread"
)

// Recording is everything that readers read of one host.
type Recording struct {
	Header Header
	// Scenario is how a replay moves; nil: it stands still.
	Scenario *Scenario
	// Files are the files, in the order of their paths and of the operations.
	Files []File
	// Answers are the answers to what is not a file, in the order of their parts
	// and questions.
	Answers []Answer
}

// Header says what a recording is of.
type Header struct {
	// About says in a few sentences what the recording shows.
	About string `json:"about,omitempty"`
	// Synthetic: no such host was recorded, it is made up from public facts.
	Synthetic bool `json:"synthetic,omitempty"`
	// Base is the embedded recording that this one is laid over, see
	// [Recording.Over]; "" for a whole one.
	Base string `json:"base,omitempty"`
	// Exporter is the version of the exporter that made it.
	Exporter string `json:"exporter,omitempty"`
	// Began and Ended are the times of the first and the last answer: counters of
	// which there is a first answer and a last one have grown in between.
	Began time.Time `json:"began"`
	Ended time.Time `json:"ended"`
	// Readers say where and what the readers read, as theirs have to in a replay.
	Readers Readers `json:"readers"`
}

// Readers are the readers' settings that decide what they ask.
type Readers struct {
	Sysfs       string   `json:"sysfs"`
	Procfs      string   `json:"procfs"`
	DriverRoots []string `json:"driver_roots,omitempty"`
}

// Op is what was done with a path.
type Op string

// Operations, in the order in which they are written.
const (
	OpLink   Op = "link"   // readlink
	OpStat   Op = "stat"   // stat and lstat
	OpAccess Op = "access" // access(F_OK)
	OpList   Op = "list"   // read of a directory
	OpRead   Op = "read"   // read, of all or of parts
	OpLines  Op = "lines"  // read of the lines that the reader looks at
)

var ops = []Op{OpLink, OpStat, OpAccess, OpList, OpRead, OpLines}

// File is what an operation on a path gave.
type File struct {
	Path string // absolute, without links
	Op   Op
	Last FileAnswer
	// First is what it gave at first, nil if that was the same.
	First *FileAnswer
}

// FileAnswer is what an operation gave once. A successful one has the field of
// its operation.
type FileAnswer struct {
	// Errno is the name of the error, see sysread.ErrnoName; "" for none.
	Errno string
	// Hang: the call did not return.
	Hang bool

	Target string       // of a link
	Kind   sysread.Kind // of a stat
	Names  []string     // of a list, sorted
	Data   []Segment    // of a read, by offset, not touching each other; of lines one at 0
	// Size is where a file that was read ends, or a place beyond its end at which
	// nothing was read; -1 if no read came that far.
	Size int64
}

// Segment is a part of a file.
type Segment struct {
	At    int64
	Bytes []byte
	// Errno is the error of a read at that offset, which then has no bytes.
	Errno string
}

// Parts of a Recording beside files.
const (
	PartNetlink = "netlink" // RDMA netlink
	PartNetdev  = "netdev"  // ethtool, DCB
	PartDevlink = "devlink"
	PartNVML    = "nvml"
	PartEvents  = "events" // the kernel's events about RDMA devices
	PartHost    = "host"   // how the host is wired: device nodes, addresses, daemons
)

// Answer is the answer to a question that is not about a file.
type Answer struct {
	Part     string
	Question string // such as "PORT_GET 0 1"
	Last     Value
	First    *Value // as in File
}

// Value is an answer's value, or error.
type Value struct {
	Errno string // as in FileAnswer
	Hang  bool
	// Return is NVML's return code, which takes the errno's place there.
	Return int
	JSON   json.RawMessage
}

// sort puts a recording into its order.
func (r *Recording) sort() {
	slices.SortFunc(r.Files, compareFiles)
	slices.SortFunc(r.Answers, compareAnswers)
}

func compareFiles(a, b File) int {
	return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(slices.Index(ops, a.Op), slices.Index(ops, b.Op)))
}

func compareAnswers(a, b Answer) int {
	return cmp.Or(cmp.Compare(a.Part, b.Part), cmp.Compare(a.Question, b.Question))
}
