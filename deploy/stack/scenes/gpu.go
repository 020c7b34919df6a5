package scenes

import (
	"fmt"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/capture"
)

// gpuScenes are faults of GPUs, NVLink and its fabric.
func gpuScenes() ([]Scene, error) {
	scenes, err := scenesOf([]made{
		{"nvlink-lost-now", []string{"NVLinkDown"}, func(m *maker) {
			m.answer(fault, capture.PartNVML, field(2, nvml.FI_DEV_NVLINK_GET_STATE, 3), value(`{"type":3,"bits":0}`))
		}},
		{"nvlink-errors", []string{"NVLinkErrors"}, func(m *maker) {
			m.countAnswer(fault, capture.PartNVML, field(1, nvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY, 0), "bits", 0.01)
		}},
		{"fabric-stuck", []string{"NVLinkFabricStuck"}, func(m *maker) {
			m.answer(fault, capture.PartNVML, "device 3 GetGpuFabricInfoV3", value(`{"cluster_uuid":"00000000000000000000000000000000","status":0,"clique_id":0,"state":2,"health_mask":0,"health_summary":0}`))
		}},
		{"fabric-unhealthy", []string{"NVLinkFabricUnhealthy"}, func(m *maker) {
			m.answer(fault, capture.PartNVML, "device 3 GetGpuFabricInfoV3", value(`{"cluster_uuid":"00000000000000000000000000000000","status":999,"clique_id":0,"state":3,"health_mask":0,"health_summary":0}`))
		}},
		{"p2p-lost", []string{"GPUP2PLost"}, func(m *maker) {
			for peer := 1; peer < 8; peer++ {
				m.answer(fault, capture.PartNVML, fmt.Sprintf("device 0 GetP2PStatus(%d,0)", peer), value("1"))
			}
		}},
		{"gpu-lost", []string{"GPULost"}, func(m *maker) { m.gpuLost(fault, 4) }},
		{"nvml-failing", []string{"GDRNVMLFailing"}, func(m *maker) {
			m.answer(capture.Span{}, capture.PartNVML, "Init", capture.Value{Return: int(nvml.ERROR_NO_PERMISSION)})
		}},
		{"nvml-stuck", []string{"GDRNVMLStuck"}, func(m *maker) {
			m.answer(fault, capture.PartNVML, "device 0 GetMemoryInfo", capture.Value{Hang: true})
		}},
	})
	for i := range scenes {
		if scenes[i].Name == "nvml-stuck" {
			scenes[i].Nodes[0].Deadline = hangDeadline
		}
	}
	return scenes, err
}

// gpuLost has every call for a GPU say that it is lost.
func (m *maker) gpuLost(span capture.Span, gpu int) {
	prefix, found := fmt.Sprintf("device %d ", gpu), false
	for i := range m.recording.Answers {
		if a := &m.recording.Answers[i]; a.Part == capture.PartNVML && strings.HasPrefix(a.Question, prefix) {
			m.answer(span, a.Part, a.Question, capture.Value{Return: int(nvml.ERROR_GPU_IS_LOST)})
			found = true
		}
	}
	if !found {
		m.fail("the capture has no GPU %d", gpu)
	}
}

// hangDeadline is for how long a node with a device that hangs waits for it.
const hangDeadline = 2 * time.Second

// field is the question for a field of NVML.
func field(gpu, id, scope int) string {
	return fmt.Sprintf("device %d GetFieldValues(%d,%d)", gpu, id, scope)
}
