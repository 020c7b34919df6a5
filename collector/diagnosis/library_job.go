package diagnosis

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gdr_exporter/collector/process"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/driver"
)

// Effect is what a variable of a job's environment does to GPUDirect RDMA.
type Effect string

// Effects of a variable, worst first.
const (
	EffectStages  Effect = "stages"  // the job copies through host memory, in one direction at least
	EffectInvalid Effect = "invalid" // the value does not mean what it seems to
	EffectNone    Effect = "none"    // the library does not look at it
	EffectRemark  Effect = "remark"  // it changes something that is good to know
)

var effects = []Effect{EffectStages, EffectInvalid, EffectNone, EffectRemark}

// JobNote is what a variable of a job's environment does.
type JobNote struct {
	Variable string
	Value    string // "" if only that it is set is known
	Effect   Effect
	Text     string // what follows from it, without a stop
}

// JobHost is what the effect of variables depends on.
type JobHost struct {
	// NCCL is the version of the job's NCCL ("2.21.5"), "" not known.
	NCCL string
	// Devices are the compute devices that the job could use; without any it is not
	// said what NCCL_IB_HCA leaves out.
	Devices []string
	// NCCLPeermem and UCXPeermem are whether the libraries detect peer memory.
	NCCLPeermem, UCXPeermem sysread.Maybe[bool]
	// C2C: GPUs are connected to their CPU over NVLink-C2C. DataDirect: NICs have
	// data-direct functions.
	C2C, DataDirect bool
}

// JobVariables are the names of the variables that [Job] knows, and of beginnings
// of names, which end in "*".
var JobVariables = slices.Sorted(maps.Keys(jobVariables))

// jobVariables say what each variable does; "" if it does nothing worth saying.
var jobVariables = map[string]func(value string, h *JobHost) (Effect, string){
	varGDRLevel: noteLevel,
	varOldGDRLevel: func(string, *JobHost) (Effect, string) {
		return EffectNone, "it has had another name since NCCL 2.4: " + varGDRLevel
	},
	varGDRRead: func(value string, h *JobHost) (Effect, string) {
		return noteZero(value, "sends from GPU memory are staged; receives are not")
	},
	varGDRC2C:      noteC2C,
	varDMABuf:      noteDMABuf,
	varDataDirect:  noteDataDirect,
	varRelaxed:     noteRelaxed,
	varIBDisable:   noteIBDisable,
	varNet:         noteNet,
	varHCA:         noteHCA,
	varTopology:    noteTopology,
	varCUDASupport: noteCUDASupport,
	varGPUDirect + "*": func(string, *JobHost) (Effect, string) {
		return EffectNone, "no NCCL ever had it: GPUDirect RDMA is used wherever it is found to be possible"
	},
	varGDRCopy: func(string, *JobHost) (Effect, string) {
		return EffectNone, "it is about the processor's access to GPU memory, not about GPUDirect RDMA"
	},
	varUCXDirect: noteUCXDirect,
	varUCXDMABuf: func(value string, h *JobHost) (Effect, string) {
		if !ucxNo(value) {
			return "", ""
		}
		return withoutDMABuf(h.UCXPeermem, "UCX")
	},
	varUCXTLS: func(value string, _ *JobHost) (Effect, string) {
		if value == process.Withheld || ucxHasCUDA(value) {
			return "", ""
		}
		return EffectStages, "it leaves out cuda_copy, without which UCX does not handle GPU memory"
	},
	varUCXDistance: func(string, *JobHost) (Effect, string) {
		return EffectRemark, "it changes which distances UCX stages over"
	},
}

// Job says what the variables of a job's environment do to GPUDirect RDMA, worst
// first. Of a variable that does nothing worth saying it says nothing. A value may
// be process.Withheld.
func Job(variables map[string]string, host JobHost) []JobNote {
	var notes []JobNote
	for name, value := range variables {
		judge := jobVariables[name]
		if judge == nil && strings.HasPrefix(name, varGPUDirect) {
			judge = jobVariables[varGPUDirect+"*"]
		}
		if judge == nil || value == "" {
			continue // an empty variable is as none to NCCL and UCX
		}
		if effect, text := judge(value, &host); effect != "" {
			if value == process.Withheld {
				value = ""
			}
			notes = append(notes, JobNote{name, value, effect, text})
		}
	}
	slices.SortFunc(notes, func(a, b JobNote) int {
		return cmp.Or(slices.Index(effects, a.Effect)-slices.Index(effects, b.Effect), strings.Compare(a.Variable, b.Variable))
	})
	return notes
}

// JobOf is [Job] for a process of this host, nil if its environment is not known.
func JobOf(s *snapshot.Snapshot, job *process.Job) []JobNote {
	if !job.Variables.Known {
		return nil
	}
	host := JobHost{NCCL: job.NCCL.Value}
	if reading := s.DriverState(); reading != nil {
		host.NCCLPeermem = detects(reading, ncclDetects(host.NCCL))
		host.UCXPeermem = detects(reading, "ucx")
	}
	if s.Affinity != nil {
		listing := &s.Affinity.Listing
		host.DataDirect = len(listing.DataDirect) > 0
		for name, role := range listing.Roles {
			if role == "compute" {
				host.Devices = append(host.Devices, name)
			}
		}
		slices.Sort(host.Devices)
	}
	if nvml := s.NVML(); nvml != nil {
		for i := range nvml.GPUs {
			host.C2C = host.C2C || nvml.GPUs[i].C2CLinks.Value > 0
		}
	}
	return Job(withOthers(job), host)
}

// withOthers are the variables of a job, with those of which only the name is kept.
func withOthers(job *process.Job) map[string]string {
	if len(job.Others) == 0 {
		return job.Variables.Value
	}
	all := maps.Clone(job.Variables.Value)
	if all == nil {
		all = map[string]string{}
	}
	for _, name := range job.Others {
		all[name] = process.Withheld
	}
	return all
}

func detects(r *driver.Reading, library string) sysread.Maybe[bool] {
	for i := range driver.Rules {
		if driver.Rules[i].Library == library {
			return driver.Rules[i].Detects(r.Markers)
		}
	}
	return sysread.Maybe[bool]{}
}

// ncclDetects is the rule of gpu/driver of a version, the newest if it is not known.
func ncclDetects(version string) string {
	rule, ok := RuleOf(LibraryNCCL, version)
	found := "nccl"
	for i := range Generations {
		if g := &Generations[i]; ok && g.Library == LibraryNCCL && g.Rule == rule {
			found = g.detects
		}
	}
	return found
}

// before reports whether the job's NCCL is known to be older than a version.
func (h *JobHost) before(major, minor int) bool {
	numbers, ok := parseVersion(h.NCCL)
	return ok && older(numbers, [3]int{major, minor, 0})
}

// noteZero is for numbers of which 0 switches something off.
func noteZero(value, off string) (Effect, string) {
	switch number, _ := leadingNumber(value); {
	case !isNumber(value) && number == 0:
		return EffectInvalid, "it is no number: most versions of NCCL take it for 0, and " + off + "; the newest ignore it"
	case number == 0:
		return EffectStages, off
	}
	return "", ""
}

func noteLevel(value string, _ *JobHost) (Effect, string) {
	level, ok := ncclLevel(value)
	switch {
	case !ok:
		return EffectInvalid, "it names no distance, and NCCL ignores it: LOC, PIX, PXB, P2C, PHB or SYS, in capitals"
	case level < pathPIX:
		return EffectStages, "no NIC is that near: GPUDirect RDMA is off"
	case level == pathPIX:
		return EffectRemark, "GPUDirect RDMA is off between GPUs and NICs with more than one PCIe switch between them (PXB)"
	case level >= pathPHB:
		return EffectRemark, "GPUDirect RDMA is used through the processor too, where it is often slower than staging; it forces nothing where it is not possible"
	}
	return "", ""
}

func noteC2C(value string, h *JobHost) (Effect, string) {
	number, _ := leadingNumber(value)
	switch {
	case h.before(2, 26):
		return EffectNone, "it exists from NCCL 2.26 on"
	case !h.C2C:
		return EffectNone, "no GPU here is connected to its processor over NVLink-C2C"
	case number == 0:
		return noteZero(value, "GPUDirect RDMA is off over NVLink-C2C")
	}
	return "", ""
}

func noteDMABuf(value string, h *JobHost) (Effect, string) {
	number, _ := leadingNumber(value)
	switch {
	case h.before(2, 13):
		return EffectNone, "it exists from NCCL 2.13 on"
	case number != 0:
		return "", ""
	case !isNumber(value):
		return EffectInvalid, "it is no number: most versions of NCCL take it for 0, which switches dma-buf off; the newest ignore it"
	}
	return withoutDMABuf(h.NCCLPeermem, "NCCL")
}

func withoutDMABuf(peermem sysread.Maybe[bool], library string) (Effect, string) {
	if peermem.Known && !peermem.Value {
		return EffectStages, "dma-buf is off, and " + library + " finds no peer memory: GPUDirect RDMA is off"
	}
	return EffectRemark, "dma-buf is off: GPUDirect RDMA depends on peer memory (nvidia-peermem)"
}

func noteDataDirect(value string, h *JobHost) (Effect, string) {
	number, _ := leadingNumber(value)
	switch {
	case !h.DataDirect:
		return EffectNone, "no NIC here has a data-direct function"
	case number == 0:
		return EffectRemark, "NICs reach GPU memory through the processor, not through their data-direct functions"
	}
	return "", ""
}

func noteRelaxed(value string, _ *JobHost) (Effect, string) {
	if number, _ := leadingNumber(value); number != 0 {
		return "", ""
	}
	return EffectRemark, "memory is registered without relaxed ordering, which is slow on AMD and across sockets"
}

func noteIBDisable(value string, _ *JobHost) (Effect, string) {
	switch number, _ := leadingNumber(value); {
	case number != 0:
		return EffectStages, "NCCL uses neither InfiniBand nor RoCE: all goes through sockets"
	case !isNumber(value):
		return EffectInvalid, "it is no number, and NCCL takes it for 0: nothing is switched off"
	}
	return "", ""
}

func noteNet(value string, _ *JobHost) (Effect, string) {
	switch {
	case strings.EqualFold(value, "Socket"):
		return EffectStages, "NCCL uses sockets, neither InfiniBand nor RoCE"
	case strings.EqualFold(value, "IB"):
		return "", ""
	}
	return EffectRemark, "a network plugin has its own copy of the rules for GPUDirect RDMA, which may be older than NCCL's"
}

func noteHCA(value string, h *JobHost) (Effect, string) {
	if value == process.Withheld {
		return "", ""
	}
	var out []string
	for _, device := range h.Devices {
		if !hcaMatches(value, device) {
			out = append(out, device)
		}
	}
	switch {
	case len(out) == 0:
		return "", ""
	case len(out) == len(h.Devices):
		return EffectStages, "it leaves out every compute device of this node"
	}
	return EffectRemark, fmt.Sprintf("it leaves out %d of %d compute devices of this node: %s", len(out), len(h.Devices), strings.Join(out, " "))
}

func noteTopology(string, *JobHost) (Effect, string) {
	return EffectRemark, "NCCL takes the distances from that file: a wrong one stages"
}

func noteCUDASupport(string, *JobHost) (Effect, string) {
	return EffectNone, "NCCL has not had it since 2.4: GPUDirect RDMA is used wherever it is found to be possible"
}

func noteUCXDirect(value string, _ *JobHost) (Effect, string) {
	switch {
	case ucxNo(value):
		return EffectStages, "UCX copies GPU memory through host memory"
	case !ucxKnown(value):
		return EffectInvalid, "UCX knows try, yes and no only"
	}
	return "", ""
}
