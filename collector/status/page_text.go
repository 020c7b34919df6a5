package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"gdr_exporter/collector/snapshot"
)

// portSummary says how many ports are in which state: "8 ports: 7 ACTIVE, 1 DOWN."
func portSummary(s *snapshot.Snapshot) string {
	if s.RDMA == nil {
		return ""
	}
	total, counts := 0, map[string]int{}
	for _, unit := range s.RDMA.Units {
		if unit.Data == nil || unit.Data.Plane() {
			continue
		}
		for i := range unit.Data.Ports {
			state := &unit.Data.Ports[i].State
			total++
			counts[name(state.Known, state.Value, stateNames)]++
		}
	}
	if total == 0 {
		return ""
	}
	var parts []string
	for _, state := range slices.SortedFunc(maps.Keys(counts), byState) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[state], state))
	}
	return fmt.Sprintf("%s: %s.", plural(total, "port"), strings.Join(parts, ", "))
}

// byState orders the states, the best first.
func byState(a, b string) int {
	return cmp.Or(slices.Index(stateNames, b)-slices.Index(stateNames, a), strings.Compare(a, b))
}

// silentSummary tells of devices that do not answer.
func silentSummary(s *snapshot.Snapshot) string {
	silent := 0
	if s.RDMA != nil {
		for _, unit := range s.RDMA.Units {
			if unit.Data == nil {
				silent++
			}
		}
	}
	switch silent {
	case 0:
		return ""
	case 1:
		return "1 device does not answer."
	default:
		return fmt.Sprintf("%d devices do not answer.", silent)
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Sentence says in one line what RDMA hardware a Snapshot holds.
func Sentence(s *snapshot.Snapshot) string {
	switch {
	case s.RDMA == nil:
		return "The rdma collector is switched off."
	case s.RDMA.Err != nil:
		return "The RDMA devices could not be listed: " + s.RDMA.Err.Error() + "."
	case !s.RDMA.Listing.Present && s.RDMA.Listing.Devices == 0:
		return "No RDMA device class on this host: /sys/class/infiniband does not exist, so the kernel module ib_core is not loaded."
	case s.RDMA.Listing.Devices == 0 && s.RDMA.Listing.Excluded > 0:
		return fmt.Sprintf("No RDMA device: all %d are excluded by flags.", s.RDMA.Listing.Excluded)
	case s.RDMA.Listing.Devices == 0:
		return "No RDMA device on this host: /sys/class/infiniband is empty."
	case s.RDMA.Listing.Devices == 1:
		return "1 RDMA device."
	default:
		return fmt.Sprintf("%d RDMA devices.", s.RDMA.Listing.Devices)
	}
}

// silence says that a device does not answer, and since when if that is long.
func silence(since time.Duration) string {
	if since < time.Second {
		return "does not answer: its driver may hang"
	}
	return "has not answered for " + since.Round(time.Second).String() + ": its driver may hang"
}

// stateActive is the state of a port that carries traffic.
const stateActive = 4

// Names of the port states, by their numbers in the kernel (enum ib_port_state
// and enum ib_port_phys_state, include/rdma/ib_verbs.h).
var (
	stateNames    = []string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}
	physicalNames = []string{"", "Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery", "Phy Test"}
)

func name(known bool, id int, names []string) string {
	switch {
	case !known:
		return "not readable"
	case id < len(names) && names[id] != "":
		return names[id]
	default:
		return fmt.Sprintf("unknown (%d)", id)
	}
}

// mostText bounds a text from a device, of which sysfs may hold a whole page.
const mostText = 120

// printable replaces what is no text, and cuts what is too long to show. Markup
// is the template's business.
func printable(text string) string {
	if runes := []rune(text); len(runes) > mostText {
		text = string(runes[:mostText]) + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// age is a duration for people: its largest unit is enough.
func age(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", max(int(d.Seconds()), 0))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	default:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	}
}
