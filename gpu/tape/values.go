package tape

import (
	"encoding/hex"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// pciInfo is nvml.PciInfo in a readable form.
type pciInfo struct {
	BusID       string `json:"bus_id"`
	BusIDLegacy string `json:"bus_id_legacy"`
	Domain      uint32 `json:"domain"`
	Bus         uint32 `json:"bus"`
	Device      uint32 `json:"device"`
	DeviceID    uint32 `json:"pci_device_id"`
	SubsystemID uint32 `json:"pci_subsystem_id"`
}

func fromPCIInfo(i nvml.PciInfo) pciInfo {
	return pciInfo{text(i.BusId[:]), text(i.BusIdLegacy[:]), i.Domain, i.Bus, i.Device, i.PciDeviceId, i.PciSubSystemId}
}

func (p pciInfo) info() nvml.PciInfo {
	i := nvml.PciInfo{Domain: p.Domain, Bus: p.Bus, Device: p.Device, PciDeviceId: p.DeviceID, PciSubSystemId: p.SubsystemID}
	fill(i.BusId[:], p.BusID)
	fill(i.BusIdLegacy[:], p.BusIDLegacy)
	return i
}

// text reads a C string.
func text[C ~int8 | ~uint8](chars []C) string {
	var bytes []byte
	for _, char := range chars {
		if char == 0 {
			break
		}
		bytes = append(bytes, byte(char))
	}
	return string(bytes)
}

// fabricInfo is nvml.GpuFabricInfo in all its versions.
type fabricInfo struct {
	ClusterUUID   string `json:"cluster_uuid"` // 32 hexadecimal digits
	Status        uint32 `json:"status"`
	CliqueID      uint32 `json:"clique_id"`
	State         uint8  `json:"state"`
	HealthMask    uint32 `json:"health_mask"`
	HealthSummary uint8  `json:"health_summary"`
}

// zeroCluster is no cluster's UUID.
const zeroCluster = "00000000000000000000000000000000"

func (f fabricInfo) uuid() (uuid [16]uint8) {
	bytes, err := hex.DecodeString(f.ClusterUUID)
	if err == nil {
		copy(uuid[:], bytes)
	}
	return uuid
}

func (f fabricInfo) v1() nvml.GpuFabricInfo {
	return nvml.GpuFabricInfo{ClusterUuid: f.uuid(), Status: f.Status, CliqueId: f.CliqueID, State: f.State}
}

func (f fabricInfo) v2() nvml.GpuFabricInfo_v2 {
	return nvml.GpuFabricInfo_v2{ClusterUuid: f.uuid(), Status: f.Status, CliqueId: f.CliqueID, State: f.State, HealthMask: f.HealthMask}
}

func (f fabricInfo) v3() nvml.GpuFabricInfo_v3 {
	return nvml.GpuFabricInfo_v3{
		ClusterUuid: f.uuid(), Status: f.Status, CliqueId: f.CliqueID, State: f.State, HealthMask: f.HealthMask, HealthSummary: f.HealthSummary,
	}
}

// fieldValue is the value of an nvml.FieldValue.
type fieldValue struct {
	Type uint32 `json:"type"` // nvmlValueType_t
	Bits uint64 `json:"bits"` // the union, as a whole
}

// two are the values of a call that returns two.
type two [2]int

// trim drops the empty end of a bit set, which NVML fills to the size asked for.
func trim(words []uint) []uint {
	for len(words) > 0 && words[len(words)-1] == 0 {
		words = words[:len(words)-1]
	}
	return words
}

// fill writes a C string, whose characters are signed or not by architecture.
func fill[C ~int8 | ~uint8](into []C, text string) {
	for i := 0; i < len(text) && i < len(into)-1; i++ {
		into[i] = C(text[i])
	}
}
