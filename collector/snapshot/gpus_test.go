package snapshot

import (
	"slices"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
)

// gpuHost is what the sources say of a host's GPUs.
type gpuHost struct {
	nodes   []affinity.Node
	gone    []string
	nvml    *gpu.Reading
	proc    []string // nil: no such directory
	partial bool
}

func (h gpuHost) snapshot() *Snapshot {
	s := &Snapshot{
		Affinity: &AffinityPart{Listing: affinity.Listing{Functions: h.nodes, Gone: h.gone}},
		Driver:   &DriverPart{Units: []UnitPart[driver.Reading]{{Name: "driver", Data: &driver.Reading{ProcGPUsPartial: h.partial}}}},
		GPU:      &GPUPart{Units: []UnitPart[gpu.Reading]{{Name: "nvml", Data: h.nvml}}},
	}
	if h.proc != nil {
		s.Driver.Units[0].Data.ProcGPUs = sysread.Some(h.proc)
	}
	if h.nvml == nil {
		s.GPU.Units[0].StuckFor = time.Minute
	}
	return s
}

// bus are GPUs on the PCI bus with a driver, by address.
func bus(driver string, addresses ...string) (nodes []affinity.Node) {
	for _, address := range addresses {
		nodes = append(nodes, affinity.Node{Address: address, Kind: affinity.KindGPU, Driver: driver})
	}
	return nodes
}

// answers is NVML with GPUs; those with a ! are lost.
func answers(addresses ...string) *gpu.Reading {
	r := &gpu.Reading{State: gpu.StateUp}
	for _, address := range addresses {
		lost := address[0] == '!'
		if lost {
			address = address[1:]
		}
		r.GPUs = append(r.GPUs, gpu.GPU{Address: address, Lost: lost})
	}
	return r
}

// TestPresence: only a GPU that the driver had is lost; what an administrator or
// a container does is silent.
func TestPresence(t *testing.T) {
	const a, b = "0000:1b:00.0", "0000:3b:00.0"
	down := &gpu.Reading{State: gpu.StateNoLibrary}
	unnamed, refused := answers(a), answers(a)
	unnamed.LostUnnamed, refused.Hidden = 1, 1
	for name, test := range map[string]struct {
		host gpuHost
		want []Presence // of a and b
	}{
		"fine":                               {gpuHost{nodes: bus("nvidia", a, b), nvml: answers(a, b), proc: []string{a, b}}, []Presence{"nvml", "nvml"}},
		"NVML calls one lost":                {gpuHost{nodes: bus("nvidia", a, b), nvml: answers(a, "!"+b), proc: []string{a, b}}, []Presence{"nvml", "lost"}},
		"NVML counts one it cannot name":     {gpuHost{nodes: bus("nvidia", a, b), nvml: unnamed, proc: []string{a, b}}, []Presence{"nvml", "lost"}},
		"the driver does not list one":       {gpuHost{nodes: bus("nvidia", a, b), nvml: answers(a), proc: []string{a}}, []Presence{"nvml", "lost"}},
		"nor with NVML hanging":              {gpuHost{nodes: bus("nvidia", a, b), proc: []string{a}}, []Presence{"unseen", "lost"}},
		"off the bus":                        {gpuHost{nodes: bus("nvidia", a), gone: []string{b}, nvml: answers(a), proc: []string{a}}, []Presence{"nvml", "lost"}},
		"passed through":                     {gpuHost{nodes: slices.Concat(bus("nvidia", a), bus("vfio-pci", b)), nvml: answers(a), proc: []string{a}}, []Presence{"nvml", "passthrough"}},
		"passed through on Grace":            {gpuHost{nodes: bus("nvgrace_gpu_vfio_pci", a, b), nvml: down}, []Presence{"passthrough", "passthrough"}},
		"unbound":                            {gpuHost{nodes: slices.Concat(bus("nvidia", a), bus("", b)), nvml: answers(a), proc: []string{a}}, []Presence{"nvml", "unbound"}},
		"nouveau":                            {gpuHost{nodes: bus("nouveau", a, b), nvml: down}, []Presence{"other_driver", "other_driver"}},
		"NVML may not open one":              {gpuHost{nodes: bus("nvidia", a, b), nvml: refused, proc: []string{a}}, []Presence{"nvml", "hidden"}},
		"a container given one":              {gpuHost{nodes: bus("nvidia", a, b), nvml: answers(a), proc: []string{a}, partial: true}, []Presence{"nvml", "hidden"}},
		"a container given one, host's proc": {gpuHost{nodes: bus("nvidia", a, b), nvml: answers(a), proc: []string{a, b}}, []Presence{"nvml", "hidden"}},
		"a container without NVML":           {gpuHost{nodes: bus("nvidia", a, b), nvml: down, proc: []string{a}, partial: true}, []Presence{"unseen", "unseen"}},
		"a container, one lost":              {gpuHost{nodes: bus("nvidia", a, b), nvml: answers("!" + a), proc: []string{a}, partial: true}, []Presence{"lost", "hidden"}},
		"NVML hangs":                         {gpuHost{nodes: bus("nvidia", a, b), proc: []string{a, b}}, []Presence{"unseen", "unseen"}},
		"no driver files":                    {gpuHost{nodes: bus("nvidia", a, b), nvml: down}, []Presence{"unseen", "unseen"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []Presence
			for _, g := range test.host.snapshot().GPUs().All {
				got = append(got, g.Presence)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}
