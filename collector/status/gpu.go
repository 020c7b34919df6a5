package status

import (
	"fmt"
	"strings"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu"
)

// presences are what may have become of a GPU, in the order in which a sentence
// names them.
var presences = []struct {
	value snapshot.Presence
	text  string
}{
	{snapshot.PresenceNVML, "answering"}, {snapshot.PresenceLost, "lost"}, {snapshot.PresencePassthrough, "given to virtual machines"},
	{snapshot.PresenceUnbound, "without a driver"}, {snapshot.PresenceOther, "with another driver"},
	{snapshot.PresenceHidden, "hidden by the container"}, {snapshot.PresenceUnseen, "of unknown state"},
}

// nvmlTexts say why NVML does not work.
var nvmlTexts = map[gpu.State]string{
	gpu.StateQuiesced:        "NVML is not asked: the exporter is quiesced.",
	gpu.StateNoLibrary:       "NVML does not work: libnvidia-ml.so.1 is in none of --path.driver-root.",
	gpu.StateNoDriver:        "NVML does not work: the nvidia module is not loaded.",
	gpu.StateNoPermission:    "NVML does not work: /dev/nvidiactl may not be opened.",
	gpu.StateVersionMismatch: "NVML does not work: its library and the loaded nvidia module are of different versions.",
	gpu.StateFailed:          "NVML does not work.",
}

// GPUSentence says in a line or two what GPUs a Snapshot holds, "" if they were
// not asked for.
func GPUSentence(s *snapshot.Snapshot) string {
	if s.GPU == nil && s.Affinity == nil {
		return ""
	}
	all := s.GPUs().All
	if len(all) == 0 {
		return "No NVIDIA GPU."
	}
	counts := map[snapshot.Presence]int{}
	for _, g := range all {
		counts[g.Presence]++
	}
	var parts []string
	for _, p := range presences {
		if n := counts[p.value]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, p.text))
		}
	}
	return fmt.Sprintf("%s: %s.", plural(len(all), "NVIDIA GPU"), strings.Join(parts, ", "))
}

// gpuTrouble says what is wrong with GPUs, "" if nothing is known to be.
func gpuTrouble(s *snapshot.Snapshot) string {
	stuck, call := s.NVMLStuck()
	reading := s.NVML()
	switch {
	case stuck > 0 && call.Name != "":
		where := call.Name
		if call.GPUAddress != "" {
			where += " of GPU " + call.GPUAddress
		}
		return fmt.Sprintf("NVML has not answered for %v: %s does not return.", max(stuck.Round(time.Second), time.Second), where)
	case reading == nil || reading.State == gpu.StateUp:
		return ""
	case s.GPUs().Count((*snapshot.GPU).Bound) == 0:
		return "" // nobody to miss it
	}
	return nvmlTexts[reading.State]
}
