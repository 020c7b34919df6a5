package diagnosis

import (
	"strconv"
	"strings"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// hostFacts are what libraries ask of a host.
type hostFacts struct {
	snapshot *snapshot.Snapshot
	driver   *driver.Reading  // nil: not known
	nvml     *gpu.Reading     // nil: NVML does not answer
	ledger   *loopback.Ledger // nil: not known
	// branch is the driver's ("580.95.05" is 580), 0 not known.
	branch int
}

// pairFacts are what libraries ask of a pair.
type pairFacts struct {
	markers  map[driver.Marker]sysread.Maybe[bool]
	distance affinity.Distance
	driver   string // of the RDMA device
	device   string
	branch   int // of the NVIDIA driver; 0 not known
	// dataDirect: the NIC has, or may have, another function next to the GPU for
	// its payload, whose distance counts.
	dataDirect bool
	// direct and exports are CUDA's attributes 116 and 124 of the GPU, firstExports
	// the latter of the first GPU.
	direct, exports, firstExports sysread.Maybe[bool]
	// takesNCCL and takesUCX are whether the NIC takes dma-bufs, as each of them
	// reads the answer to a registration without a buffer.
	takesNCCL, takesUCX sysread.Maybe[bool]
	// capability is the GPU's compute capability times 10, 0 not known.
	capability int
	// linked: the GPU has an NVLink to another, or is the only one.
	linked sysread.Maybe[bool]
}

func hostFactsOf(s *snapshot.Snapshot) *hostFacts {
	h := &hostFacts{snapshot: s, driver: s.DriverState(), ledger: s.ProbeLedger()}
	if nvml := s.NVML(); nvml != nil && nvml.State == gpu.StateUp {
		h.nvml = nvml
	}
	if h.driver != nil && h.driver.Version.Known {
		branch, _, _ := strings.Cut(h.driver.Version.Value, ".")
		h.branch, _ = strconv.Atoi(branch)
	}
	return h
}

// pair gathers what is known of a pair.
func (h *hostFacts) pair(address, device string) *pairFacts {
	f := &pairFacts{device: device, branch: h.branch}
	if h.driver != nil {
		f.markers = h.driver.Markers
	}
	h.place(f, address)
	h.attributes(f, address)
	h.nic(f)
	if g := h.gpu(address); g != nil {
		f.capability = capability(g.ComputeCapability)
		f.linked = linked(h.nvml, g)
	}
	return f
}

// place finds the pair in the tree.
func (h *hostFacts) place(f *pairFacts, address string) {
	if h.snapshot.Affinity == nil {
		return
	}
	listing := &h.snapshot.Affinity.Listing
	for i := range listing.Pairs {
		pair := &listing.Pairs[i]
		if pair.GPU != address || pair.Device != f.device {
			continue
		}
		f.distance = pair.Distance
		for j := range listing.Functions {
			if node := &listing.Functions[j]; node.Address == pair.NIC {
				f.dataDirect = node.DataDirect
			}
		}
	}
}

func (h *hostFacts) gpu(address string) *gpu.GPU {
	for i := range h.gpus() {
		if h.nvml.GPUs[i].Address == address {
			return &h.nvml.GPUs[i]
		}
	}
	return nil
}

func (h *hostFacts) gpus() []gpu.GPU {
	if h.nvml == nil {
		return nil
	}
	return h.nvml.GPUs
}

// CUDA 11.3 and 11.7, which brought the attributes, came with these branches of
// the driver.
const (
	branchDirectAttribute = 465
	branchDMABuf          = 515
)

// attributes fills in what CUDA says of the GPU, which takes a run to learn.
func (h *hostFacts) attributes(f *pairFacts, address string) {
	f.direct, f.exports = h.attributesOf(address)
	f.firstExports = f.exports
	if gpus := h.gpus(); len(gpus) > 0 && gpus[0].Address != address {
		_, f.firstExports = h.attributesOf(gpus[0].Address)
	}
	if h.branch > 0 && h.branch < branchDMABuf {
		f.exports, f.firstExports = sysread.Some(false), sysread.Some(false)
	}
}

// attributesOf returns the attributes of a GPU under the driver that is loaded:
// those that the ledger has, which does not outlive a boot, else a run's.
func (h *hostFacts) attributesOf(address string) (direct, exports sysread.Maybe[bool]) {
	if h.driver == nil || !h.driver.Version.Known {
		return direct, exports
	}
	version := h.driver.Version.Value
	if h.ledger != nil {
		if g, known := h.ledger.GPUs[address]; known && g.DriverVersion == version {
			return sysread.Some(g.GPUDirectRDMA), sysread.Some(g.DMABuf)
		}
	}
	var newest time.Time
	h.runs(func(pair *prober.PairStatus, c *prober.Completed) {
		found := &c.Result.GPU
		if pair.GPU == address && found.Known && c.Identity.Driver == version && c.Time.After(newest) {
			newest = c.Time
			direct, exports = sysread.Some(found.Value.GPUDirectRDMA), sysread.Some(found.Value.DMABuf)
		}
	})
	return direct, exports
}

// runs goes over the runs whose results stand.
func (h *hostFacts) runs(visit func(*prober.PairStatus, *prober.Completed)) {
	if h.snapshot.Prober == nil {
		return
	}
	for i := range h.snapshot.Prober.Pairs {
		pair := &h.snapshot.Prober.Pairs[i]
		for _, c := range [...]*prober.Completed{pair.Full, pair.Registration} {
			if c != nil {
				visit(pair, c)
			}
		}
	}
}

// nic fills in what runs learnt of the RDMA device under its firmware and the
// kernel that runs, whichever GPU they were of.
func (h *hostFacts) nic(f *pairFacts) {
	device := deviceOf(h.snapshot, f.device)
	if device != nil {
		f.driver = device.Driver
	}
	var newest time.Time
	h.runs(func(pair *prober.PairStatus, c *prober.Completed) {
		if pair.Device != f.device || !c.Time.After(newest) || h.outdated(device, &c.Identity) {
			return
		}
		r := &c.Result
		if r.DataDirect.Value {
			f.dataDirect = true
		}
		if !r.NICDMABuf.Known && r.NICDMABufErr == nil {
			return
		}
		newest = c.Time
		f.takesNCCL, f.takesUCX = r.NICDMABuf, r.NICDMABuf
		if !r.NICDMABuf.Known {
			// Neither "bad descriptor" nor "not supported": NCCL takes any other
			// error for a yes, UCX for a no.
			f.takesNCCL, f.takesUCX = sysread.Some(true), sysread.Some(false)
		}
	})
}

// outdated reports whether a run was made with other firmware or another kernel,
// or before the device was replaced.
func (h *hostFacts) outdated(device *rdma.Device, identity *prober.Identity) bool {
	differ := func(a, b string) bool { return a != "" && b != "" && a != b }
	if h.driver != nil && differ(h.driver.Kernel.Value, identity.Kernel) {
		return true
	}
	return device != nil && (differ(device.Firmware, identity.Firmware) || differ(device.NodeGUID, identity.NodeGUID))
}

// deviceOf returns an RDMA device, nil if it is not there or does not answer.
func deviceOf(s *snapshot.Snapshot, name string) *rdma.Device {
	if s.RDMA == nil {
		return nil
	}
	for i := range s.RDMA.Units {
		if s.RDMA.Units[i].Name == name {
			return s.RDMA.Units[i].Data
		}
	}
	return nil
}

// capability reads "9.0" as 90; 0 is not known.
func capability(text string) int {
	major, minor, found := strings.Cut(text, ".")
	a, err := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	if !found || err != nil || err2 != nil {
		return 0
	}
	return a*10 + b
}

// linked tells whether NCCL sees an NVLink from a GPU to another one, or no other
// GPU that it could keep busy. A job may see fewer GPUs than the host has.
func linked(nvml *gpu.Reading, g *gpu.GPU) sysread.Maybe[bool] {
	if len(nvml.GPUs) == 1 && nvml.Hidden == 0 {
		return sysread.Some(true)
	}
	if g.NVLink.Active.Known {
		return sysread.Some(g.NVLink.Active.Value > 0)
	}
	// Nothing at all is known of the NVLinks of a GPU without any.
	return sysread.Maybe[bool]{Known: !g.NVLink.Count.Known && len(g.NVLink.Links) == 0}
}
