// Package status shows a Snapshot to a person.
package status

import (
	"bytes"
	"fmt"
	"html/template"
	"io"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma"
)

// Page is what the landing page shows.
type Page struct {
	Version     string
	MetricsPath string
	Snapshot    *snapshot.Snapshot
}

// row is one port on the landing page.
type row struct {
	Device, Port, State, Physical, Rate, LinkLayer, Netdev, Driver, Address, Note string
	Good                                                                          bool
}

// WriteHTML writes the landing page.
func (p Page) WriteHTML(w io.Writer) error {
	var b bytes.Buffer
	err := landing.Execute(&b, map[string]any{
		"Version": p.Version, "MetricsPath": p.MetricsPath,
		"Rows": rows(p.Snapshot), "Sentence": Sentence(p.Snapshot), "Errors": p.Snapshot.Errors,
		"Taken": p.Snapshot.Taken.UTC().Format("2006-01-02 15:04:05 UTC"),
	})
	if err != nil {
		return fmt.Errorf("landing page: %w", err)
	}
	_, err = b.WriteTo(w)
	return err
}

// Sentence says in one line what RDMA hardware a Snapshot holds.
func Sentence(s *snapshot.Snapshot) string {
	switch {
	case s.RDMA == nil:
		return "The rdma collector is switched off."
	case s.RDMA.Err != nil:
		return "The RDMA devices could not be listed: " + s.RDMA.Err.Error() + "."
	case !s.RDMA.Listing.Present:
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
			all = append(all, row{Device: unit.Name, Note: fmt.Sprintf("does not answer for %.0f s", unit.StuckFor.Seconds())})
		case unit.Data.Plane():
			all = append(all, row{Device: unit.Name, Note: "a plane of " + unit.Data.Parent, Good: true})
		case len(unit.Data.Ports) == 0:
			all = append(all, row{Device: unit.Name, Note: "no port could be read"})
		default:
			for i := range unit.Data.Ports {
				all = append(all, portRow(unit.Data, &unit.Data.Ports[i]))
			}
		}
	}
	return all
}

func portRow(d *rdma.Device, port *rdma.Port) row {
	r := row{
		Device: d.Name, Port: port.Label, LinkLayer: port.LinkLayer, Netdev: port.Netdev,
		Driver: d.Driver, Address: d.PCIAddress,
		State: name(port.State.Known, port.State.Value, stateNames), Good: port.State.Known && port.State.Value == 4,
		Physical: name(port.PhysicalState.Known, port.PhysicalState.Value, physicalNames),
	}
	if port.Rate.Known {
		r.Rate = fmt.Sprintf("%g Gb/s", float64(port.Rate.Value.BytesPerSecond)*8/1e9)
	}
	if d.Hidden {
		r.Note = "counters hidden: sysfs of another network namespace"
	}
	for _, restriction := range port.Restricted {
		if restriction.All {
			r.Note = string(restriction.Source) + " refuses to be read"
		}
	}
	return r
}

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

var landing = template.Must(template.New("landing").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>gdr_exporter</title>
<style>
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff8a80; } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 75rem; padding: 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .25rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .5rem 0; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
footer { margin-top: 1.5rem; opacity: .75; font-size: .9rem; }
</style>
</head>
<body>
<h1>gdr_exporter</h1>
<p>Health of RDMA and GPU interconnects. <a href="{{.MetricsPath}}">Metrics</a></p>
<main>
<p>{{.Sentence}}</p>
{{- if .Rows}}
<div class="scroll"><table>
<caption>RDMA ports</caption>
<thead><tr><th scope="col">Device</th><th scope="col">Port</th><th scope="col">State</th><th scope="col">Physical state</th><th scope="col">Rate</th><th scope="col">Link layer</th><th scope="col">Netdev</th><th scope="col">Driver</th><th scope="col">PCI address</th><th scope="col">Note</th></tr></thead>
<tbody>
{{- range .Rows}}
<tr><th scope="row">{{.Device}}</th><td>{{.Port}}</td><td class="{{if .Good}}good{{else}}bad{{end}}">{{.State}}</td><td>{{.Physical}}</td><td>{{.Rate}}</td><td>{{.LinkLayer}}</td><td>{{.Netdev}}</td><td>{{.Driver}}</td><td>{{.Address}}</td><td>{{.Note}}</td></tr>
{{- end}}
</tbody>
</table></div>
{{- end}}
{{- if .Errors}}
<div class="scroll"><table>
<caption>What could not be read since start</caption>
<thead><tr><th scope="col">Device</th><th scope="col">Port</th><th scope="col">File</th><th scope="col">Error</th><th scope="col">Times</th></tr></thead>
<tbody>
{{- range .Errors}}
<tr><td>{{.Device}}</td><td>{{.Port}}</td><td>{{.Source}}</td><td>{{.Errno}}</td><td>{{.Count}}</td></tr>
{{- end}}
</tbody>
</table></div>
{{- end}}
</main>
<footer>Version {{.Version}}. As of {{.Taken}}.</footer>
</body>
</html>
`))
