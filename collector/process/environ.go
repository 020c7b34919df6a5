package process

import (
	"bytes"
	"regexp"
	"slices"
)

// Environment is what is kept of a process's initial environment: what the process
// changes itself later does not show.
type Environment struct {
	// Variables are those of [Valued] that are set, with their values. A value that is
	// not of the form that the variable has is [Withheld].
	Variables map[string]string `json:"variables,omitempty"`
	// Others are the names of further variables of the same libraries, without values,
	// in the order of their names, at most MaxOthers.
	Others  []string `json:"others,omitempty"`
	Omitted int      `json:"omitted,omitempty"` // names beyond, and those that are no usual names
}

// Withheld stands for a value that is not of the form that its variable has.
const Withheld = "?"

// MaxOthers bounds the names of variables without values.
const MaxOthers = 64

// Prefixes of the variables of which at least the name is kept.
var prefixes = []string{"NCCL_", "UCX_", "NVSHMEM_"}

// Forms of values.
var (
	number = regexp.MustCompile(`^-?[0-9]{1,6}$`)
	level  = regexp.MustCompile(`^([0-9]{1,2}|LOC|NVL|NVB|C2C|PIX|PXB|P2C|PXN|PHB|SYS|NODE)$`)
	choice = regexp.MustCompile(`^[A-Za-z0-9_-]{1,24}$`)
	list   = regexp.MustCompile(`^[A-Za-z0-9_.,:=^*@-]{1,256}$`)
)

// Valued are the variables whose values are kept, and the form that a value has:
// those that decide whether, where and how GPUDirect RDMA is used. What may hold a
// path, a host's name or an address (NCCL_TOPO_FILE, NCCL_SOCKET_IFNAME,
// NCCL_NET_PLUGIN, NCCL_COMM_ID) is not among them: that it is set is known by its
// name.
var Valued = map[string]*regexp.Regexp{
	"NCCL_NET_GDR_LEVEL":           level,
	"NCCL_IB_GDR_LEVEL":            level, // its name before 2.4
	"NCCL_NET_GDR_READ":            number,
	"NCCL_NET_GDR_C2C":             number,
	"NCCL_NET_GDR_MLOPART":         number,
	"NCCL_DMABUF_ENABLE":           number,
	"NCCL_GDRCOPY_ENABLE":          number,
	"NCCL_IB_DISABLE":              number,
	"NCCL_IB_DATA_DIRECT":          number,
	"NCCL_IB_PCI_RELAXED_ORDERING": number,
	"NCCL_IB_CUDA_SUPPORT":         number, // removed in 2.4
	"NCCL_IB_GID_INDEX":            number,
	"NCCL_PXN_DISABLE":             number,
	"NCCL_NET":                     choice,
	"NCCL_IB_HCA":                  list,
	"UCX_IB_GPU_DIRECT_RDMA":       choice,
	"UCX_CUDA_COPY_DMABUF":         choice,
	"UCX_IB_PCI_RELAXED_ORDERING":  choice,
	"UCX_TLS":                      list,
	"UCX_DISTANCE_BW":              list,
	"UCX_NET_DEVICES":              list,
	"NVSHMEM_REMOTE_TRANSPORT":     choice,
	"NVSHMEM_IB_DISABLE_DMABUF":    number,
	"NVSHMEM_IB_ENABLE_IBGDA":      number,
	"NVSHMEM_HCA_LIST":             list,
}

// Bounds of an environment and of an entry that is kept: a name, "=" and a value.
const (
	maxEnviron = 8 << 20
	maxName    = 64
	maxEntry   = maxName + 1 + 256
)

// Environment reads /proc/PID/environ piece by piece. What is not kept is
// overwritten as soon as it has been looked at.
func (p *Proc) Environment(pid int) (Environment, error) {
	f := newFilter()
	defer f.forget()
	if err := p.stream(p.path(pid, "environ"), maxEnviron, f.feed); err != nil {
		return Environment{}, err
	}
	return f.result(), nil
}

// filter keeps of an environment, a sequence of NAME=value with a zero byte behind
// each, what may be kept. Of an entry that is not of the prefixes it never holds
// more than the length of a prefix.
type filter struct {
	entry   []byte // of the entry that is being read; its capacity does not change
	foreign bool   // the entry is not of the prefixes, or was looked at
	long    bool   // the entry is longer than any that is kept
	kept    Environment
}

func newFilter() *filter { return &filter{entry: make([]byte, 0, maxEntry)} }

// forget overwrites what is held of an entry.
func (f *filter) forget() { clear(f.entry[:cap(f.entry)]) }

func (f *filter) feed(piece []byte) {
	for len(piece) > 0 {
		part, rest, ended := bytes.Cut(piece, []byte{0})
		f.take(part)
		if !ended {
			return
		}
		f.end()
		piece = rest
	}
}

// take adds a part of an entry.
func (f *filter) take(part []byte) {
	longest := 0
	for _, prefix := range prefixes {
		longest = max(longest, len(prefix))
	}
	for len(part) > 0 && !f.foreign {
		n := maxEntry - len(f.entry)
		if len(f.entry) < longest { // it is not known yet whose it is
			n = longest - len(f.entry)
		}
		if n == 0 {
			f.long = true
			return
		}
		n = min(n, len(part))
		f.entry = append(f.entry, part[:n]...)
		part = part[n:]
		if !slices.ContainsFunc(prefixes, f.mayBe) {
			f.foreign = true
			f.forget()
		}
	}
}

// mayBe reports whether the entry begins with a prefix, or with the beginning of one.
func (f *filter) mayBe(prefix string) bool {
	n := min(len(prefix), len(f.entry))
	return string(f.entry[:n]) == prefix[:n]
}

// usualName matches the names that libraries' variables have.
var usualName = regexp.MustCompile(`^[A-Z0-9_]{1,64}$`)

// end looks at the entry that has ended.
func (f *filter) end() {
	name, value, isVariable := bytes.Cut(f.entry, []byte("="))
	if !f.foreign && isVariable && slices.ContainsFunc(prefixes, func(prefix string) bool { return bytes.HasPrefix(name, []byte(prefix)) }) {
		f.keep(name, value)
	}
	f.forget()
	f.entry, f.foreign, f.long = f.entry[:0], false, false
}

// keep keeps what may be kept of a variable. Of two of one name the first counts,
// as it does to getenv.
func (f *filter) keep(name, value []byte) {
	form, valued := Valued[string(name)]
	_, known := f.kept.Variables[string(name)]
	switch {
	case !usualName.Match(name):
		f.kept.Omitted++
	case !valued:
		f.other(string(name))
	case known:
	default:
		if f.kept.Variables == nil {
			f.kept.Variables = map[string]string{}
		}
		kept := Withheld
		if len(value) == 0 || !f.long && form.Match(value) {
			kept = string(value)
		}
		f.kept.Variables[string(name)] = kept
	}
}

func (f *filter) other(name string) {
	at, known := slices.BinarySearch(f.kept.Others, name)
	switch {
	case known:
	case len(f.kept.Others) == MaxOthers:
		f.kept.Omitted++
	default:
		f.kept.Others = slices.Insert(f.kept.Others, at, name)
	}
}

// result ends the last entry and returns what is kept.
func (f *filter) result() Environment {
	f.end()
	return f.kept
}
