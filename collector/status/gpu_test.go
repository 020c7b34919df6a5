package status

import (
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
)

func TestGPUSentences(t *testing.T) {
	node := func(address, driver string) affinity.Node {
		return affinity.Node{Address: address, Kind: affinity.KindGPU, Driver: driver}
	}
	const a, b = "0000:1b:00.0", "0000:3b:00.0"
	snap := func(reading *gpu.Reading, nodes ...affinity.Node) *snapshot.Snapshot {
		s := &snapshot.Snapshot{
			Affinity: &snapshot.AffinityPart{Listing: affinity.Listing{Functions: nodes}},
			GPU:      &snapshot.GPUPart{Units: []snapshot.UnitPart[gpu.Reading]{{Name: "nvml", Data: reading}}},
		}
		if reading == nil {
			s.GPU.Units[0].StuckFor = 90 * time.Second
			s.GPU.Listing.Call = gpu.Call{Name: "nvmlDeviceGetBAR1MemoryInfo", GPUAddress: a}
		}
		return s
	}
	up := &gpu.Reading{State: gpu.StateUp, GPUs: []gpu.GPU{{Address: a}, {Address: b}}}
	lost := &gpu.Reading{State: gpu.StateUp, GPUs: []gpu.GPU{{Address: a}, {Address: b, Lost: true}}}
	for name, test := range map[string]struct {
		s                 *snapshot.Snapshot
		sentence, trouble string
	}{
		"not asked":   {&snapshot.Snapshot{}, "", ""},
		"none":        {snap(&gpu.Reading{State: gpu.StateNoDriver}), "No NVIDIA GPU.", ""},
		"fine":        {snap(up, node(a, "nvidia"), node(b, "nvidia")), "2 NVIDIA GPUs: 2 answering.", ""},
		"one lost":    {snap(lost, node(a, "nvidia"), node(b, "nvidia")), "2 NVIDIA GPUs: 1 answering, 1 lost.", ""},
		"hangs":       {snap(nil, node(a, "nvidia")), "1 NVIDIA GPU: 1 of unknown state.", "NVML has not answered for 1m30s: nvmlDeviceGetBAR1MemoryInfo of GPU 0000:1b:00.0 does not return."},
		"no library":  {snap(&gpu.Reading{State: gpu.StateNoLibrary}, node(a, "nvidia")), "1 NVIDIA GPU: 1 of unknown state.", "NVML does not work: libnvidia-ml.so.1 is in none of --path.driver-root."},
		"passthrough": {snap(&gpu.Reading{State: gpu.StateNoLibrary}, node(a, "vfio-pci"), node(b, "")), "2 NVIDIA GPUs: 1 given to virtual machines, 1 without a driver.", ""},
	} {
		if got := GPUSentence(test.s); got != test.sentence {
			t.Errorf("%s: %q, want %q", name, got, test.sentence)
		}
		if got := gpuTrouble(test.s); got != test.trouble {
			t.Errorf("%s: trouble %q, want %q", name, got, test.trouble)
		}
	}
	for _, state := range gpu.States {
		if state != gpu.StateUp && nvmlTexts[state] == "" {
			t.Errorf("no text for %s", state)
		}
	}
	var page strings.Builder
	if err := (Page{Snapshot: snap(nil, node(a, "nvidia"))}).WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1 NVIDIA GPU", "nvmlDeviceGetBAR1MemoryInfo"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}
