package collector

import (
	"fmt"
	"strconv"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/affinity"
)

// Families of the PCI functions on the paths between GPUs and compute NICs.
var (
	pcieInfo = gauge("gdr_pcie_function_info",
		"Facts about a PCI function on the way between a GPU and the compute NICs nearest to it, value 1: kind (gpu, nic, bridge, data_direct), driver, vendor, device_id, "+
			"bridge above (upstream), numa_node, iommu_group, iommu_type (identity, DMA, DMA-FQ, ...), ACS control bits that are set by lspci's names (acs: also none, unknown), "+
			"port_type, physical_function of a virtual one, and data_direct: yes for a ConnectX-8 on a host with data-direct functions."+pcieNote)
	pcieSpeed = gauge("gdr_pcie_link_speed_transfers_per_second",
		"Speed of the PCIe link above the function now (current_link_speed; 32e9 is 32 GT/s). Some GPUs lower it while idle. "+
			"Only of functions at the lower end of a link: both ends show the same."+pcieNote)
	pcieWidth = gauge("gdr_pcie_link_width_lanes",
		"Width of the PCIe link above the function now (current_link_width)."+pcieNote)
	pciePossibleSpeed = gauge("gdr_pcie_link_possible_speed_transfers_per_second",
		"Speed that both ends of the PCIe link above the function can do (the lesser max_link_speed)."+pcieNote)
	pciePossibleWidth = gauge("gdr_pcie_link_possible_width_lanes",
		"Width that both ends of the PCIe link above the function can do (the lesser max_link_width)."+pcieNote)
	pcieErrors = counter("gdr_pcie_aer_errors_total",
		"PCIe errors by severity (correctable, nonfatal, fatal) since boot: TOTAL_ERR_* in aer_dev_*. Of both ends of each link on the way; "+
			"absent where the firmware handles errors rather than the kernel."+pcieNote)
	pcieErrorsByType = counter("gdr_pcie_aer_errors_by_type_total",
		"PCIe errors by severity and type (BadTLP, Timeout, ...) since boot. Types that did not occur have no series."+pcieNote)
	pciePower = gauge("gdr_pcie_power_state_id",
		"Power state of a GPU or NIC (power_state): 0 D0, 1 D1, 2 D2, 3 D3hot, 4 D3cold, 5 unknown (no driver) or error, "+
			"6 it does not answer: its configuration space reads all ones, as of a GPU that has fallen off the bus.")
	pcieRedirect = gauge("gdr_pcie_acs_redirect",
		"1 if ACS in a bridge redirects requests or completions to the root complex. Of bridges with ACS that could be read."+pcieNote)
	pcieMaxPayload = gauge("gdr_pcie_max_payload_bytes",
		"Largest payload of a packet that a GPU or NIC may send (Device Control)."+pcieNote)
	pcieMaxRead = gauge("gdr_pcie_max_read_request_bytes",
		"Largest read request that a NIC may send (Device Control): it reads GPU memory with these."+pcieNote)
	pcieRelaxed = gauge("gdr_pcie_relaxed_ordering_enabled",
		"1 if a NIC may send packets with relaxed ordering (Device Control), 0 if not."+pcieNote)
	pcieATS = gauge("gdr_pcie_ats_enabled",
		"1 if a NIC's address translation service is enabled, 0 if not. Absent without the capability, as in a ConnectX with ATS_ENABLED=0."+pcieNote)
	pcieReadable = gauge("gdr_pcie_config_readable",
		"1 if the whole PCI configuration space can be read, 0 if not (needs CAP_SYS_ADMIN): ACS, ATS, payload, read request and relaxed ordering are then not known."+pcieNote)
)

// showPCIe shows the PCI functions on the paths between GPUs and compute NICs.
func showPCIe(p *page, s *snapshot.Snapshot) {
	part := s.Affinity
	if part == nil || part.Err != nil {
		return
	}
	functions := snapshot.Functions(part)
	read := make(map[string]bool, len(part.Units))
	for _, unit := range part.Units {
		read[unit.Name] = true
	}
	ways := below(part.Listing.Pairs)
	readable := sysread.Maybe[bool]{}
	for i := range part.Listing.Functions {
		node := &part.Listing.Functions[i]
		if !read[node.Address] {
			continue
		}
		f := functions[node.Address]
		showPCIeInfo(p, node, f)
		if f != nil {
			showFunction(p, f, ways[node.Address])
			readable = sysread.Maybe[bool]{Value: readable.Value || f.ConfigReadable.Value, Known: readable.Known || f.ConfigReadable.Known}
		}
	}
	if readable.Known {
		p.addBool(pcieReadable, readable.Value, nil)
	}
}

// showPCIeInfo shows a function's facts; f is nil if it does not answer.
func showPCIeInfo(p *page, node *affinity.Node, f *affinity.Function) {
	acs, portType, numa, dataDirect := "unknown", "", "", ""
	if f != nil {
		acs, portType = f.Config.ACSText(), portTypes[f.Config.PortType]
	}
	if node.NUMANode.Known {
		numa = strconv.Itoa(node.NUMANode.Value)
	}
	if node.DataDirect {
		dataDirect = "yes"
	}
	p.add(pcieInfo, 1, pairs(
		"address", node.Address, "kind", string(node.Kind), "driver", node.Driver, "vendor", hexID(node.Vendor), "device_id", hexID(node.Device),
		"upstream", node.Upstream, "numa_node", numa, "iommu_group", node.IOMMUGroup, "iommu_type", node.IOMMUType, "acs", acs,
		"port_type", portType, "physical_function", node.PhysicalFunction, "data_direct", dataDirect,
	))
}

// hexID writes a PCI id as sysfs does, "" if it is not known.
func hexID(id uint64) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("%#04x", id)
}

// portTypes are the kinds of PCIe function (PCI Express Base, PCI Express
// capabilities register).
var portTypes = map[sysread.Maybe[int]]string{
	sysread.Some(0): "endpoint", sysread.Some(1): "legacy_endpoint", sysread.Some(4): "root_port", sysread.Some(5): "upstream_port",
	sysread.Some(6): "downstream_port", sysread.Some(7): "pcie_to_pci_bridge", sysread.Some(8): "pci_to_pcie_bridge",
	sysread.Some(9): "root_complex_endpoint", sysread.Some(10): "root_complex_event_collector",
}

// showFunction shows what was read of a function. A switch's upstream port that
// is the common bridge of all paths through it (onWay is false) is at no end of
// any link on the way: neither its link nor its errors matter.
func showFunction(p *page, f *affinity.Function, onWay bool) {
	at := pairs("address", f.Address)
	if f.Kind != affinity.KindBridge {
		onWay = true
	}
	if f.Link.Lower && onWay {
		showPCIeLink(p, &f.Link, at)
	}
	if f.AER != nil && (!f.Link.Lower || onWay) {
		showAER(p, f.AER, at)
	}
	switch f.Kind {
	case affinity.KindBridge:
		if f.Config.ACS.Known {
			p.addBool(pcieRedirect, f.Config.Redirects().Value, at)
		}
	case affinity.KindGPU, affinity.KindNIC:
		showPower(p, f, at)
		showConfig(p, f, at)
	}
}

// below returns the bridges below the common one on some way between a GPU and
// a NIC nearest to it.
func below(all []affinity.Pair) map[string]bool {
	ways := map[string]bool{}
	for i := range all {
		if !all[i].Nearest {
			continue
		}
		for _, side := range [][]string{all[i].GPUSide, all[i].NICSide} {
			for _, address := range side {
				ways[address] = true
			}
		}
	}
	return ways
}

func showPCIeLink(p *page, link *affinity.Link, at labels) {
	const giga = 1e9
	if link.Speed.Known {
		p.add(pcieSpeed, link.Speed.Value*giga, at)
	}
	if link.Width.Known {
		p.add(pcieWidth, float64(link.Width.Value), at)
	}
	if link.PossibleSpeed.Known {
		p.add(pciePossibleSpeed, link.PossibleSpeed.Value*giga, at)
	}
	if link.PossibleWidth.Known {
		p.add(pciePossibleWidth, float64(link.PossibleWidth.Value), at)
	}
}

func showAER(p *page, aer *affinity.AER, at labels) {
	for _, severity := range []struct {
		name   string
		counts *affinity.AERCounts
	}{{"correctable", &aer.Correctable}, {"nonfatal", &aer.NonFatal}, {"fatal", &aer.Fatal}} {
		of := at.with("severity", severity.name)
		if severity.counts.Total.Known {
			p.add(pcieErrors, float64(severity.counts.Total.Value), of)
		}
		seen := map[string]bool{}
		for _, one := range severity.counts.Types {
			if kind := printable(one.Type); one.Count > 0 && !seen[kind] {
				seen[kind] = true
				p.add(pcieErrorsByType, float64(one.Count), of.with("type", one.Type))
			}
		}
	}
}

// powerStates are the numbers of gdr_pcie_power_state_id.
var powerStates = map[string]float64{"D0": 0, "D1": 1, "D2": 2, "D3hot": 3, "D3cold": 4, "unknown": 5, "error": 5}

// powerLost is the number for a function that does not answer.
const powerLost = 6

func showPower(p *page, f *affinity.Function, at labels) {
	switch {
	case f.Answers.Known && !f.Answers.Value:
		p.add(pciePower, powerLost, at)
	case f.Power.Known:
		p.add(pciePower, powerStates[f.Power.Value], at)
	}
}

// showConfig shows what the configuration space says. A NIC sends the requests
// of GPUDirect RDMA; of the GPU the payload matters alone, for its answers.
func showConfig(p *page, f *affinity.Function, at labels) {
	c := &f.Config
	if c.MaxPayload.Known {
		p.add(pcieMaxPayload, float64(c.MaxPayload.Value), at)
	}
	if f.Kind != affinity.KindNIC {
		return
	}
	if c.MaxReadRequest.Known {
		p.add(pcieMaxRead, float64(c.MaxReadRequest.Value), at)
	}
	if c.RelaxedOrdering.Known {
		p.addBool(pcieRelaxed, c.RelaxedOrdering.Value, at)
	}
	if c.ATS.Known {
		p.addBool(pcieATS, c.ATS.Value, at)
	}
}
