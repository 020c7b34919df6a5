package snapshot

import (
	"slices"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/driver"
)

// TestGPUChanges: what comes and goes of GPUs is told of once; while NVML hangs
// nothing is said of what only it can tell.
func TestGPUChanges(t *testing.T) {
	const a, b = "0000:1b:00.0", "0000:3b:00.0"
	both := bus("nvidia", a, b)
	fine := gpuHost{nodes: both, nvml: answers(a, b), proc: []string{a, b}}
	lost := gpuHost{nodes: both, nvml: answers(a, "!"+b), proc: []string{a, b}}
	hangs := gpuHost{nodes: both, proc: []string{a, b}}
	mismatch := gpuHost{nodes: both, nvml: &gpu.Reading{State: gpu.StateVersionMismatch}, proc: []string{a, b}}
	quiesced := gpuHost{nodes: both, nvml: &gpu.Reading{State: gpu.StateQuiesced}, proc: []string{a, b}}
	none := gpuHost{nvml: &gpu.Reading{State: gpu.StateNoDriver}}
	for name, test := range map[string]struct {
		hosts []gpuHost
		want  [][]string
	}{
		"no driver":          {[]gpuHost{none, none}, [][]string{nil, nil}},
		"lost and back":      {[]gpuHost{fine, lost, lost, fine}, [][]string{{"+nvml  of gpu"}, {"+lost " + b + " of gpu"}, nil, {"-lost " + b + " of gpu"}}},
		"hangs":              {[]gpuHost{lost, hangs, hangs, fine}, [][]string{{"+lost " + b + " of gpu", "+nvml  of gpu"}, {"+stuck nvml of gpu"}, nil, {"-lost " + b + " of gpu", "-stuck nvml of gpu"}}},
		"mismatch and cured": {[]gpuHost{fine, mismatch, mismatch, fine}, [][]string{{"+nvml  of gpu"}, {"-nvml  of gpu", "+nvml_failed version_mismatch of gpu"}, nil, {"+nvml  of gpu", "-nvml_failed version_mismatch of gpu"}}},
		"quiesced":           {[]gpuHost{lost, quiesced, quiesced, fine}, [][]string{{"+lost " + b + " of gpu", "+nvml  of gpu"}, nil, nil, {"-lost " + b + " of gpu"}}},
		"starts quiesced":    {[]gpuHost{quiesced, fine}, [][]string{nil, {"+nvml  of gpu"}}},
		"the driver goes":    {[]gpuHost{fine, none}, [][]string{{"+nvml  of gpu"}, {"-nvml  of gpu"}}},
	} {
		t.Run(name, func(t *testing.T) {
			var told []string
			w := watcher{tell: func(c Change) { told = append(told, words(c)) }}
			for i, host := range test.hosts {
				told = nil
				w.look(host.snapshot())
				if !slices.Equal(told, test.want[i]) {
					t.Errorf("step %d: told %q, want %q", i, told, test.want[i])
				}
			}
		})
	}
}

// TestDriverChanges: modules that come and go, and a library that does not fit.
func TestDriverChanges(t *testing.T) {
	var told []string
	w := watcher{tell: func(c Change) { told = append(told, words(c)) }}
	state := func(reading *driver.Reading) *Snapshot {
		part := &DriverPart{Units: []UnitPart[driver.Reading]{{Name: "driver", Data: reading}}}
		if reading == nil {
			part.Units[0].StuckFor = time.Minute
		}
		return &Snapshot{Driver: part}
	}
	loaded := &driver.Reading{Loaded: sysread.Some(true)}
	mismatch := &driver.Reading{Loaded: sysread.Some(true), Version: sysread.Some("1"), Library: sysread.Some(driver.Library{Version: "2"})}
	for i, step := range []struct {
		reading *driver.Reading
		want    []string
	}{
		{&driver.Reading{}, nil},
		{loaded, []string{"+loaded nvidia of driver"}},
		{nil, []string{"+stuck driver of driver"}},
		{mismatch, []string{"+mismatch  of driver", "-stuck driver of driver"}},
		{loaded, nil}, // the versions cannot be read: nothing is said of them
		{&driver.Reading{}, nil},
		{&driver.Reading{Loaded: sysread.Some(true), Version: sysread.Some("2"), Library: sysread.Some(driver.Library{Version: "2"})}, []string{"-mismatch  of driver"}},
		{&driver.Reading{Loaded: sysread.Some(false)}, []string{"-loaded nvidia of driver"}},
	} {
		told = nil
		w.look(state(step.reading))
		if !slices.Equal(told, step.want) {
			t.Errorf("step %d: told %q, want %q", i, told, step.want)
		}
	}
}
