package collector

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// readmeRow matches a row of a metrics table: name, type, labels, meaning.
var readmeRow = regexp.MustCompile("^\\| `(gdr_[a-z0-9X_]+)` \\| (gauge|counter) \\|([^|]*)\\| ([^|]+) \\|$")

// counterFileRows are the README's rows for families named after files. X
// stands for the file's name.
var counterFileRows = map[string]string{
	"gdr_rdma_port_hw_":   "gdr_rdma_port_hw_X_total",
	"gdr_rdma_port_ext_":  "gdr_rdma_port_ext_X_total",
	"gdr_rdma_device_hw_": "gdr_rdma_device_hw_X_total",
	"gdr_rdma_port_":      "gdr_rdma_port_X_total",
}

// TestReadmeTables compares the README's tables with the golden pages: every
// family is in a table, with its type and labels, and no row is without a family.
func TestReadmeTables(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]shape{}
	for line := range strings.Lines(string(readme)) {
		match := readmeRow.FindStringSubmatch(strings.TrimSpace(line))
		if match == nil {
			continue
		}
		labels := strings.FieldsFunc(match[3], func(r rune) bool { return r == '`' || r == ',' || r == ' ' })
		slices.Sort(labels)
		rows[match[1]] = shape{match[2], strings.Join(labels, " ")}
	}
	used := map[string]bool{}
	for name, want := range goldenFamilies(t) {
		row := readmeName(name)
		used[row] = true
		got, found := rows[row]
		switch {
		case !found:
			t.Errorf("README has no row for %s (%s)", name, row)
		case got.labels != want.labels && !strings.Contains(row, "X"):
			t.Errorf("%s: README says labels %q, the page has %q", name, got.labels, want.labels)
		case got.kind != want.kind && !strings.Contains(row, "X"):
			t.Errorf("%s: README says %s, the page %s", name, got.kind, want.kind)
		}
	}
	for row := range rows {
		if !used[row] && row != "gdr_exporter_build_info" {
			t.Errorf("README row %s is of no family in the golden pages", row)
		}
	}
}

// readmeName returns the name under which the README lists a family.
func readmeName(name string) string {
	if declared[name] != nil {
		return name
	}
	for _, prefix := range []string{"gdr_rdma_port_hw_", "gdr_rdma_port_ext_", "gdr_rdma_device_hw_", "gdr_rdma_port_"} {
		if strings.HasPrefix(name, prefix) {
			return counterFileRows[prefix]
		}
	}
	return name
}
