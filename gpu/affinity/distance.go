package affinity

import (
	"slices"
	"strings"

	"gdr_exporter/collector/sysread"
)

// endpoint is what the distance to a function depends on.
type endpoint struct {
	place
	numa sysread.Maybe[int]
	// hidden: a virtual machine does not show where the function really is.
	hidden bool
}

// emulatedVendors make the bridges of virtual machines only. What is above
// them, or beside them, is not the host's tree.
var emulatedVendors = map[uint64]bool{
	0x1b36: true, // QEMU: pcie-root-port, pci-bridge, pxb
	0x15ad: true, // VMware
	0x1414: true, // Microsoft Hyper-V
	0x1d0f: true, // Amazon
	0x1ae0: true, // Google
}

// path is the way between two functions.
type path struct {
	distance         Distance
	common           string
	gpuSide, nicSide []string // from the function up
}

// between returns the path between a GPU and a NIC, by the classes of
// nvidia-smi topo -m:
//
//   - below a common bridge: PIX if there is at most one bridge below it on each
//     side, else PXB;
//   - below one host bridge without a common bridge: PHB;
//   - below several: NODE if both have the same NUMA node, SYS if not, unknown
//     if either has none.
//
// A common bridge is a fact in a virtual machine too: whoever made the bridge up
// meant it. Any other class follows from what is not in common, which proves
// nothing where the tree is hidden.
func between(gpu, nic *endpoint) path {
	shared := 0
	same := gpu.hostBridge == nic.hostBridge
	for same && shared < min(len(gpu.bridges), len(nic.bridges)) && gpu.bridges[shared] == nic.bridges[shared] {
		shared++
	}
	p := path{gpuSide: upwards(gpu.bridges[shared:]), nicSide: upwards(nic.bridges[shared:])}
	switch {
	case shared > 0:
		p.common, p.distance = gpu.bridges[shared-1], PXB
		if len(p.gpuSide) <= 1 && len(p.nicSide) <= 1 {
			p.distance = PIX
		}
	case same && len(gpu.bridges)+len(nic.bridges) == 0 && slot(gpu.address) == slot(nic.address):
		p.distance = PIX // functions of one device
	case gpu.hidden || nic.hidden || gpu.hostBridge == "" || nic.hostBridge == "":
	case same:
		p.distance = PHB
	case !gpu.numa.Known || !nic.numa.Known:
	case gpu.numa.Value == nic.numa.Value:
		p.distance = NODE
	default:
		p.distance = SYS
	}
	return p
}

func upwards(bridges []string) []string {
	up := slices.Clone(bridges)
	slices.Reverse(up)
	return up
}

// slot returns an address without its function number.
func slot(address string) string {
	slot, _, _ := strings.Cut(address, ".")
	return slot
}

// WithC2C returns the listing with P2C in place of PHB and NODE for the GPUs
// that reach the CPU over NVLink-C2C, which only NVML knows: their payload takes
// that way to the CPU and the CPU's PCIe to the NIC.
func (l *Listing) WithC2C(c2c func(gpu string) bool) Listing {
	changed := *l
	changed.Pairs = slices.Clone(l.Pairs)
	for i := range changed.Pairs {
		pair := &changed.Pairs[i]
		if (pair.Distance == PHB || pair.Distance == NODE) && c2c(pair.GPU) {
			pair.Distance = P2C
		}
	}
	return changed
}
