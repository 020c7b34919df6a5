// Package status shows a Snapshot to a person.
package status

import (
	"bytes"
	"cmp"
	_ "embed" // the page's HTML
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma"
)

// Page is what the landing page shows.
type Page struct {
	Version     string
	MetricsPath string
	// Replay says what is replayed; "": the page is of this host.
	Replay   string
	Snapshot *snapshot.Snapshot
}

// mostErrors bounds the errors shown; the metrics have them all.
const mostErrors = 50

// row is one port on the landing page, or one device that shows none.
type row struct {
	Device, Port, State, Physical, Rate, LinkLayer, Netdev, Driver, Address, Note string
	// Class is the state's look: good, bad, or "" for what may be as it should,
	// such as the DOWN of a port without a cable.
	Class string
}

// WriteHTML writes the landing page.
func (p Page) WriteHTML(w io.Writer) error {
	var b bytes.Buffer
	s := p.Snapshot
	rows := rows(s)
	errs, more := s.Errors, 0
	if len(errs) > mostErrors {
		errs, more = errs[:mostErrors], len(errs)-mostErrors
	}
	pairs, morePairs := pairRows(s)
	err := landing.Execute(&b, map[string]any{
		"Version": p.Version, "MetricsPath": p.MetricsPath, "Replay": p.Replay,
		"Sentence": Sentence(s), "Absent": s.RDMA != nil && s.RDMA.Err == nil && s.RDMA.Listing.Devices+s.RDMA.Listing.Excluded == 0,
		"GPUs": GPUSentence(s), "GPUTrouble": gpuTrouble(s),
		"Prober": proberSentences(s), "Pairs": pairs, "MorePairs": morePairs,
		"Rows": rows, "Ports": portSummary(rows), "Silent": silentSummary(s),
		"Errors": errs, "More": more,
		"Taken": taken(s).UTC().Format("2006-01-02 15:04:05 UTC"),
	})
	if err != nil {
		return fmt.Errorf("landing page: %w", err)
	}
	_, err = b.WriteTo(w)
	return err
}

// taken is when the devices were read.
func taken(s *snapshot.Snapshot) time.Time {
	if s.RDMA != nil {
		return s.RDMA.Taken
	}
	return s.Taken
}

// portSummary says how many ports are in which state: "8 ports: 7 ACTIVE, 1 DOWN."
func portSummary(rows []row) string {
	total, counts := 0, map[string]int{}
	for _, r := range rows {
		if r.Port != "" {
			total++
			counts[r.State]++
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

func rows(s *snapshot.Snapshot) []row {
	if s.RDMA == nil {
		return nil
	}
	var all []row
	for _, unit := range s.RDMA.Units {
		switch {
		case unit.Data == nil:
			all = append(all, row{Device: unit.Name, Note: silence(unit.StuckFor), Class: "bad"})
		case unit.Data.Plane():
			all = append(all, row{Device: unit.Name, Note: "a plane of " + unit.Data.Parent + ", which has its traffic"})
		case len(unit.Data.Ports) == 0:
			all = append(all, row{Device: unit.Name, Note: "no port could be read", Class: "bad"})
		default:
			for i := range unit.Data.Ports {
				all = append(all, portRow(unit.Data, &unit.Data.Ports[i]))
			}
		}
	}
	return all
}

// silence says that a device does not answer, and since when if that is long.
func silence(since time.Duration) string {
	if since < time.Second {
		return "does not answer: its driver may hang"
	}
	return "has not answered for " + since.Round(time.Second).String() + ": its driver may hang"
}

func portRow(d *rdma.Device, port *rdma.Port) row {
	r := row{
		Device: d.Name, Port: port.Label, LinkLayer: port.LinkLayer, Netdev: port.Netdev,
		Driver: d.Driver, Address: d.PCIAddress,
		State:    name(port.State.Known, port.State.Value, stateNames),
		Physical: name(port.PhysicalState.Known, port.PhysicalState.Value, physicalNames),
	}
	active := port.State.Known && port.State.Value == stateActive
	switch {
	case active:
		r.Class = "good"
	case !port.State.Known:
		r.Class = "bad"
	}
	if active && port.Rate.Known { // else it is a placeholder
		r.Rate = fmt.Sprintf("%g Gb/s", float64(port.Rate.Value.BytesPerSecond)*8/1e9)
	}
	r.Note = strings.Join(notes(d, port), "; ")
	return r
}

// notes tells what keeps a port's counters from being read.
func notes(d *rdma.Device, port *rdma.Port) []string {
	var all []string
	if d.Hidden {
		all = append(all, "counters hidden: this sysfs belongs to another network namespace")
	}
	for _, restriction := range port.Restricted {
		if restriction.All {
			all = append(all, "the driver refuses every file of "+string(restriction.Source)+"/")
		}
	}
	return all
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

//go:embed landing.html
var landingHTML string

var landing = template.Must(template.New("landing").Funcs(template.FuncMap{"p": printable}).Parse(landingHTML))
