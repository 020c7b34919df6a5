package status

import (
	"fmt"
	"slices"
	"strings"
)

// driverSection shows the driver, peer memory and dma-buf.
func driverSection(doc *Document) pageSection {
	s := pageSection{ID: "driver", Title: "Driver, peer memory, dma-buf"}
	d := doc.Driver
	if d == nil {
		return s
	}
	s.say("NVIDIA driver", driverCell(d))
	if d.LibraryVersion != nil {
		c := textCell(*d.LibraryVersion)
		if d.Mismatch != nil && *d.Mismatch {
			c = lookCell(lookBad, *d.LibraryVersion+", another version than the loaded driver")
		}
		s.say("NVML library", c)
	}
	s.say("NVML", nvmlCell(d))
	for i := range d.Peermem {
		s.say(d.Peermem[i].Name, moduleCell(&d.Peermem[i]))
	}
	for i := range d.Clients {
		c := &d.Clients[i]
		text := "registered as a peer memory client"
		if c.Regions != nil {
			text += fmt.Sprintf(", %d memory regions now", *c.Regions)
		}
		s.say("Peer memory "+c.Name, textCell(text))
	}
	s.say("dma-buf", dmabufCell(doc, d))
	s.say("CUDA attributes", attributeCell(d))
	if d.TopologyAny != nil && *d.TopologyAny {
		s.say("Topology check", textCell("overridden: NICs may attach whatever the PCIe topology (GrdmaPciTopoCheckOverride)"))
	}
	if d.RDMAStack != nil {
		names := map[string]string{"ofed": "built out of the kernel's tree (MLNX_OFED, DOCA-OFED)", "inbox": "the kernel's own"}
		if text := names[*d.RDMAStack]; text != "" {
			s.say("RDMA stack", textCell(text))
		}
	}
	s.say("Kernel", optional(d.Kernel))
	if d.Lockdown != nil && *d.Lockdown != "none" {
		s.say("Lockdown", textCell(*d.Lockdown))
	}
	return s
}

func driverCell(d *DocDriver) cell {
	switch {
	case d.Loaded == nil:
		return cell{}
	case !*d.Loaded:
		return textCell("not loaded")
	}
	text := "loaded"
	if d.Version != nil {
		text = *d.Version
	}
	if d.Flavor != nil {
		text += ", " + *d.Flavor + " kernel modules"
	}
	return textCell(text)
}

func nvmlCell(d *DocDriver) cell {
	switch {
	case d.NVMLStuck != nil:
		return lookCell(lookBad, fmt.Sprintf("%s has not returned for %s", d.NVMLStuck.Call, age(seconds(d.NVMLStuck.Seconds))))
	case d.NVML == nil:
		return cell{}
	case *d.NVML == "up":
		return lookCell(lookGood, "answers")
	}
	text := strings.ReplaceAll(*d.NVML, "_", " ")
	if d.NVMLError != nil {
		text += ": " + *d.NVMLError
	}
	return textCell(text)
}

func moduleCell(m *DocModule) cell {
	if m.Loaded == nil {
		return lookCell(lookOpen, "not known whether it is loaded")
	}
	if !*m.Loaded {
		text := "not loaded"
		if m.OnDisk != nil {
			text = map[bool]string{true: "not loaded, but installed for this kernel", false: "not loaded, and not installed for this kernel"}[*m.OnDisk]
		}
		return textCell(text)
	}
	parts := []string{"loaded"}
	if m.Version != nil {
		parts = append(parts, "version "+*m.Version)
	}
	if m.References != nil {
		parts = append(parts, plural(int(min(*m.References, 1<<30)), "reference"))
	}
	c := lookCell(lookGood, strings.Join(parts, ", "))
	if m.Hooked != nil && !*m.Hooked {
		c.Look, c.Text = lookWarn, c.Text+", not connected to the RDMA stack that is running"
	}
	return c
}

func dmabufCell(doc *Document, d *DocDriver) cell {
	switch {
	case d.DMABufsError != nil:
		return lookCell(lookOpen, fmt.Sprintf("not seen (%s): it needs root and debugfs", *d.DMABufsError))
	case d.DMABufs == nil:
		return cell{}
	case *d.DMABufs == 0:
		return textCell("no buffer of GPU memory is exported now" + readAgo(doc, d))
	}
	return textCell(fmt.Sprintf("%s of GPU memory exported now, %s%s", plural(*d.DMABufs, "buffer"), sizeText(*d.DMABufBytes), readAgo(doc, d)))
}

func readAgo(doc *Document, d *DocDriver) string {
	if d.DMABufsRead == nil {
		return ""
	}
	return fmt.Sprintf(" (read %s ago)", age(doc.Taken.Sub(*d.DMABufsRead)))
}

// attributeCell is what CUDA says of the GPUs, where it was asked.
func attributeCell(d *DocDriver) cell {
	if len(d.Attributes) == 0 {
		return cell{}
	}
	rdma, dmabuf := 0, 0
	for i := range d.Attributes {
		if d.Attributes[i].GPUDirectRDMA {
			rdma++
		}
		if d.Attributes[i].DMABuf {
			dmabuf++
		}
	}
	n := len(d.Attributes)
	return textCell(fmt.Sprintf("%d of %s claim GPUDirect RDMA, %d dma-buf", rdma, plural(n, "GPU"), dmabuf))
}

// hostSection shows how the host is wired.
func hostSection(doc *Document) pageSection {
	s := pageSection{ID: "host", Title: "Host wiring"}
	h := doc.Host
	if h == nil {
		return s
	}
	if h.Product != nil {
		name := *h.Product
		if h.Vendor != nil {
			name = *h.Vendor + " " + name
		}
		s.say("Machine", textCell(name))
	}
	s.say("Device nodes", nodesCell(h.Nodes))
	if h.IOMMU != nil {
		text := "none"
		if len(h.IOMMU) > 0 {
			text = plural(len(h.IOMMU), "unit") + ": " + strings.Join(h.IOMMU, " ")
		}
		s.say("IOMMU", textCell(text))
	}
	if h.SharedRDMA != nil && !*h.SharedRDMA {
		s.say("RDMA namespaces", textCell("each device is in one network namespace: those of pods are not seen here"))
	}
	for i := range h.Daemons {
		d := &h.Daemons[i]
		limit := "not known"
		if d.Memlock != nil {
			limit = *d.Memlock
		}
		s.say(fmt.Sprintf("Locked memory of %s", d.Name), textCell(fmt.Sprintf("%s (pid %d)", limit, d.PID)))
	}
	for i := range h.Interfaces {
		n := &h.Interfaces[i]
		text := fmt.Sprintf("addresses: %d IPv4, %d IPv6", n.IPv4, n.IPv6)
		if n.Up != nil {
			text = map[bool]string{true: "up, ", false: "down, "}[*n.Up] + text
		}
		s.say("Interface "+n.Name, textCell(text))
	}
	return s
}

// nodesCell says which device nodes are missing or not for this process.
func nodesCell(nodes []DocNode) cell {
	if len(nodes) == 0 {
		return cell{}
	}
	var missing, denied []string
	for i := range nodes {
		switch n := &nodes[i]; {
		case !n.Present:
			missing = append(missing, n.Name)
		case n.Usable != nil && !*n.Usable:
			denied = append(denied, n.Name)
		}
	}
	text := plural(len(nodes), "node") + " in /dev/infiniband"
	if len(missing)+len(denied) == 0 {
		return lookCell(lookGood, text)
	}
	if slices.Sort(missing); len(missing) > 0 {
		text += "; missing: " + strings.Join(missing, " ")
	}
	if slices.Sort(denied); len(denied) > 0 {
		text += "; not for this process: " + strings.Join(denied, " ")
	}
	return lookCell(lookWarn, text)
}
