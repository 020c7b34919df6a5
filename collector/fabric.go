package collector

import (
	"strconv"

	"gdr_exporter/collector/snapshot"
)

// Families of the NVLink fabric. What a GPU does not support has no series, and
// neither has, before registration has completed, what is only valid then.
var (
	fabricInfo = gauge("gdr_fabric_info",
		"Facts about a GPU's place in the NVLink fabric, value 1: clique_id and cluster_uuid, which is all zeros where no cluster was given. Once registration has completed.")
	fabricState = gauge("gdr_fabric_state_id",
		"State of the GPU's registration with the NVLink fabric (nvmlDeviceGetGpuFabricInfoV): 0 not supported, which is neutral, 1 not started, 2 in progress, 3 completed.")
	fabricStatus = gauge("gdr_fabric_status_id",
		"Result of the GPU's registration with the NVLink fabric, an nvmlReturn_t: 0 success, 23 insufficient resources, 999 unknown error, ... Once registration has completed.")
	fabricSummary = gauge("gdr_fabric_health_summary_id",
		"Health of the fabric as the GPU sees it: 1 healthy, 2 unhealthy, 3 limited capacity.")
	fabricDegraded = gauge("gdr_fabric_degraded_bandwidth",
		"1 if the fabric has less bandwidth than it should (health mask bits 0-1).")
	fabricRecovery = gauge("gdr_fabric_route_recovery",
		"1 while a route of the fabric is being recovered (health mask bits 2-3).")
	fabricUnhealthy = gauge("gdr_fabric_route_unhealthy",
		"1 if a route of the fabric is unhealthy (health mask bits 4-5).")
	fabricTimeout = gauge("gdr_fabric_access_timeout_recovery",
		"1 while recovery from an access timeout is under way (health mask bits 6-7).")
	fabricIncorrect = gauge("gdr_fabric_incorrect_configuration_id",
		"Wrong configuration of the fabric (health mask bits 8-11): 1 none, 2 system GUID, 3 chassis serial number, 4 no partition, 5 too few NVLinks, 6 incompatible GPU firmware, 7 location, 8 GPU state.")
)

// showFabric shows the NVLink fabric.
func showFabric(p *page, s *snapshot.Snapshot) {
	reading := s.NVML()
	if reading == nil {
		return
	}
	for i := range reading.GPUs {
		f := &reading.GPUs[i].Fabric
		if !f.State.Known {
			continue
		}
		at := pairs("gpu_address", reading.GPUs[i].Address)
		p.add(fabricState, float64(f.State.Value), at)
		addKnown(p, fabricStatus, f.Status, at)
		if f.CliqueID.Known {
			p.add(fabricInfo, 1, pairs("gpu_address", reading.GPUs[i].Address,
				"clique_id", strconv.FormatUint(uint64(f.CliqueID.Value), 10), "cluster_uuid", f.ClusterUUID))
		}
		addKnown(p, fabricSummary, f.Health.Summary, at)
		addMaybe(p, fabricDegraded, f.Health.DegradedBandwidth, at)
		addMaybe(p, fabricRecovery, f.Health.RouteRecovery, at)
		addMaybe(p, fabricUnhealthy, f.Health.RouteUnhealthy, at)
		addMaybe(p, fabricTimeout, f.Health.AccessTimeoutRecovery, at)
		addKnown(p, fabricIncorrect, f.Health.IncorrectConfiguration, at)
	}
}
