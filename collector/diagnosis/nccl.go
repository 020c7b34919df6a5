package diagnosis

import (
	"fmt"
	"strings"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
)

// ncclPath is NCCL's order of ways between a GPU and a NIC, from near to far. It has
// no class NODE, and its numbers are not ours.
type ncclPath int

const (
	pathLOC ncclPath = iota
	pathNVL
	pathNVB
	pathC2C
	pathPIX
	pathPXB
	pathP2C
	pathPXN
	pathPHB
	pathSYS
)

var pathNames = [...]string{"LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"}

func (p ncclPath) String() string { return pathNames[p] }

// ncclPathOf is a distance as NCCL has it; c2c: it knows of ways over NVLink-C2C.
func ncclPathOf(distance affinity.Distance, c2c bool) (p ncclPath, known bool) {
	switch distance {
	case affinity.PIX:
		return pathPIX, true
	case affinity.PXB:
		return pathPXB, true
	case affinity.P2C:
		if c2c {
			return pathP2C, true
		}
		return pathPHB, true
	case affinity.PHB, affinity.NODE: // below one CPU, which is one node to NCCL
		return pathPHB, true
	case affinity.SYS:
		return pathSYS, true
	}
	return 0, false
}

// capabilityAmpere is the compute capability from which on NCCL lets the NIC read
// GPU memory without NVLink too.
const capabilityAmpere = 80

// decideNCCL says what NCCL of a generation does on a pair
// (ncclTopoCheckGdr in graph/paths.cc and what it asks of net_ib).
func decideNCCL(g *Generation, f *pairFacts, env ncclSettings) decision {
	if f.driver == "efa" {
		return decision{maybe, "NCCL reaches this device through a plugin with rules of its own (aws-ofi-nccl)"}
	}
	return all(env.network(f.device), ncclGPU(f), ncclSend(g, f, env), ncclDistance(g, f, env), ncclMethod(g, f, env))
}

// ncclGPU is what NCCL asks of the GPU.
func ncclGPU(f *pairFacts) decision {
	switch {
	case f.branch > 0 && f.branch < branchDirectAttribute:
		return decision{maybe, "with a driver before CUDA 11.3 NCCL tries a registration"}
	case !f.direct.Known:
		return decision{maybe, "the GPU's attribute for GPUDirect RDMA is not known under this driver before a measurement"}
	case !f.direct.Value:
		return decision{no, "the GPU does not support GPUDirect RDMA (attribute 116 is 0)"}
	}
	return decision{yes, "the GPU supports GPUDirect RDMA"}
}

// ncclSend is what NCCL asks before the NIC may read GPU memory; receiving needs none of it.
func ncclSend(g *Generation, f *pairFacts, env ncclSettings) decision {
	const staged = "sends are staged, receives not: "
	switch {
	case env.read.Known && env.read.Value == 0:
		return decision{no, staged + "NCCL_NET_GDR_READ is 0"}
	case env.read.Known && env.read.Value > 0:
		return decision{yes, "NCCL_NET_GDR_READ is set"}
	case f.linked.Value:
		return decision{yes, "the GPU has NVLink, or is the only one"}
	case f.capability == 0:
		return decision{maybe, "the GPU's compute capability is not known: NVML does not answer for it"}
	case f.capability >= capabilityAmpere && g.ampere:
		return decision{yes, "the GPU is Ampere or later"}
	case f.capability >= capabilityAmpere:
		return decision{maybe, "of NCCL 2.4 to 2.12 only later ones let the NIC read GPU memory without NVLink"}
	case !f.linked.Known:
		return decision{maybe, "the state of the GPU's NVLinks is not known"}
	}
	return decision{no, fmt.Sprintf("%scompute capability %d.%d, and no NVLink to another GPU", staged, f.capability/10, f.capability%10)}
}

// ncclDistance is what NCCL asks of the way between GPU and NIC.
func ncclDistance(g *Generation, f *pairFacts, env ncclSettings) decision {
	c2c := g.c2c
	if env.c2c.Known && g.c2c {
		c2c = env.c2c.Value != 0
	}
	p, known := ncclPathOf(f.distance, c2c)
	limit, by := pathPXB, "the default"
	if c2c {
		limit = pathP2C
	}
	if env.level.Known {
		limit, by = env.level.Value, env.levelFrom
	}
	switch {
	case known && p <= limit:
		return decision{yes, "distance " + p.String()}
	case limit == pathLOC:
		return decision{no, by + " is LOC: GPUDirect RDMA is off"}
	case f.dataDirect:
		return decision{maybe, "the distance of the NIC's data-direct function counts, which is not known"}
	case !known:
		return decision{maybe, "the distance is not known: the PCIe tree does not show the way"}
	case f.distance == affinity.P2C && g.Rule == "2.23" && env.c2c.Value > 0:
		return decision{maybe, "NCCL_NET_GDR_C2C exists from 2.26 on"}
	}
	return decision{no, fmt.Sprintf("distance %s is farther than %s, %s", p, limit, by)}
}

// ncclMethod is how NCCL would register: dma-buf if all have it, else peer memory.
func ncclMethod(g *Generation, f *pairFacts, env ncclSettings) decision {
	dmabuf := decision{no, "this NCCL has no dma-buf"}
	switch {
	case g.dmabuf && env.dmabuf.Known && env.dmabuf.Value == 0:
		dmabuf = decision{no, "NCCL_DMABUF_ENABLE is 0"}
	case g.dmabuf:
		dmabuf = byDMABuf(f.takesNCCL, f.exports)
	}
	return eitherMethod(dmabuf, byPeermem(g.detects, f))
}

// eitherMethod is yes if either method is, and no if neither.
func eitherMethod(dmabuf, peermem decision) decision {
	switch {
	case dmabuf.answer == yes:
		return dmabuf
	case peermem.answer == yes:
		return peermem
	case dmabuf.answer == maybe:
		return dmabuf
	case peermem.answer == maybe:
		return peermem
	}
	return decision{no, peermem.reason + "; " + dmabuf.reason}
}

// byDMABuf needs both ends.
func byDMABuf(takes, exports sysread.Maybe[bool]) decision {
	switch {
	case takes.Known && !takes.Value:
		return decision{no, "the NIC takes no dma-buf"}
	case exports.Known && !exports.Value:
		return decision{no, "the GPU exports no dma-buf"}
	case !takes.Known:
		return decision{maybe, "whether the NIC takes dma-bufs is not known before a measurement"}
	case !exports.Known:
		return decision{maybe, "whether the GPU exports dma-bufs is not known under this driver before a measurement"}
	}
	return decision{yes, "by dma-buf"}
}

// byPeermem needs one of the files of a rule of gpu/driver.
func byPeermem(detects string, f *pairFacts) decision {
	for i := range driver.Rules {
		rule := &driver.Rules[i]
		if rule.Library != detects {
			continue
		}
		for _, marker := range rule.AnyOf {
			if f.markers[marker].Value {
				return decision{yes, "by peer memory, told by /sys/" + string(marker) + "/version"}
			}
		}
		if !rule.Detects(f.markers).Known {
			return decision{maybe, "the files that tell of peer memory could not be looked for"}
		}
		return decision{no, "of the files that tell of peer memory it finds none (" + markerList(rule.AnyOf) + ")"}
	}
	return decision{maybe, "no rule " + detects}
}

func markerList(markers []driver.Marker) string {
	names := make([]string, len(markers))
	for i, marker := range markers {
		names[i] = strings.TrimPrefix(string(marker), "kernel/mm/")
	}
	return strings.Join(names, ", ")
}
