package diagnosis

import (
	"strings"

	"gdr_exporter/collector/process"
	"gdr_exporter/gpu/affinity"
)

// Variables of UCX.
const (
	varUCXDirect   = "UCX_IB_GPU_DIRECT_RDMA"
	varUCXDMABuf   = "UCX_CUDA_COPY_DMABUF"
	varUCXTLS      = "UCX_TLS"
	varUCXDistance = "UCX_DISTANCE_BW"
)

// ucxSettings are the variables of UCX that decide about GPUDirect RDMA.
type ucxSettings struct {
	off      bool   // UCX_IB_GPU_DIRECT_RDMA=no
	noDMABuf bool   // UCX_CUDA_COPY_DMABUF=no
	noCUDA   bool   // UCX_TLS names transports, none of them for GPU memory
	distance bool   // UCX_DISTANCE_BW is set
	doubt    string // a variable whose value is not known, "" if all are
}

func ucxSettingsOf(environment map[string]string) ucxSettings {
	if len(environment) == 0 {
		return ucxSettings{}
	}
	s := ucxSettings{
		off: ucxNo(environment[varUCXDirect]), noDMABuf: ucxNo(environment[varUCXDMABuf]),
		noCUDA: !ucxHasCUDA(environment[varUCXTLS]), distance: environment[varUCXDistance] != "",
	}
	for _, name := range [...]string{varUCXDirect, varUCXDMABuf, varUCXTLS} {
		if environment[name] == process.Withheld {
			s.doubt = name
		}
	}
	return s
}

// ucxNo and ucxKnown are how UCX reads try, yes and no: in any case.
func ucxNo(text string) bool { return isOneOf(text, "no", "n", "0", "off") }

func ucxKnown(text string) bool {
	return ucxNo(text) || isOneOf(text, "yes", "y", "1", "on", "try", "maybe", "auto")
}

func isOneOf(text string, words ...string) bool {
	for _, word := range words {
		if strings.EqualFold(text, word) {
			return true
		}
	}
	return false
}

// ucxHasCUDA reports whether UCX_TLS lets UCX handle GPU memory: cuda_copy is
// needed beside the transport (openucx/ucx#10929). It is a list of what may be
// used, or after "^" of what may not; empty and "all" leave all.
func ucxHasCUDA(tls string) bool {
	if tls == "" {
		return true
	}
	list, not := strings.CutPrefix(tls, "^")
	for entry := range strings.SplitSeq(list, ",") {
		switch entry = strings.TrimPrefix(strings.TrimSpace(entry), `\`); entry {
		case "all", "cuda", "cuda_copy":
			return !not
		}
	}
	return not
}

// decideUCX says what UCX does with a pair: whether it can register is asked of
// files and of dma-buf, and how far is too far is a matter of estimated bandwidth.
func decideUCX(g *Generation, f *pairFacts, env ucxSettings) decision {
	switch {
	case env.doubt != "":
		return decision{maybe, "the value of " + env.doubt + " is not known"}
	case env.off:
		return decision{no, varUCXDirect + " is no"}
	case env.noCUDA:
		return decision{no, varUCXTLS + " leaves out cuda_copy"}
	}
	return all(ucxDistance(f, env), ucxMethod(g, f, env))
}

// ucxDistance is no across NUMA nodes, which UCX takes for 220 MB/s
// (openucx/ucx#11121).
func ucxDistance(f *pairFacts, env ucxSettings) decision {
	switch {
	case env.distance:
		return decision{maybe, varUCXDistance + " changes what UCX thinks of distances"}
	case f.distance == affinity.SYS:
		return decision{no, "distance SYS: UCX stages across NUMA nodes"}
	case f.distance == affinity.Unknown:
		return decision{maybe, "the distance is not known: the PCIe tree does not show the way"}
	}
	return decision{yes, "distance " + f.distance.String()}
}

// ucxMethod is how UCX would register. It takes the first GPU's word on dma-buf
// for that of all.
func ucxMethod(g *Generation, f *pairFacts, env ucxSettings) decision {
	dmabuf := decision{no, varUCXDMABuf + " is no"}
	if !env.noDMABuf {
		dmabuf = byDMABuf(f.takesUCX, f.firstExports)
	}
	return eitherMethod(dmabuf, byPeermem(g.detects, f))
}
