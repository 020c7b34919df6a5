package podresources

import (
	"regexp"
	"strconv"
	"strings"

	"gdr_exporter/collector/sysread"
)

// Kind says what an id names.
type Kind string

// Kinds of ids.
const (
	KindGPU  Kind = "gpu"  // a GPU, or a part of one
	KindPCI  Kind = "pci"  // a PCI function: a virtual function of a NIC, a GPU that is passed through
	KindRDMA Kind = "rdma" // an RDMA device by its name, or one of a shared pool that the id does not tell
)

// ID is what a device plugin or driver calls a device, as far as it tells which one
// that is. What it does not tell is empty.
type ID struct {
	Kind Kind
	// Text is the id less the number of a replica: the UUID of a GPU or MIG instance, a
	// PCI address, a name. "" for a number out of a shared pool.
	Text string
	// GPU is the UUID of the GPU, or of the one that a MIG instance is of.
	GPU string
	// MIG is the UUID of a MIG instance.
	MIG string
	// Minor is the number of /dev/nvidiaN.
	Minor sysread.Maybe[int]
	// Address is the PCI address as sysfs writes it.
	Address string
}

// Forms of ids, those of replicas aside.
var (
	uuid = `[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`
	// gpuUUID is what NVML calls a GPU.
	gpuUUID = regexp.MustCompile(`^GPU-` + uuid + `$`)
	// migUUID is what NVML calls a MIG instance since driver 470.
	migUUID = regexp.MustCompile(`^MIG-` + uuid + `$`)
	// oldMIG is what it called one before: GPU, GPU instance, compute instance.
	oldMIG = regexp.MustCompile(`^MIG-(GPU-` + uuid + `)/[0-9]+/[0-9]+$`)
	// node is GKE's form: the device node, and a GPU instance behind it.
	node = regexp.MustCompile(`^nvidia([0-9]{1,4})(/gi[0-9]{1,4})?$`)
	// canonical is the form of NVIDIA's driver for dynamic resource allocation: the
	// number of the device node, and where a MIG instance lies.
	canonical = regexp.MustCompile(`^gpu-([0-9]{1,4})(-mig-[0-9-]{1,32})?$`)
	// pci is a PCI address, as sysfs or NVML writes it, or with dashes as names of
	// dynamic resource allocation must have it (with pci- before it from DRANET).
	pci = regexp.MustCompile(`^(?:pci-)?(?:0000)?([0-9a-f]{4})[:-]([0-9a-f]{2})[:-]([01][0-9a-f])[.-]([0-7])$`)
)

// Separators of what is shared out in replicas, before the replica's number: time
// slicing and MPS of NVIDIA's device plugin, sharing of GKE's.
var separators = []string{"::", "/vgpu"}

// gpuDriver is NVIDIA's driver for dynamic resource allocation of GPUs.
const gpuDriver = "gpu.nvidia.com"

// parsePlugin makes an ID of a device plugin's id. ok is false for what is neither a
// GPU nor an RDMA device, as far as that shows.
func parsePlugin(resource, id string) (ID, bool) {
	for _, separator := range separators {
		id, _, _ = strings.Cut(id, separator)
	}
	if parsed, ok := parseCommon(id); ok {
		return parsed, true
	}
	if match := node.FindStringSubmatch(id); match != nil {
		return ofMinor(id, match[1]), true
	}
	if !namesRDMA(resource) {
		return ID{}, false
	}
	if strings.Trim(id, "0123456789") == "" {
		id = "" // one of a pool: tomorrow's is another, of the same device
	}
	return ID{Kind: KindRDMA, Text: id}, true
}

// parseDynamic makes an ID of a device of dynamic resource allocation. A CDI name may
// have the UUID that the device's own name lacks.
func parseDynamic(driver, device string, cdi []string) (ID, bool) {
	for _, name := range cdi {
		_, short, _ := strings.Cut(name, "=")
		if parsed, ok := parseCommon(short); ok && parsed.Kind == KindGPU {
			return parsed, true
		}
	}
	if parsed, ok := parseCommon(device); ok {
		return parsed, true
	}
	if driver == gpuDriver {
		if match := canonical.FindStringSubmatch(device); match != nil {
			return ofMinor(device, match[1]), true
		}
		return ID{Kind: KindGPU, Text: device}, device != ""
	}
	return ID{Kind: KindRDMA, Text: device}, namesRDMA(driver)
}

// parseCommon knows the forms that name one device wherever they stand.
func parseCommon(id string) (ID, bool) {
	switch match := oldMIG.FindStringSubmatch(id); {
	case match != nil:
		return ID{Kind: KindGPU, Text: id, GPU: match[1], MIG: id}, true
	case gpuUUID.MatchString(id):
		return ID{Kind: KindGPU, Text: id, GPU: id}, true
	case migUUID.MatchString(id):
		return ID{Kind: KindGPU, Text: id, MIG: id}, true
	}
	if match := pci.FindStringSubmatch(strings.ToLower(id)); match != nil {
		address := match[1] + ":" + match[2] + ":" + match[3] + "." + match[4]
		return ID{Kind: KindPCI, Text: address, Address: address}, true
	}
	return ID{}, false
}

// ofMinor is a GPU by the number of its device node, at most four digits.
func ofMinor(id, digits string) ID {
	minor, err := strconv.Atoi(digits)
	return ID{Kind: KindGPU, Text: id, Minor: sysread.Maybe[int]{Value: minor, Known: err == nil}}
}

// namesRDMA reports whether a resource is one of RDMA devices by its name, which the
// site chooses: rdma/hca_shared_devices_a, nvidia.com/rdma_ib, openshift.io/mlx_rdma.
func namesRDMA(resource string) bool {
	resource = strings.ToLower(resource)
	return strings.Contains(resource, "rdma") || strings.Contains(resource, "hca")
}

// RDMA reports whether the device's resource is one of RDMA devices by its name.
func (d *Device) RDMA() bool { return namesRDMA(d.Resource) }
