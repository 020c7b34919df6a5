package gpu

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
)

// Fabric is a GPU's place in the NVLink fabric (nvmlDeviceGetGpuFabricInfoV).
type Fabric struct {
	// State of registration: 0 not supported, 1 not started, 2 in progress, 3 completed.
	State sysread.Maybe[int]
	// Status is the registration's result, an nvmlReturn_t: 0 success. Known
	// only once the state is completed, as are CliqueID and ClusterUUID.
	Status   sysread.Maybe[int]
	CliqueID sysread.Maybe[uint32]
	// ClusterUUID is all zeros where no cluster was given.
	ClusterUUID string
	Health      FabricHealth
}

// FabricHealth is the fabric's health mask. What the GPU does not support is unknown.
type FabricHealth struct {
	DegradedBandwidth     sysread.Maybe[bool] // bits 0-1
	RouteRecovery         sysread.Maybe[bool] // bits 2-3: under way
	RouteUnhealthy        sysread.Maybe[bool] // bits 4-5
	AccessTimeoutRecovery sysread.Maybe[bool] // bits 6-7: under way
	// IncorrectConfiguration is bits 8-11: 1 none, 2 system GUID, 3 chassis
	// serial number, 4 no partition, 5 too few NVLinks, 6 GPU firmware,
	// 7 location, 8 GPU state.
	IncorrectConfiguration sysread.Maybe[int]
	// Summary: 1 healthy, 2 unhealthy, 3 limited capacity (version 3 of the call).
	Summary sysread.Maybe[int]
}

// fabricCompleted is the state at which the other values are valid.
const fabricCompleted = nvml.GPU_FABRIC_STATE_COMPLETED

// fabricVersion is a version of the call, newest first.
type fabricVersion int

const (
	fabricV3 fabricVersion = iota
	fabricV2
	fabricV1
)

// Returns of a driver that does not know a version of the structure.
var unknownVersion = []nvml.Return{nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_INVALID_ARGUMENT}

// readFabric asks by the newest version of the call that the driver knows.
func (d *device) readFabric(v *visit) Fabric {
	for {
		fabric, known := askFabric(v, d.handle, d.fabric)
		if known || v.lost || v.down || d.fabric == fabricV1 {
			return fabric
		}
		if v.last != nvml.ERROR_FUNCTION_NOT_FOUND && !slices.Contains(unknownVersion, v.last) {
			return Fabric{} // the GPU has none: the question was understood
		}
		d.fabric++
	}
}

func askFabric(v *visit, d Device, version fabricVersion) (Fabric, bool) {
	switch version {
	case fabricV3:
		if info := ask(v, "nvmlDeviceGetGpuFabricInfoV", d.GetGpuFabricInfoV3, unknownVersion...); info.Known {
			i := info.Value
			return newFabric(i.State, i.Status, i.CliqueId, i.ClusterUuid, i.HealthMask, i.HealthSummary), true
		}
	case fabricV2:
		if info := ask(v, "nvmlDeviceGetGpuFabricInfoV", d.GetGpuFabricInfoV2, unknownVersion...); info.Known {
			i := info.Value
			return newFabric(i.State, i.Status, i.CliqueId, i.ClusterUuid, i.HealthMask, 0), true
		}
	default:
		if info := ask(v, "nvmlDeviceGetGpuFabricInfo", d.GetGpuFabricInfo); info.Known {
			i := info.Value
			return newFabric(i.State, i.Status, i.CliqueId, i.ClusterUuid, 0, 0), true
		}
	}
	return Fabric{}, false
}

func newFabric(state uint8, status, clique uint32, uuid [16]uint8, mask uint32, summary uint8) Fabric {
	f := Fabric{State: sysread.Some(int(state))}
	if state != fabricCompleted {
		return f
	}
	f.Status = sysread.Some(int(status))
	f.CliqueID = sysread.Some(clique)
	f.ClusterUUID = fmt.Sprintf("%x-%x-%x-%x-%x", uuid[0:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:16])
	f.Health = FabricHealth{
		DegradedBandwidth:      healthBit(mask, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW),
		RouteRecovery:          healthBit(mask, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY),
		RouteUnhealthy:         healthBit(mask, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY),
		AccessTimeoutRecovery:  healthBit(mask, nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY),
		IncorrectConfiguration: supported(int(mask >> nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION & nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION)),
		Summary:                supported(int(summary)),
	}
	return f
}

// healthBit reads a pair of bits: 0 not supported, 1 true, 2 false.
func healthBit(mask uint32, shift int) sysread.Maybe[bool] {
	switch mask >> shift & nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW {
	case nvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE:
		return sysread.Some(true)
	case nvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE:
		return sysread.Some(false)
	}
	return sysread.Maybe[bool]{}
}

// supported takes NVML's 0 for not supported.
func supported(value int) sysread.Maybe[int] {
	if value == 0 {
		return sysread.Maybe[int]{}
	}
	return sysread.Some(value)
}
