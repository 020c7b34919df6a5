package collector

import (
	"fmt"
	"path/filepath"
	"testing"

	"gdr_exporter/collector/diagnosis"
)

// libraryScenes are the pages kept in testdata/library.
var libraryScenes = map[string]func() *diagnosis.Diagnosis{
	// NVIDIA/nccl#1676: an old NCCL does not see the module.
	"old-nccl-blind": func() *diagnosis.Diagnosis {
		return chosen("PIX", map[string]bool{"nccl 2.4": false, "nccl 2.13": false, "nccl 2.23": true, "nccl 2.27": true, "ucx current": true})
	},
	// Over NVLink-C2C only the newest rule counts the NIC as near.
	"grace": func() *diagnosis.Diagnosis {
		return chosen("P2C", map[string]bool{"nccl 2.4": false, "nccl 2.13": false, "nccl 2.23": false, "nccl 2.27": true, "ucx current": true})
	},
	// Before the first measurement only the refusals are known.
	"unmeasured": func() *diagnosis.Diagnosis {
		return chosen("PIX", map[string]bool{"nccl 2.4": false, "nccl 2.13": false})
	},
}

// chosen is a pair with the choices on it by library and rule.
func chosen(distance string, uses map[string]bool) *diagnosis.Diagnosis {
	d := &diagnosis.Diagnosis{Paths: []diagnosis.Path{{GPU: "0000:1b:00.0", Device: "mlx5_0", Distance: distance}}}
	for _, g := range diagnosis.Generations {
		if use, known := uses[g.Library+" "+g.Rule]; known {
			d.Choices = append(d.Choices, diagnosis.LibraryChoice{GPU: "0000:1b:00.0", Device: "mlx5_0", Library: g.Library, Rule: g.Rule, Uses: use})
		}
	}
	return d
}

func TestLibraryGolden(t *testing.T) {
	for name, scene := range libraryScenes {
		t.Run(name, func(t *testing.T) {
			p := newPage()
			showLibrary(p, scene())
			comparePage(t, p, filepath.Join("testdata", "library", name+".metrics"))
		})
	}
}

// TestLibrarySeries: a node of eight pairs, all of whose choices are known, has 24
// series of libraries and 32 of live use.
func TestLibrarySeries(t *testing.T) {
	d := &diagnosis.Diagnosis{}
	for i := range 8 {
		gpu, device := fmt.Sprintf("0000:1%d:00.0", i), fmt.Sprintf("mlx5_%d", i)
		d.Paths = append(d.Paths, diagnosis.Path{GPU: gpu, Device: device, Distance: "PIX"})
		for _, g := range diagnosis.Generations {
			d.Choices = append(d.Choices, diagnosis.LibraryChoice{GPU: gpu, Device: device, Library: g.Library, Rule: g.Rule, Uses: true})
		}
		d.Live = append(d.Live, diagnosis.LiveUse{Device: device, Live: diagnosis.LiveIdle})
	}
	p := newPage()
	showLibrary(p, d)
	if p.used != 24 {
		t.Errorf("%d series of libraries", p.used)
	}
	showLive(p, d.Live)
	if p.used != 24+32 {
		t.Errorf("%d series of both", p.used)
	}
}
