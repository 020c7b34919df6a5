package collector

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
)

func kernelLogSnapshot(reading *kmsg.Reading) *snapshot.Snapshot {
	return &snapshot.Snapshot{KernelLog: &snapshot.KernelLogPart{Units: []snapshot.UnitPart[kmsg.Reading]{{Name: "kmsg", Data: reading}}}}
}

// quietLog is the log of a healthy host.
func quietLog() *kmsg.Reading {
	r := &kmsg.Reading{Since: goldenTime, Counts: map[kmsg.Pattern]uint64{}, Last: map[kmsg.Pattern]kmsg.Event{}, Lost: sysread.Some[uint64](0)}
	for _, pattern := range kmsg.Patterns {
		r.Counts[pattern] = 0
	}
	return r
}

// TestKernelLogGolden compares the pages with testdata/kmsg/<name>.metrics.
func TestKernelLogGolden(t *testing.T) {
	busy := quietLog()
	busy.Counts[kmsg.Xid], busy.Counts[kmsg.AERCorrectable], busy.Lost = 1, 12, sysread.Some[uint64](7)
	busy.Last[kmsg.Xid] = kmsg.Event{Pattern: kmsg.Xid, Time: goldenTime.Add(-time.Minute), Code: 79}
	busy.Last[kmsg.AERCorrectable] = kmsg.Event{Pattern: kmsg.AERCorrectable, Time: goldenTime.Add(-1500 * time.Millisecond)}
	busy.Last[kmsg.MLX5Unplugged] = kmsg.Event{Pattern: kmsg.MLX5Unplugged, Time: goldenTime.Add(-24 * time.Hour)} // before the start
	for name, c := range map[string]struct {
		reading *kmsg.Reading
		series  int
	}{
		"quiet":      {quietLog(), 22},
		"events":     {busy, 25},
		"unreadable": {&kmsg.Reading{Err: syscall.EPERM, Counts: quietLog().Counts}, 1},
	} {
		p := newPage()
		showKernelLog(p, kernelLogSnapshot(c.reading))
		comparePage(t, p, filepath.Join("testdata", "kmsg", name+".metrics"))
		if p.used != c.series {
			t.Errorf("%s: %d series, want %d", name, p.used, c.series)
		}
	}
}

// The README says of each pattern what the table says.
func TestKernelLogReadme(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range kmsg.Rows {
		if line := fmt.Sprintf("| `%s` | %s |\n", row.Pattern, row.Means); !strings.Contains(string(readme), line) {
			t.Errorf("the README has no line %q", line)
		}
	}
}

// What was not asked has no series.
func TestKernelLogUnknown(t *testing.T) {
	for name, s := range map[string]*snapshot.Snapshot{"not asked": {}, "no unit": {KernelLog: &snapshot.KernelLogPart{}}} {
		p := newPage()
		showKernelLog(p, s)
		if p.used > 0 {
			t.Errorf("%s: %d series", name, p.used)
		}
	}
}
