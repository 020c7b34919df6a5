package gpu_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"gdr_exporter/gpu"
	nvmltape "gdr_exporter/gpu/tape"
)

// TestRecorded reads the tapes of real machines: without errors, without a
// question that the machine was not asked, and with every GPU complete.
func TestRecorded(t *testing.T) {
	files, err := filepath.Glob("testdata/*.tape.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("testdata has no tape: TestOnGPU records one")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			tape, err := nvmltape.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			player := nvmltape.Play(tape)
			r := gpu.NewReader(gpu.Options{Open: player.Open, SlowInterval: time.Minute, NVLink: true, PerLink: true, Fabric: true})
			defer r.Close()
			reading := read(t, r, start)
			if reading.State != gpu.StateUp || len(reading.GPUs) != len(tape.Devices) || len(reading.GPUs) == 0 {
				t.Fatalf("%s %v, %d GPUs of %d", reading.State, reading.Err, len(reading.GPUs), len(tape.Devices))
			}
			for _, g := range reading.GPUs {
				if g.UUID == "" || g.Name == "" || !g.PCIe.Generation.Known || !g.BAR1.Total.Known || !g.FB.Free.Known || !g.Procs.Known || len(g.Xids) == 0 {
					t.Errorf("incomplete: %+v", g)
				}
			}
			if missing := player.Unrecorded(); len(missing) > 0 {
				t.Errorf("asked for in vain: %v", missing)
			}
		})
	}
}
