package collector

import (
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/driver"
)

// driverNote tells that a value is measured on a timer.
const driverNote = " Read on a timer and when a module comes, goes or is replaced, see gdr_driver_slow_read_timestamp_seconds."

// Families of the NVIDIA driver and of the kernel around it.
var (
	driverSlowRead = gauge("gdr_driver_slow_read_timestamp_seconds",
		"Unix time at which the files were read last that change with an installation only.")
	driverLoaded = gauge("gdr_driver_loaded",
		"1 if the NVIDIA driver is loaded (/sys/module/nvidia/initstate is live).")
	driverInfo = gauge("gdr_driver_info",
		"Facts of the NVIDIA driver, value 1: version of the loaded module, flavor (open, proprietary; empty: not known), library_version (what libnvidia-ml.so.1 or libcuda.so.1 is a link to), kernel (uname -r). Empty where not known."+driverNote)
	driverMismatch = gauge("gdr_driver_version_mismatch",
		"1 if the loaded driver and the user-space library found are of different versions, as after an upgrade without reload: NVML and new CUDA programs fail. No series unless both are known."+driverNote)
	driverModuleLoaded = gauge("gdr_driver_module_loaded",
		"1 if a module of the driver or a companion is at work (/sys/module/*/initstate is live, or the module is built in).")
	driverOverride = gauge("gdr_driver_topology_check_override",
		"Driver option GrdmaPciTopoCheckOverride (/proc/driver/nvidia/params): 0 not set, 1 GPUDirect RDMA allowed whatever the PCIe topology; other values as the driver has them."+driverNote)
	driverLockdown = gauge("gdr_driver_lockdown_info",
		"Lockdown mode of the kernel, value 1 (/sys/kernel/security/lockdown): none, integrity, confidentiality. Under the last two setpci cannot change ACS. No series if it cannot be read."+driverNote)
	driverCore = gauge("gdr_driver_rdma_core_info",
		"Where the loaded ib_core comes from, value 1: origin is ofed (out of the kernel's tree: it has a version or taint O, or mlx_compat is loaded), inbox or unknown. Only stacks with the peer memory API take nvidia-peermem."+driverNote)
)

// showDriver shows the state of the NVIDIA driver.
func showDriver(p *page, s *snapshot.Snapshot) {
	r := s.DriverState()
	if r == nil {
		return
	}
	p.add(driverSlowRead, float64(r.Slow.UnixMilli())/1000, nil)
	addMaybe(p, driverLoaded, r.Loaded, nil)
	if r.Lockdown.Known {
		p.add(driverLockdown, 1, pairs("mode", r.Lockdown.Value))
	}
	if r.RDMACore.Known {
		core := r.RDMACore.Value
		p.add(driverCore, 1, pairs("origin", string(core.Origin), "version", core.Version.Value, "srcversion", core.SrcVersion.Value))
	}
	if !hasDriver(r) {
		return
	}
	p.add(driverInfo, 1, pairs("version", r.Version.Value, "flavor", string(r.Flavor),
		"library_version", r.Library.Value.Version, "kernel", r.Kernel.Value))
	addMaybe(p, driverMismatch, r.LibraryMismatch(), nil)
	for i := range r.Modules {
		addMaybe(p, driverModuleLoaded, r.Modules[i].Loaded(), pairs("module", r.Modules[i].Name))
	}
	if r.TopologyOverride.Known {
		p.add(driverOverride, float64(r.TopologyOverride.Value), nil)
	}
}

// hasDriver reports whether there is anything of the NVIDIA driver, loaded or
// installed; if not, its absence is all there is to say.
func hasDriver(r *driver.Reading) bool {
	for i := range r.Modules {
		if r.Modules[i].State != driver.StateAbsent {
			return true
		}
	}
	return r.Loaded.Value || r.Library.Known
}

// addMaybe adds a yes or no, if it is known.
func addMaybe(p *page, f *family, value sysread.Maybe[bool], labels labels) {
	if value.Known {
		p.addBool(f, value.Value, labels)
	}
}
