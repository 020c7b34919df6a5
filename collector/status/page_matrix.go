package status

import (
	"fmt"
	"slices"
	"strings"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/rdma/loopback"
)

// matrix is the table of all pairs: a row for each GPU, a column for each RDMA
// device.
type matrix struct {
	Devices []matrixDevice
	Rows    []matrixRow
	// Judged: some cell has a verdict.
	Judged bool
}

type matrixDevice struct{ Name, Note string }

type matrixRow struct {
	GPU, Note string
	Cells     []matrixCell
	// Rest says what the cells are that a narrow screen leaves out.
	Rest string
}

// matrixCell is a pair.
type matrixCell struct {
	Device, Distance string
	Look             look // empty: nothing is said of the pair
	Expected         bool
	Rate, Ratio      string // of path gpu, and to path host
	Evidence         string // what the verdict rests on, unless it is measured
	Absent           bool   // there is no such pair
}

// Class is the cell's look.
func (c *matrixCell) Class() string {
	classes := []string{c.Look.Class}
	if c.Expected {
		classes = append(classes, "expected")
	}
	if c.Look.Word == "" {
		classes = append(classes, "far")
	}
	return strings.TrimSpace(strings.Join(classes, " "))
}

// newMatrix is the matrix of a Document, nil if there is no pair.
func newMatrix(doc *Document) *matrix {
	if len(doc.Pairs) == 0 {
		return nil
	}
	m := &matrix{}
	column := map[string]int{}
	for i := range doc.Pairs {
		name := doc.Pairs[i].Device
		if _, known := column[name]; !known {
			column[name] = 0
			m.Devices = append(m.Devices, matrixDevice{Name: name})
		}
	}
	slices.SortFunc(m.Devices, func(a, b matrixDevice) int { return natural(a.Name, b.Name) })
	for i := range m.Devices {
		column[m.Devices[i].Name] = i
		m.Devices[i].Note = deviceNote(doc, m.Devices[i].Name)
	}
	for i := range doc.Pairs {
		pair := &doc.Pairs[i]
		if len(m.Rows) == 0 || m.Rows[len(m.Rows)-1].GPU != pair.GPU {
			m.Rows = append(m.Rows, m.row(doc, pair.GPU))
		}
		cell := newMatrixCell(pair)
		m.Judged = m.Judged || cell.Look.Word != ""
		m.Rows[len(m.Rows)-1].Cells[column[pair.Device]] = cell
	}
	for i := range m.Rows {
		m.Rows[i].Rest = rest(m.Rows[i].Cells)
	}
	return m
}

// row is an empty row.
func (m *matrix) row(doc *Document, gpu string) matrixRow {
	row := matrixRow{GPU: gpu, Cells: make([]matrixCell, len(m.Devices))}
	for i := range row.Cells {
		row.Cells[i] = matrixCell{Device: m.Devices[i].Name, Absent: true}
	}
	for i := range doc.GPUs {
		if g := &doc.GPUs[i]; g.Address == gpu && g.Index != nil {
			row.Note = fmt.Sprintf("GPU %d", *g.Index)
		}
	}
	return row
}

// deviceNote is a device's role where that is not the usual.
func deviceNote(doc *Document, name string) string {
	for i := range doc.Devices {
		if d := &doc.Devices[i]; d.Name == name && d.Role != nil && *d.Role != "compute" {
			return *d.Role
		}
	}
	return ""
}

func newMatrixCell(pair *DocPair) matrixCell {
	cell := matrixCell{Device: pair.Device, Distance: pair.Distance, Expected: pair.Expected}
	if pair.State != nil {
		cell.Look = stateLooks[*pair.State]
		if pair.Evidence != nil && *pair.Evidence != diagnosis.EvidenceMeasured && *pair.Evidence != diagnosis.EvidenceNone {
			cell.Evidence = string(*pair.Evidence) + ", not measured"
		}
	}
	if rate := pair.rate(loopback.PathGPU); rate != nil && rate.BytesPerSecond != nil {
		cell.Rate = gigabytes(rate.BytesPerSecond)
		if rate.Ratio != nil {
			cell.Ratio = fmt.Sprintf("%.0f %% of host", *rate.Ratio*100)
		}
	}
	return cell
}

// rate is what was measured of a path and still stands, nil if nothing does. What
// arrived wrong has no rate.
func (p *DocPair) rate(path loopback.Path) *DocPathRate {
	if p.Measured == nil || p.Measured.Full == nil || p.Measured.Withdrawn != nil {
		return nil
	}
	paths := p.Measured.Full.Paths
	for i := range paths {
		if paths[i].Path == string(path) && (paths[i].Mismatches == nil || *paths[i].Mismatches == 0) {
			return &paths[i]
		}
	}
	return nil
}

// distances are the classes of distance, the nearest first.
var distances = []string{
	affinity.PIX.String(), affinity.PXB.String(), affinity.P2C.String(), affinity.PHB.String(), affinity.NODE.String(), affinity.SYS.String(), affinity.Unknown.String(),
}

// rest counts by distance the cells that nothing is said of.
func rest(cells []matrixCell) string {
	counts, order := map[string]int{}, []string{}
	total := 0
	for i := range cells {
		if c := &cells[i]; c.Look.Word == "" && !c.Absent {
			if counts[c.Distance] == 0 {
				order = append(order, c.Distance)
			}
			counts[c.Distance]++
			total++
		}
	}
	if total == 0 {
		return ""
	}
	slices.SortFunc(order, func(a, b string) int { return slices.Index(distances, a) - slices.Index(distances, b) })
	parts := make([]string, len(order))
	for i, distance := range order {
		parts[i] = fmt.Sprintf("%d %s", counts[distance], distance)
	}
	return fmt.Sprintf("not judged: %s (%s)", plural(total, "other NIC"), strings.Join(parts, ", "))
}
