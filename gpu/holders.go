package gpu

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// mostInstances is more MIG instances than a GPU has: seven until now.
const mostInstances = 64

// readHolders reads what schedulers call the GPU and its parts by: the number of its
// device node, and the UUIDs of its MIG instances.
func (d *device) readHolders(v *visit, slow *GPU) {
	slow.Minor = ask(v, "nvmlDeviceGetMinorNumber", d.handle.GetMinorNumber)
	if !slow.Modes.MIG.Value {
		return
	}
	most := ask(v, "nvmlDeviceGetMaxMigDeviceCount", d.handle.GetMaxMigDeviceCount)
	for index := range min(most.Value, mostInstances) {
		// The places that no instance has taken are not found.
		instance := ask(v, "nvmlDeviceGetMigDeviceHandleByIndex", func() (Device, nvml.Return) {
			return d.handle.GetMigDeviceHandleByIndex(index)
		}, nvml.ERROR_NOT_FOUND)
		if !instance.Known {
			continue
		}
		if uuid := ask(v, "nvmlDeviceGetUUID", instance.Value.GetUUID); uuid.Known {
			slow.Instances = append(slow.Instances, uuid.Value)
		}
	}
}
