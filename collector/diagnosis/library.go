package diagnosis

import (
	"fmt"
	"strconv"
	"strings"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/loopback/prober"
)

// Libraries whose decision is known, as LibraryChoice.Library has them.
const (
	LibraryNCCL = "nccl"
	LibraryUCX  = "ucx"
)

// Generation is a stretch of a library's versions that decide alike.
type Generation struct {
	Library string
	// Rule names it, as LibraryChoice.Rule has it: the first version of the stretch
	// ("2.13"). It holds up to the next one of the library.
	Rule string
	// Versions says the same in words.
	Versions string
	// first is the exact first version.
	first [3]int
	// detects is the rule of gpu/driver by which it looks for peer memory.
	detects string
	// dmabuf: it can register a dma-buf.
	dmabuf bool
	// c2c: it counts a way over NVLink-C2C as near by default.
	c2c bool
	// ampere: it reads the memory of GPUs from Ampere on without NVLink.
	ampere bool
}

// Generations are those of all libraries, oldest first, by the libraries' sources.
//
// An external plugin of NCCL (HPC-X, "Using network IBext") has its own copy of
// what is asked of the NIC, which may be of an older generation than NCCL itself:
// an old copy looks for the files of 2.13, a newer one for those of 2.23.
var Generations = []Generation{
	{Library: LibraryNCCL, Rule: "2.4", Versions: "2.4 to 2.12", first: [3]int{2, 4, 0}, detects: "nccl_before_2.23.4"},
	{Library: LibraryNCCL, Rule: "2.13", Versions: "2.13 to 2.22", first: [3]int{2, 13, 0}, detects: "nccl_before_2.23.4", dmabuf: true, ampere: true},
	// NVIDIA/nccl#1676: the file of module nvidia_peermem counts from here on.
	{Library: LibraryNCCL, Rule: "2.23", Versions: "2.23.4 to 2.26", first: [3]int{2, 23, 4}, detects: "nccl", dmabuf: true, ampere: true},
	{Library: LibraryNCCL, Rule: "2.27", Versions: "2.27 and later", first: [3]int{2, 27, 0}, detects: "nccl", dmabuf: true, ampere: true, c2c: true},
	{Library: LibraryUCX, Rule: "current", Versions: "current", detects: "ucx", dmabuf: true},
}

// RuleOf returns the rule of a library's version: "2.21.5" of nccl is decided by
// "2.13". ok is false for a version older than all rules, or that is none. Of UCX
// one rule is known, whatever the version.
func RuleOf(library, version string) (rule string, ok bool) {
	if library == LibraryUCX {
		return "current", true
	}
	numbers, parsed := parseVersion(version)
	for i := range Generations {
		if g := &Generations[i]; parsed && g.Library == library && !older(numbers, g.first) {
			rule, ok = g.Rule, true
		}
	}
	return rule, ok
}

// ParseLibrary reads what a site says of its jobs' libraries: "nccl:2.21.5" or
// "ucx". The error names what would be right.
func ParseLibrary(text string) (library, rule string, err error) {
	library, version, _ := strings.Cut(text, ":")
	if library == LibraryNCCL || library == LibraryUCX {
		if rule, ok := RuleOf(library, version); ok {
			return library, rule, nil
		}
	}
	return "", "", fmt.Errorf("library %q: want ucx or nccl:VERSION with a version from 2.4 on, such as nccl:2.21.5", text)
}

// parseVersion reads "2.21.5", "2.21" or "2.21.5-1". What is missing is 0, but a
// version without its third number is taken for the last of its kind, since the
// rules change in the middle of 2.23 and nobody runs what came before.
func parseVersion(text string) (numbers [3]int, ok bool) {
	text, _, _ = strings.Cut(text, "-")
	text, _, _ = strings.Cut(text, "+")
	parts := strings.Split(text, ".")
	if len(parts) < 2 {
		return numbers, false
	}
	numbers[2] = 99
	for i, part := range parts[:min(len(parts), len(numbers))] {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return numbers, false
		}
		numbers[i] = n
	}
	return numbers, true
}

func older(a, b [3]int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

// OpenChoice is a choice that cannot be told.
type OpenChoice struct {
	GPU, Device   string
	Library, Rule string
	Missing       string // what is not known, and how it comes to be
}

// Choices says whether NCCL and UCX would use GPUDirect RDMA on each expected
// pair, both to send and to receive, by each generation of their rules and without
// any variable in the environment. What hangs on something that is not known is
// not in it: see [ChoicesOf].
func Choices(s *snapshot.Snapshot) []LibraryChoice {
	choices, _ := ChoicesOf(s, expectedPairs(s), nil)
	return choices
}

// ChoicesOf is [Choices] for pairs, whose port does not matter, and under a job's
// environment. open are the choices that cannot be told, and why.
//
// It is the library's decision that is told, which comes from files that exist and
// attributes, not whether a registration then works. Whether the port is ACTIVE is
// not asked.
func ChoicesOf(s *snapshot.Snapshot, pairs []prober.Pair, environment map[string]string) (choices []LibraryChoice, open []OpenChoice) {
	host := hostFactsOf(s)
	nccl, ucx := ncclSettingsOf(environment), ucxSettingsOf(environment)
	choices = make([]LibraryChoice, 0, len(pairs)*len(Generations))
	for _, pair := range pairs {
		facts := host.pair(pair.GPU, pair.Device)
		for i := range Generations {
			g := &Generations[i]
			var d decision
			if g.Library == LibraryNCCL {
				d = decideNCCL(g, facts, nccl)
			} else {
				d = decideUCX(g, facts, ucx)
			}
			if d.answer == maybe {
				open = append(open, OpenChoice{pair.GPU, pair.Device, g.Library, g.Rule, d.reason})
				continue
			}
			choices = append(choices, LibraryChoice{pair.GPU, pair.Device, g.Library, g.Rule, d.answer == yes, d.reason})
		}
	}
	return choices, open
}

// expectedPairs are the pairs at whose distance libraries use GPUDirect RDMA: the
// prober's, or without one those that it would have.
func expectedPairs(s *snapshot.Snapshot) []prober.Pair {
	var candidates []prober.Candidate
	if s.Prober != nil && len(s.Prober.Pairs) > 0 {
		candidates = make([]prober.Candidate, len(s.Prober.Pairs))
		for i := range s.Prober.Pairs {
			candidates[i] = s.Prober.Pairs[i].Candidate
		}
	} else if s.Affinity != nil {
		candidates = s.Sighting(snapshot.PairChoice{}).Pairs.Value
	}
	pairs := make([]prober.Pair, 0, len(candidates))
	for i := range candidates {
		if candidates[i].Direct {
			pairs = append(pairs, candidates[i].Pair)
		}
	}
	return pairs
}

// answer is yes, no, or that it hangs on something that is not known.
type answer int

const (
	maybe answer = iota
	no
	yes
)

// decision is an answer and what it rests on.
type decision struct {
	answer answer
	reason string
}

// all puts the conditions of a decision together, each of which must hold: one
// that does not decides, whatever else is not known. The reason of a yes is that of
// the last condition.
func all(conditions ...decision) decision {
	open := -1
	for i, c := range conditions {
		switch {
		case c.answer == no:
			return c
		case c.answer == maybe && open < 0:
			open = i
		}
	}
	if open >= 0 {
		return conditions[open]
	}
	return conditions[len(conditions)-1]
}
