package nccllog

import (
	"context"
	"errors"
	"io"
	"strings"
	"unicode/utf8"
)

// Limits of the tables. Together with one chunk they are what a log costs in
// memory, some tens of megabytes at worst, whatever its size.
const (
	mostHosts       = 4096
	mostProcesses   = 16384
	mostRanks       = 65536
	mostRails       = 16384
	mostPairs       = 32768
	mostDevices     = 8192
	mostRefusals    = 4096
	mostSettings    = 512
	mostErrors      = 512
	mostWarnings    = 256
	mostTexts       = 64
	mostPerProcess  = 64
	checkEveryLines = 4096 // how often a reader looks whether it should stop
)

// Options are what a reader is told beside the log.
type Options struct {
	// Findings are those of the node that the log is read on, as short sentences.
	// They are passed on into the report.
	Findings []string
}

// Read reads a log to its end and judges it. The log may be packed with gzip. An
// error means that it could not be read from the start, or that ctx ended; damage
// further on is in the report, beside what was read before it.
func Read(ctx context.Context, r io.Reader, options Options) (*Report, error) {
	source, err := newLines(r)
	if err != nil {
		return nil, err
	}
	p := newParser()
	for {
		line, ended, err := source.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && p.input.Lines == 0 {
			return nil, err
		}
		if err != nil {
			p.input.Damage = clean(err.Error())
			break
		}
		p.line(line, ended)
		if p.input.Lines%checkEveryLines == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return p.report(options), nil
}

// process is what is known of a process of the job.
type process struct {
	devices map[int]string  // NICs by NCCL's number
	comms   map[string]comm // by CUDA device: the last communicator begun
}

// comm is a communicator; "" is the id of one that its log does not name.
type comm struct{ id string }

type processKey struct{ host, pid string }

// rankKey is a rank of a communicator. Logs before 2.18 do not name communicators;
// their id is "".
type rankKey struct {
	comm string
	rank int
}

// rankPlace is where a rank runs; several if the log has communicators that cannot
// be told apart.
type rankPlace struct {
	host    string
	several bool
}

// parser is what was found so far.
type parser struct {
	input     Input
	hosts     *bounded[string, string]
	processes *bounded[processKey, process]
	ranks     *bounded[rankKey, rankPlace]
	devices   *bounded[deviceKey, Device]
	rails     *bounded[railKey, Rail]
	pairs     *bounded[pairKey, pairCounts]
	refusals  *bounded[refusalKey, Refusal]
	settings  *bounded[settingKey, Setting]
	errors    *bounded[errorKey, Failure]

	nccl, cuda, driver, plugins, networks, warnings, local, dmabuf tallies

	summary    Summary
	unclear    uint64 // connections whose line is cut where it matters
	tails      uint64 // lines that begin with the end of such a one
	noIB       bool   // a process says that there is no IB device
	noVerbs    bool   // a process says that it cannot open libibverbs
	benchmarks benchmarks
}

func newParser() *parser {
	return &parser{
		hosts: newBounded[string, string](mostHosts), processes: newBounded[processKey, process](mostProcesses),
		ranks: newBounded[rankKey, rankPlace](mostRanks), devices: newBounded[deviceKey, Device](mostDevices),
		rails: newBounded[railKey, Rail](mostRails), pairs: newBounded[pairKey, pairCounts](mostPairs),
		refusals: newBounded[refusalKey, Refusal](mostRefusals), settings: newBounded[settingKey, Setting](mostSettings),
		errors: newBounded[errorKey, Failure](mostErrors),
		nccl:   newTallies(mostTexts), cuda: newTallies(mostTexts), driver: newTallies(mostTexts), plugins: newTallies(mostTexts), networks: newTallies(mostTexts),
		warnings: newTallies(mostWarnings), local: newTallies(mostTexts), dmabuf: newTallies(mostDevices),
	}
}

// line takes a line, which may have several in it: programs that show progress
// end theirs with a carriage return alone.
func (p *parser) line(raw []byte, ended bool) {
	p.input.Lines++
	p.input.Bytes += uint64(len(raw))
	if !ended && len(raw) == chunk {
		p.input.LongLines++
	}
	if !utf8.Valid(raw) {
		p.input.BinaryLines++
	}
	text := string(raw)
	for len(text) > 0 {
		part := text
		at := strings.IndexByte(text, '\r')
		if at >= 0 {
			part, text = text[:at], text[at+1:]
		} else {
			text = ""
		}
		if part != "" {
			p.split(plain(part), ended || at >= 0)
		}
	}
}

// message is a kind of entry: a mark that its text has, and what reads it.
type message struct {
	mark string
	read func(*parser, *entry) bool // false: it is something else
}

// messages are all kinds, the frequent ones first. The first that takes an entry
// has it.
var messages = []message{
	{" via ", (*parser).connection},
	{"GPU Direct RDMA", (*parser).direct},
	{" : Using [", (*parser).devicesUsed},
	{"Using network ", (*parser).network},
	{" nranks ", (*parser).begun},
	{" nRanks ", (*parser).shape},
	{"Connected all ", (*parser).connected},
	{"set by environment to ", (*parser).setting},
	{" set to ", (*parser).setting},
	{"DMA-BUF is available", (*parser).dmabufAvailable},
	{"Channel ", (*parser).channels},
	{"NVLS multicast support is ", (*parser).nvls},
	{"No device found", (*parser).noDevice},
	{"Failed to open libibverbs", (*parser).noLibrary},
	{"Loaded net plugin ", (*parser).plugin},
	{"P2P plugin ", (*parser).plugin},
	{"NET/OFI ", (*parser).plugin},
	{"cudaDriverVersion ", (*parser).driverVersion},
}

// entry takes what NCCL wrote.
func (p *parser) entry(e *entry) {
	p.input.NCCLLines++
	p.version(e.text, e.host)
	if p.failure(e.text, e.host) {
		return
	}
	for i := range messages {
		if strings.Contains(e.text, messages[i].mark) && messages[i].read(p, e) {
			return
		}
	}
	if e.level == "WARN" {
		p.warnings.add(kindOf(e.text), e.host)
	}
}

// loose takes text that NCCL did not write, or not with its prefix.
func (p *parser) loose(text string) {
	if strings.HasPrefix(text, "/GDRDMA") {
		p.tails++
	}
	if p.benchmarks.line(text) {
		return
	}
	if !strings.Contains(text, "NCCL") && !strings.Contains(text, "NET/") && !strings.Contains(text, "ibv_") {
		return
	}
	p.version(text, "")
	p.failure(text, "")
	p.assignments(text)
}
