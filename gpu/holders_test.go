package gpu_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/gputest"
)

// TestHolders: the numbers of device nodes and MIG instances are read where they are
// asked for, and no call is made for them elsewhere.
func TestHolders(t *testing.T) {
	m := gputest.H100NVL()
	m.GPUs[0].Minor, m.GPUs[1].Minor = 1, 0 // not in the order of their addresses
	m.GPUs[1].MIG, m.GPUs[1].Instances = nvml.DEVICE_MIG_ENABLE, []string{"MIG-a", "", "MIG-b"}
	m.GPUs[0].Instances = []string{"MIG-left"} // not in MIG mode: nobody asks

	r := gpu.NewReader(all(m))
	defer r.Close()
	for i, g := range read(t, r, start).GPUs {
		if g.Minor.Known || g.Instances != nil {
			t.Errorf("GPU %d unasked: %+v %q", i, g.Minor, g.Instances)
		}
	}
	if calls := strings.Join(m.Calls(), " "); strings.Contains(calls, "Minor") || strings.Contains(calls, "MigDevice") {
		t.Errorf("calls that nobody wants: %s", calls)
	}

	options := all(m)
	options.Holders = true
	asking := gpu.NewReader(options)
	defer asking.Close()
	gpus := read(t, asking, start).GPUs
	if gpus[0].Minor != sysread.Some(1) || gpus[1].Minor != sysread.Some(0) {
		t.Errorf("numbers %+v, %+v", gpus[0].Minor, gpus[1].Minor)
	}
	if gpus[0].Instances != nil || !reflect.DeepEqual(gpus[1].Instances, []string{"MIG-a", "MIG-b"}) {
		t.Errorf("instances %q, %q", gpus[0].Instances, gpus[1].Instances)
	}
	// They stay with the slow group, and follow it.
	m.Change(func() { m.GPUs[1].Instances = []string{"MIG-c"} })
	if g := read(t, asking, start.Add(time.Second)).GPUs[1]; !slices.Equal(g.Instances, []string{"MIG-a", "MIG-b"}) {
		t.Errorf("a second later: %q", g.Instances)
	}
	if g := read(t, asking, start.Add(2*time.Minute)).GPUs[1]; !slices.Equal(g.Instances, []string{"MIG-c"}) {
		t.Errorf("with the next slow group: %q", g.Instances)
	}
}

// TestHoldersOfOldDriver: a driver without the calls costs what they would tell.
func TestHoldersOfOldDriver(t *testing.T) {
	m := gputest.H100NVL()
	m.GPUs[0].MIG, m.GPUs[0].Instances = nvml.DEVICE_MIG_ENABLE, []string{"MIG-a"}
	m.Missing = []string{"nvmlDeviceGetMinorNumber", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"}
	options := all(m)
	options.Holders = true
	r := gpu.NewReader(options)
	defer r.Close()
	if g := read(t, r, start).GPUs[0]; g.Minor.Known || g.Instances != nil || g.UUID == "" {
		t.Errorf("%+v", g)
	}
}
