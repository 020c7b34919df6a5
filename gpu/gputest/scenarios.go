package gputest

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Scenarios are machines as they are in the field, by name.
func Scenarios() map[string]func() *Machine {
	return map[string]func() *Machine{
		"hgx-h100":   HGXH100,
		"hgx-h200":   HGXH200,
		"hgx-b200":   HGXB200,
		"h100-nvl":   H100NVL,
		"a100-pcie":  A100PCIe,
		"mig":        MIG,
		"vgpu":       VGPU,
		"gb200":      GB200,
		"old-driver": OldDriver,
	}
}

const gib = 1 << 30

// hopper returns a GPU of an HGX H100 or H200 board.
func hopper(index int, name string, memory uint64) *GPU {
	buses := [...]string{"18", "2A", "3A", "5D", "9A", "AB", "BA", "DB"}
	g := &GPU{
		BusID: "00000000:" + buses[index%8] + ":00.0", UUID: fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", index+1),
		Name: name, VBIOS: "96.00.A5.00.01", Architecture: nvml.DEVICE_ARCH_HOPPER, Capability: [2]int{9, 0},
		CPUs: []uint{1<<56 - 1, 0}, Nodes: []uint{1},
		Generation: 5, Width: 16, MaxGeneration: 5, HostMaxGeneration: 5, MaxWidth: 16,
		BAR1: bar1(memory), Memory: unused(memory), Persistence: nvml.FEATURE_ENABLED,
		EventTypes: 0xffff,
		Fields:     map[uint32]uint64{nvml.FI_DEV_GET_GPU_RECOVERY_ACTION: 0, nvml.FI_DEV_NVLINK_LINK_COUNT: 18},
		Fabric:     nvml.GpuFabricInfo_v3{State: nvml.GPU_FABRIC_STATE_COMPLETED},
	}
	if index >= 4 {
		g.CPUs, g.Nodes = []uint{(1<<8 - 1) << 56, 1<<48 - 1}, []uint{2}
	}
	for link := range 18 {
		g.Links = append(g.Links, link4(link))
	}
	return g
}

// bar1 returns BAR1 as large as the next power of two.
func bar1(memory uint64) nvml.BAR1Memory {
	total := uint64(gib)
	for total < memory {
		total *= 2
	}
	return nvml.BAR1Memory{Bar1Total: total, Bar1Used: 1703936, Bar1Free: total - 1703936}
}

func unused(memory uint64) nvml.Memory {
	return nvml.Memory{Total: memory, Used: 644939776, Free: memory - 644939776}
}

// link4 is an active link of NVLink 4 to a switch that the host does not show.
func link4(link int) Link {
	return Link{
		State: 1, Version: 6, RemoteType: nvml.NVLINK_DEVICE_TYPE_SWITCH, RemoteBusID: "FFFFFFFF:FF:FF.0",
		Fields: map[uint32]uint64{
			nvml.FI_DEV_NVLINK_GET_STATE: 1, nvml.FI_DEV_NVLINK_GET_SPEED: 26562, nvml.FI_DEV_NVLINK_GET_VERSION: 6,
			nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX: 1000 + uint64(link), nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX: 2000,
			nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY: 0, nvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY: 0, nvml.FI_DEV_NVLINK_ERROR_DL_CRC: 0,
		},
	}
}

// link5 is an active link of NVLink 5. The older call answers 0 for ever there.
func link5(int) Link {
	l := Link{
		State: 1, Version: 7, RemoteType: nvml.NVLINK_DEVICE_TYPE_SWITCH, RemoteBusID: "FFFFFFFF:FF:FF.0",
		Errors: map[nvml.NvLinkErrorCounter]uint64{nvml.NVLINK_ERROR_DL_REPLAY: 0, nvml.NVLINK_ERROR_DL_RECOVERY: 0, nvml.NVLINK_ERROR_DL_CRC_FLIT: 0},
		Fields: map[uint32]uint64{
			nvml.FI_DEV_NVLINK_GET_STATE: 1, nvml.FI_DEV_NVLINK_GET_SPEED: 53125, nvml.FI_DEV_NVLINK_GET_VERSION: 7,
			nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY: 0, nvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY: 0, nvml.FI_DEV_NVLINK_ERROR_DL_CRC: 0,
			nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES: 5000, nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES: 6000,
			nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_BER: 15<<8 | 254, nvml.FI_DEV_NVLINK_COUNT_SYMBOL_BER: 15<<8 | 254,
		},
	}
	for id := uint32(nvml.FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS); id <= nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS; id++ {
		l.Fields[id] = 0
	}
	l.Fields[nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS] = 0
	l.Fields[nvml.FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS] = 0
	for id := uint32(nvml.FI_DEV_NVLINK_COUNT_FEC_HISTORY_0); id <= nvml.FI_DEV_NVLINK_COUNT_FEC_HISTORY_15; id++ {
		l.Fields[id] = 0
	}
	l.Fields[nvml.FI_DEV_NVLINK_COUNT_FEC_HISTORY_0] = 1_000_000
	l.Fields[nvml.FI_DEV_NVLINK_COUNT_FEC_HISTORY_1] = 7
	l.Fields[nvml.FI_DEV_NVLINK_COUNT_FEC_HISTORY_0+2] = 2
	return l
}

// twoSockets are GPUs below switches of their own on two sockets.
func twoSockets(a, b int) nvml.GpuTopologyLevel {
	if a/4 == b/4 {
		return nvml.TOPOLOGY_NODE
	}
	return nvml.TOPOLOGY_SYSTEM
}

func machine(driver string, gpus []*GPU) *Machine {
	return &Machine{Driver: driver, NVML: "13." + driver, GPUs: gpus, Ancestor: twoSockets}
}

func hgx(name string, memory uint64) []*GPU {
	var gpus []*GPU
	for i := range 8 {
		gpus = append(gpus, hopper(i, name, memory))
	}
	return gpus
}

// HGXH100 has eight H100 with 18 links each, connected by NVSwitches.
func HGXH100() *Machine { return machine("580.95.05", hgx("NVIDIA H100 80GB HBM3", 80*gib)) }

// HGXH200 is the same with H200.
func HGXH200() *Machine { return machine("580.159.04", hgx("NVIDIA H200", 141*gib)) }

// HGXB200 has eight B200 with NVLink 5, whose errors are fields.
func HGXB200() *Machine {
	gpus := hgx("NVIDIA B200", 180*gib)
	for _, g := range gpus {
		g.Architecture, g.Capability, g.VBIOS = nvml.DEVICE_ARCH_BLACKWELL, [2]int{10, 0}, "97.00.AC.00.01"
		g.Fabric.HealthMask = healthy
		g.Fabric.HealthSummary = nvml.GPU_FABRIC_HEALTH_SUMMARY_HEALTHY
		for link := range g.Links {
			g.Links[link] = link5(link)
		}
	}
	return machine("580.95.05", gpus)
}

// healthy is a fabric health mask in which nothing is wrong.
const healthy = nvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW |
	nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_RECOVERY_FALSE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY |
	nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_FALSE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY |
	nvml.GPU_FABRIC_HEALTH_MASK_ACCESS_TIMEOUT_RECOVERY_FALSE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY |
	nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION

// H100NVL is two H100 NVL joined by bridges: 12 of 18 links are used by design,
// and there is no fabric.
func H100NVL() *Machine {
	gpus := []*GPU{hopper(0, "NVIDIA H100 NVL", 94*gib), hopper(1, "NVIDIA H100 NVL", 94*gib)}
	for i, g := range gpus {
		g.Fabric = nvml.GpuFabricInfo_v3{State: nvml.GPU_FABRIC_STATE_NOT_SUPPORTED}
		for link := range g.Links {
			if link < 12 {
				g.Links[link].RemoteType, g.Links[link].RemoteBusID = nvml.NVLINK_DEVICE_TYPE_GPU, gpus[1-i].BusID
				continue
			}
			g.Links[link] = Link{Fields: map[uint32]uint64{nvml.FI_DEV_NVLINK_GET_STATE: 0}}
		}
	}
	m := machine("580.95.05", gpus)
	m.Ancestor = func(int, int) nvml.GpuTopologyLevel { return nvml.TOPOLOGY_SINGLE }
	return m
}

// A100PCIe is two A100 PCIe without a bridge, with a driver that knows neither
// state fields nor the recovery action: every link is inactive.
func A100PCIe() *Machine {
	gpus := []*GPU{hopper(0, "NVIDIA A100-PCIE-40GB", 40*gib), hopper(1, "NVIDIA A100-PCIE-40GB", 40*gib)}
	for _, g := range gpus {
		g.Architecture, g.Capability, g.VBIOS = nvml.DEVICE_ARCH_AMPERE, [2]int{8, 0}, "92.00.25.00.08"
		g.Generation, g.MaxGeneration, g.HostMaxGeneration = 1, 4, 4
		g.Fields = map[uint32]uint64{nvml.FI_DEV_NVLINK_LINK_COUNT: 12}
		g.Fabric = nvml.GpuFabricInfo_v3{State: nvml.GPU_FABRIC_STATE_NOT_SUPPORTED}
		g.Links = make([]Link, 12)
	}
	m := machine("550.90.07", gpus)
	m.P2P = func(_, _ int, capability nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
		if capability == nvml.P2P_CAPS_INDEX_NVLINK {
			return nvml.P2P_STATUS_NOT_SUPPORTED, nvml.SUCCESS
		}
		return nvml.P2P_STATUS_OK, nvml.SUCCESS
	}
	return m
}

// MIG is an H100 in MIG mode, of which the link and the memory of the whole GPU
// say less.
func MIG() *Machine {
	g := hopper(0, "NVIDIA H100 80GB HBM3", 80*gib)
	g.MIG = nvml.DEVICE_MIG_ENABLE
	g.Links, g.Fields = nil, map[uint32]uint64{nvml.FI_DEV_GET_GPU_RECOVERY_ACTION: 0}
	g.Returns = map[string]nvml.Return{
		"nvmlDeviceGetComputeRunningProcesses": nvml.ERROR_NOT_SUPPORTED,
		"nvmlDeviceGetP2PStatus":               nvml.ERROR_NOT_SUPPORTED,
	}
	return machine("580.95.05", []*GPU{g})
}

// VGPU is a virtual GPU in a virtual machine: no PCIe link, no BAR1, no NVLink.
func VGPU() *Machine {
	g := hopper(0, "NVIDIA A30-8C", 8*gib)
	g.BusID = "00000000:02:01.0"
	g.Architecture, g.Capability, g.VBIOS = nvml.DEVICE_ARCH_AMPERE, [2]int{8, 0}, ""
	g.Virtualization = nvml.GPU_VIRTUALIZATION_MODE_VGPU
	g.Links, g.Fields, g.EventTypes = nil, nil, 0
	g.Returns = map[string]nvml.Return{}
	for _, call := range []string{
		"nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkGeneration",
		"nvmlDeviceGetGpuMaxPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetPcieReplayCounter",
		"nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetVbiosVersion", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo",
		"nvmlDeviceGetCpuAffinity", "nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetSupportedEventTypes",
	} {
		g.Returns[call] = nvml.ERROR_NOT_SUPPORTED
	}
	return machine("550.90.05", []*GPU{g})
}

// GB200 is a compute tray of a GB200 NVL72: four GPUs in a fabric that spans the
// rack, and no fabric manager on the tray.
func GB200() *Machine {
	gpus := HGXB200().GPUs[:4]
	for i, g := range gpus {
		g.Name, g.BusID = "NVIDIA GB200", fmt.Sprintf("%08X:01:00.0", [...]int{8, 9, 24, 25}[i])
		g.CPUs, g.Nodes = []uint{1<<64 - 1, 1<<8 - 1}, []uint{1}
		if i >= 2 {
			g.CPUs, g.Nodes = []uint{0, 1<<64 - 1<<8, 1<<16 - 1}, []uint{2}
		}
		g.Fields[nvml.FI_DEV_C2C_LINK_COUNT] = 10
		g.Fabric.CliqueId = 32766
		g.Fabric.ClusterUuid = [16]uint8{0x52, 0x3a, 0x6f, 0x51, 0x21, 0x5b, 0x4f, 0x4d, 0x9f, 0x9e, 0x1c, 0x1d, 0xd2, 0x5e, 0x0a, 0x11}
	}
	m := machine("580.95.05", gpus)
	m.Ancestor = func(a, b int) nvml.GpuTopologyLevel {
		if a/2 == b/2 {
			return nvml.TOPOLOGY_NODE
		}
		return nvml.TOPOLOGY_SYSTEM
	}
	return m
}

// OldDriver is an HGX H100 with driver 535, which lacks newer functions, fields
// and versions.
func OldDriver() *Machine {
	m := HGXH100()
	m.Driver, m.NVML = "535.54.03", "12.535.54.03"
	m.Missing = []string{"nvmlDeviceGetGpuFabricInfoV"}
	for _, g := range m.GPUs {
		g.Fields = map[uint32]uint64{nvml.FI_DEV_NVLINK_LINK_COUNT: 18}
		for link := range g.Links {
			l := &g.Links[link]
			l.Errors = map[nvml.NvLinkErrorCounter]uint64{nvml.NVLINK_ERROR_DL_REPLAY: 3, nvml.NVLINK_ERROR_DL_RECOVERY: 0, nvml.NVLINK_ERROR_DL_CRC_FLIT: 0}
			l.Fields = map[uint32]uint64{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX: 1000, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX: 2000}
		}
	}
	return m
}
