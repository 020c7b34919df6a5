package rdmatest

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// function adds a PCI function with the bridge above it (drivers/pci/pci-sysfs.c). Several RDMA devices may share one function.
func (t *Tree) function(m model, o Options, dir string) {
	bridge := path.Dir(dir)
	if strings.Contains(path.Base(bridge), ".") {
		t.bridge(bridge)
	}
	t.pciFiles(dir, map[string]string{
		"vendor": m.vendor, "device": m.device, "class": m.class, "revision": "0x00",
		"subsystem_vendor": m.vendor, "subsystem_device": "0x0041",
		"current_link_speed": m.linkSpeed, "max_link_speed": m.linkSpeed, "current_link_width": m.linkWidth, "max_link_width": m.linkWidth,
		"irq": strconv.Itoa(32 + o.Ordinal),
	})
	t.aer(dir, o.Ordinal)
	t.bind(dir, "pci", m.driver)
	if m.vf {
		t.virtual(dir, o)
		return
	}
	t.File(path.Join(dir, "sriov_totalvfs"), "16\n")
	t.File(path.Join(dir, "sriov_numvfs"), "0\n")
}

// virtual turns a function into a VF: no useful link, physfn to the physical function and virtfnN back.
func (t *Tree) virtual(dir string, o Options) {
	t.File(path.Join(dir, "current_link_speed"), "Unknown\n")
	t.File(path.Join(dir, "max_link_speed"), "Unknown\n")
	t.File(path.Join(dir, "current_link_width"), "0\n")
	t.File(path.Join(dir, "max_link_width"), "255\n")
	if o.PhysFn == "" {
		return
	}
	pf := path.Join("sys/devices", o.Upstream, o.PhysFn)
	t.Symlink(path.Join(dir, "physfn"), "../"+o.PhysFn)
	if _, ok := t.Real(pf); !ok {
		return
	}
	n := 0
	for _, name := range t.List(pf) {
		if strings.HasPrefix(name, "virtfn") {
			n++
		}
	}
	t.Symlink(path.Join(pf, fmt.Sprintf("virtfn%d", n)), "../"+o.PCIAddress)
	t.File(path.Join(pf, "sriov_numvfs"), fmt.Sprintf("%d\n", n+1))
}

func (t *Tree) bridge(dir string) {
	if _, ok := t.nodes[path.Join(dir, "class")]; ok {
		return
	}
	if strings.Contains(path.Base(path.Dir(dir)), ".") {
		t.bridge(path.Dir(dir))
	}
	t.pciFiles(dir, map[string]string{
		"vendor": "0x8086", "device": "0x352a", "class": "0x060400", "revision": "0x30", "subsystem_vendor": "0x8086",
		"subsystem_device": "0x0000", "current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe", "current_link_width": "16",
		"max_link_width": "16", "irq": "24",
	})
	t.bind(dir, "pci", "pcieport")
}

// pciFiles adds what every PCIe function has.
func (t *Tree) pciFiles(dir string, files map[string]string) {
	node, cpus := "0", "0-55"
	if bus := strings.Split(path.Base(dir), ":"); len(bus) > 1 && bus[1] >= "80" {
		node, cpus = "1", "56-111"
	}
	for name, content := range map[string]string{
		"numa_node": node, "local_cpulist": cpus, "power_state": "D0", "enable": "1", "d3cold_allowed": "1", "power/runtime_status": "active",
	} {
		t.File(path.Join(dir, name), content+"\n")
	}
	for name, content := range files {
		t.File(path.Join(dir, name), content+"\n")
	}
	t.link(path.Join("sys/bus/pci/devices", path.Base(dir)), dir)
	t.link(path.Join(dir, "subsystem"), "sys/bus/pci")
}

// aer adds the error counters of a function whose kernel owns AER.
func (t *Tree) aer(dir string, ordinal int) {
	t.File(path.Join(dir, "aer_dev_correctable"), fmt.Sprintf("RxErr %d\nBadTLP %d\nBadDLLP 0\nRollover 0\nTimeout 0\nNonFatalErr 0\n"+
		"CorrIntErr 0\nHeaderOF 0\nTOTAL_ERR_COR %d\n", ordinal+3, ordinal+1, 2*ordinal+4))
	t.File(path.Join(dir, "aer_dev_nonfatal"), uncorrectable+"TOTAL_ERR_NONFATAL 0\n")
	t.File(path.Join(dir, "aer_dev_fatal"), uncorrectable+"TOTAL_ERR_FATAL 0\n")
}

const uncorrectable = "Undefined 0\nDLP 0\nSDES 0\nTLP 0\nFCP 0\nCmpltTO 0\nCmpltAbrt 0\nUnxCmplt 0\nRxOF 0\nMalfTLP 0\nECRC 0\nUnsupReq 0\n" +
	"ACSViol 0\nUncorrIntErr 0\nBlockedTLP 0\nAtomicOpBlocked 0\nTLPBlockedErr 0\nPoisonTLPBlocked 0\n"

// bind links a device and its driver, and the driver's module.
func (t *Tree) bind(dir, bus, driver string) {
	at := path.Join("sys/bus", bus, "drivers", driver)
	t.link(path.Join(dir, "driver"), at)
	t.link(path.Join(at, path.Base(dir)), dir)
	if driver == "pcieport" {
		return
	}
	module, _, _ := strings.Cut(driver, ".")
	t.link(path.Join(at, "module"), path.Join("sys/module", module))
	t.File(path.Join("sys/module", module, "initstate"), "live\n")
	t.File(path.Join("sys/module", module, "refcnt"), "1\n")
}
