// Package drivertest builds the files in which a host shows the NVIDIA driver,
// its peer memory module and the RDMA stack, for tests of the reader and of the
// views.
package drivertest

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma/rdmatest"
)

// Names and versions of the usual host.
const (
	Release = "6.8.0-60-generic"
	Version = "580.95.05"
	GPU     = "0000:3b:00.0"
	// Container is the directory of a tree that is a driver container's root,
	// as gpu-operator mounts it at /run/nvidia/driver.
	Container = "run/nvidia/driver"
)

// Places in a tree.
const (
	Modules     = "sys/module/"
	MemoryPeers = "sys/kernel/mm/memory_peers/"
	Params      = "proc/driver/nvidia/params"
	Lockdown    = "sys/kernel/security/lockdown"
	DepFile     = "lib/modules/" + Release + "/modules.dep"
)

// Host is a tree under construction.
type Host struct{ *rdmatest.Tree }

// New returns a host without the NVIDIA driver.
func New() Host {
	h := Host{rdmatest.New()}
	h.File("proc/sys/kernel/osrelease", Release+"\n")
	h.File(Lockdown, "[none] integrity confidentiality\n")
	h.Dir("sys/kernel/mm")
	h.Dir("sys/module")
	h.Dep("", "kernel/net/core/pktgen.ko.zst", "kernel/drivers/infiniband/core/ib_core.ko.zst")
	return h
}

// Options are those of a reader of the tree, once it is written to dir.
func Options(dir string) driver.Options {
	return driver.Options{
		Sysfs: filepath.Join(dir, "sys"), Procfs: filepath.Join(dir, "proc"),
		Roots: []string{dir, filepath.Join(dir, Container)}, SlowInterval: time.Minute,
	}
}

// Dep writes the list of modules of the running kernel below a root.
func (h Host) Dep(root string, files ...string) {
	text := ""
	for _, file := range files {
		text += file + ": kernel/lib/something.ko.zst\n"
	}
	h.File(filepath.Join(root, DepFile), text)
}

// Module adds a module in a state; an empty version is none.
func (h Host) Module(name, version, state string) {
	dir := Modules + name + "/"
	h.File(dir+"initstate", state+"\n")
	h.File(dir+"refcnt", "0\n")
	h.File(dir+"taint", "\n")
	h.File(dir+"srcversion", "5A3E4E4D8A1C2B3D4E5F607\n")
	h.Dir(dir + "holders")
	if version != "" {
		h.File(dir+"version", version+"\n")
	}
	list, _ := h.Content(moduleList)
	h.File(moduleList, list+name+" 16384 0 - Live 0x0000000000000000 (OE)\n")
}

const moduleList = "proc/modules"

// Unload removes a module.
func (h Host) Unload(name string) {
	h.Remove(Modules + name)
	list, _ := h.Content(moduleList)
	kept := ""
	for line := range strings.Lines(list) {
		if !strings.HasPrefix(line, name+" ") {
			kept += line
		}
	}
	h.File(moduleList, kept)
}

// Driver adds the loaded driver with one GPU, and its user-space library.
func (h Host) Driver(version, banner string) {
	h.Module("nvidia", version, "live")
	h.Module("nvidia_uvm", "", "live")
	h.Module("nvidia_modeset", version, "live")
	h.File("proc/driver/nvidia/version", "NVRM version: "+banner+"\nGCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2)\n")
	h.File(Params, DefaultParams)
	h.File("proc/driver/nvidia/gpus/"+GPU+"/information", "Model: \t\t NVIDIA H100 80GB HBM3\n")
	h.Library("usr/lib/x86_64-linux-gnu", version)
	h.Dep("", "kernel/net/core/pktgen.ko.zst", "updates/dkms/nvidia.ko.zst", "updates/dkms/nvidia-uvm.ko.zst", "updates/dkms/nvidia-peermem.ko.zst")
}

// DefaultParams is /proc/driver/nvidia/params of driver 580.159.04 with its default options.
const DefaultParams = `ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
InitializeSystemMemoryAllocations: 1
UsePageAttributeTable: 4294967295
EnableMSI: 1
EnablePCIeGen3: 0
MemoryPoolSize: 0
KMallocHeapMaxSize: 0
VMallocHeapMaxSize: 0
IgnoreMMIOCheck: 0
EnableStreamMemOPs: 0
EnableUserNUMAManagement: 1
NvLinkDisable: 0
RmProfilingAdminOnly: 0
PreserveVideoMemoryAllocations: 0
EnableS0ixPowerManagement: 0
S0ixPowerManagementVideoMemoryThreshold: 256
DynamicPowerManagement: 3
DynamicPowerManagementVideoMemoryThreshold: 200
RegisterPCIDriver: 1
EnablePCIERelaxedOrderingMode: 0
EnableResizableBar: 0
EnableGpuFirmware: 18
EnableGpuFirmwareLogs: 2
RmNvlinkBandwidthLinkCount: 0
EnableDbgBreakpoint: 0
OpenRmEnableUnsupportedGpus: 1
DmaRemapPeerMmio: 1
ImexChannelCount: 2048
CreateImexChannel0: 0
GrdmaPciTopoCheckOverride: 0
CoherentGPUMemoryMode: ""
RegistryDwords: ""
RegistryDwordsPerDevice: ""
RmMsg: ""
GpuBlacklist: ""
TemporaryFilePath: ""
ExcludedGpus: ""
`

// Open adds the open driver.
func (h Host) Open(version string) {
	h.Driver(version, "NVIDIA UNIX Open Kernel Module for x86_64  "+version+"  Release Build  (dvs-builder@U22-I3-AF09-09-1)  Tue Sep 23 10:11:16 UTC 2025")
}

// Proprietary adds the proprietary driver.
func (h Host) Proprietary(version string) {
	h.Driver(version, "NVIDIA UNIX x86_64 Kernel Module  "+version+"  Tue Jun  6 22:20:39 UTC 2023")
}

// Library adds the driver's user-space libraries.
func (h Host) Library(dir, version string) {
	for _, stem := range []string{"libnvidia-ml.so", "libcuda.so"} {
		h.File(dir+"/"+stem+"."+version, "ELF")
		h.Symlink(dir+"/"+stem+".1", stem+"."+version)
	}
}

// Peermem adds a loaded nvidia_peermem with so many live registrations.
func (h Host) Peermem(version string, references int) {
	h.Module("nvidia_peermem", version, "live")
	h.File(Modules+"nvidia_peermem/refcnt", fmt.Sprintln(references))
	h.File(Modules+"nvidia_peermem/parameters/peerdirect_support", "0\n")
	h.File(Modules+"nvidia_peermem/parameters/persistent_api_support", "1\n")
	if _, stack := h.Real(Modules + "ib_core/holders"); stack {
		h.Symlink(Modules+"ib_core/holders/nvidia_peermem", "../../nvidia_peermem")
	}
}

// Inbox adds the kernel's own RDMA stack.
func (h Host) Inbox() {
	h.Module("ib_core", "", "live")
	h.Module("ib_uverbs", "", "live")
}

// OFED adds NVIDIA's RDMA stack.
func (h Host) OFED() {
	for _, name := range []string{"ib_core", "ib_uverbs", "mlx_compat"} {
		h.Module(name, "24.10-0.7.0", "live")
		h.File(Modules+name+"/taint", "OE\n")
	}
}

// Client adds a registered client with the counters of today's RDMA stacks.
func (h Host) Client(name, version string) {
	for file, value := range map[string]int{
		"num_alloc_mrs": 1203, "num_dealloc_mrs": 1200, "num_reg_pages": 76992, "num_dereg_pages": 76800,
		"num_reg_bytes": 5045747712, "num_dereg_bytes": 5033164800, "num_free_callbacks": 2,
	} {
		h.File(MemoryPeers+name+"/"+file, fmt.Sprintln(value))
	}
	h.File(MemoryPeers+name+"/version", version+"\n")
}

// OldClient adds a registered client with the counters of old RDMA stacks.
func (h Host) OldClient(name, version string) {
	h.Client(name, version)
	for _, file := range []string{"num_dealloc_mrs", "num_reg_bytes", "num_dereg_bytes"} {
		h.Remove(MemoryPeers + name + "/" + file)
	}
}
