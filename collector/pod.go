package collector

import (
	"cmp"
	"slices"

	"gdr_exporter/collector/podresources"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/rdma"
)

// podNote tells how fresh what the kubelet says is.
const podNote = " Asked every 30 seconds, see gdr_pod_resources_timestamp_seconds."

// Families of what pods were given. The labels are not called pod, namespace and
// container: those are the exporter's own where Kubernetes' monitors scrape it.
var (
	podResourcesUp = gauge("gdr_pod_resources_up",
		"1 if the kubelet answered the last time that it was asked which pods have which devices, 0 if not: gdr_read_errors_total says why.")
	podResourcesTime = gauge("gdr_pod_resources_timestamp_seconds",
		"Unix time of the kubelet's last answer; absent unless gdr_pod_resources_up is 1.")
	podResourcesOmitted = gauge("gdr_pod_resources_omitted_devices",
		"Devices of pods beyond the 512 that are shown, or with names that no pod may have.")
	gpuPodInfo = gauge("gdr_gpu_pod_info",
		"A container that was given a GPU or a part of one, value 1 (kubelet, pod-resources). gpu_address is empty if nothing here tells which GPU the kubelet's device_id means. "+
			"resource: the device plugin's, or the driver of dynamic resource allocation."+podNote)
	rdmaPodInfo = gauge("gdr_rdma_device_pod_info",
		"A container that was given an RDMA device, value 1 (kubelet, pod-resources). device is empty if the id does not tell (shared pools) or the device is not visible here (given to the pod); device_id is then all that is known. "+
			"resource: the device plugin's, or the driver of dynamic resource allocation."+podNote)
)

// showPods shows which pods were given which devices. Their names are on these info
// series only, and on none of a measurement.
func showPods(p *page, s *snapshot.Snapshot) {
	r := s.PodState()
	if r == nil {
		return
	}
	addMaybe(p, podResourcesUp, r.Up, nil)
	if !r.Up.Value {
		return
	}
	p.add(podResourcesTime, float64(r.Answered.UnixMilli())/1000, nil)
	p.add(podResourcesOmitted, float64(r.Omitted), nil)
	v := podView{page: p, inventory: newInventory(s), shown: map[podSeries]bool{}}
	for i := range r.Devices {
		v.show(&r.Devices[i])
	}
}

// podSeries is a series of a pod: two ids of the kubelet's may mean the same.
type podSeries struct {
	family                      *family
	subject, id                 string
	namespace, pod, c, resource string
}

// podView shows the devices of pods.
type podView struct {
	*page
	*inventory
	shown map[podSeries]bool
}

// show shows one device: a GPU, an RDMA device, or nothing if it is neither, or if it
// cannot be known now which one it is.
func (v *podView) show(d *podresources.Device) {
	id := &d.ID
	switch address := v.gpuOf(id); {
	case address != "" || id.Kind == podresources.KindGPU && v.gpusKnown:
		v.info(gpuPodInfo, "gpu_address", address, d)
		return
	case id.Kind == podresources.KindGPU || !v.rdmaKnown:
		return
	}
	devices := v.rdmaOf(id)
	if len(devices) == 0 && d.RDMA() {
		devices = []string{""}
	}
	for _, device := range devices {
		v.info(rdmaPodInfo, "device", device, d)
	}
}

func (v *podView) info(f *family, label, subject string, d *podresources.Device) {
	series := podSeries{f, subject, d.ID.Text, d.Namespace, d.Pod, d.Container, d.Resource}
	if v.shown[series] {
		return
	}
	v.shown[series] = true
	v.add(f, 1, pairs(label, subject, "device_id", d.ID.Text, "resource", d.Resource,
		"pod_namespace", d.Namespace, "pod_name", d.Pod, "container_name", d.Container))
}

// inventory says which device is meant by what the kubelet calls it.
type inventory struct {
	// gpusKnown: NVML answers. Without it a UUID means some GPU, and which one may have
	// been known a moment ago. rdmaKnown: the RDMA devices are listed and answer.
	gpusKnown, rdmaKnown bool
	gpus                 map[string]string // addresses by address, UUID, UUID of a MIG instance
	minors               map[int]string    // addresses by number of the device node
	rdma                 map[string][]string
}

func newInventory(s *snapshot.Snapshot) *inventory {
	v := &inventory{gpus: map[string]string{}, minors: map[int]string{}, rdma: map[string][]string{}}
	m := s.GPUs()
	v.gpusKnown = m.NVML != nil
	for _, g := range m.All {
		v.gpus[g.Address] = g.Address
		if g.NVML == nil {
			continue
		}
		if g.NVML.Minor.Known {
			v.minors[g.NVML.Minor.Value] = g.Address
		}
		for _, uuid := range append([]string{g.NVML.UUID}, g.NVML.Instances...) {
			v.gpus[uuid] = g.Address
		}
	}
	delete(v.gpus, "") // a UUID that could not be read
	v.addRDMA(s)
	return v
}

// addRDMA adds the RDMA devices by name and by PCI address. Sub-functions are not what
// an address means, nor planes of a device. Of a device that hangs the PCIe tree may
// know the address.
func (v *inventory) addRDMA(s *snapshot.Snapshot) {
	if s.RDMA == nil || s.RDMA.Err != nil {
		return
	}
	v.rdmaKnown = true
	for i := range s.RDMA.Units {
		unit := &s.RDMA.Units[i]
		v.rdma[unit.Name] = []string{unit.Name}
		d := unit.Data
		if d == nil || d.Plane() || d.Function == rdma.FunctionSub || d.PCIAddress == "" {
			continue
		}
		v.rdma[d.PCIAddress] = append(v.rdma[d.PCIAddress], unit.Name)
	}
	v.addTree(s.Affinity)
}

func (v *inventory) addTree(part *snapshot.AffinityPart) {
	if part == nil || part.Err != nil {
		return
	}
	for i := range part.Listing.Functions {
		node := &part.Listing.Functions[i]
		if node.Kind == affinity.KindNIC && len(v.rdma[node.Address]) == 0 && len(node.RDMA) > 0 {
			v.rdma[node.Address] = slices.Clone(node.RDMA)
		}
	}
}

// gpuOf is the address of the GPU that an id means, "" if it is none or not known.
func (v *inventory) gpuOf(id *podresources.ID) string {
	address := ""
	if id.Minor.Known {
		address = v.minors[id.Minor.Value]
	}
	return cmp.Or(address, v.gpus[id.Address], v.gpus[id.MIG], v.gpus[id.GPU])
}

// rdmaOf are the RDMA devices that an id means.
func (v *inventory) rdmaOf(id *podresources.ID) []string {
	if id.Address != "" {
		return v.rdma[id.Address]
	}
	return v.rdma[id.Text]
}
