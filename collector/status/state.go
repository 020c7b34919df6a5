package status

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"gdr_exporter/rdma/loopback/prober"
)

// WriteState writes what is kept of measurements for a terminal, at a time.
func WriteState(w io.Writer, s *prober.State, now time.Time) error {
	var b strings.Builder
	if s.Written.IsZero() {
		b.WriteString("Nothing is kept.\n")
	} else {
		fmt.Fprintf(&b, "written %s ago, in the boot %s\n", span(now.Sub(s.Written)), printable(s.BootID))
	}
	if s.QuiescedUntil != nil && s.QuiescedUntil.After(now) {
		fmt.Fprintf(&b, "quiesced for another %s\n", span(s.QuiescedUntil.Sub(now)))
	}
	if len(s.Pairs) > 0 {
		out := section(&b, "GPU", "NIC", "port", "distance", "result", "rate", "of host", "measured", "remarks")
		for i := range s.Pairs {
			out.AppendRow(keptRow(&s.Pairs[i], now))
		}
		out.Render()
	}
	if len(s.Baselines) > 0 {
		out := section(&b, "GPU", "NIC", "port", "driver", "NIC firmware", "kernel", "baseline runs", "rates", "last")
		for _, line := range s.Baselines {
			if line != nil {
				out.AppendRow(baselineRow(line, now))
			}
		}
		out.Render()
	}
	if len(s.Ports) > 0 {
		out := section(&b, "NIC", "port", "last seen ACTIVE")
		for _, port := range s.Ports {
			out.AppendRow(table.Row{printable(port.Device), port.Port, span(now.Sub(port.Active)) + " ago"})
		}
		out.Render()
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func section(b *strings.Builder, header ...any) table.Writer {
	b.WriteString("\n")
	return newTable(b, header...)
}

func keptRow(p *prober.PairState, now time.Time) table.Row {
	shown := ControlPair{Pair: p.Pair, Distance: p.Distance, Standing: newControlRun(p.Standing()), Withdrawn: p.Withdrawn}
	row := shown.row(now)
	return slices.Delete(row, len(row)-2, len(row)-1) // when it is due is not kept
}

func baselineRow(b *prober.Baseline, now time.Time) table.Row {
	rates := "-"
	if len(b.Rates) > 0 {
		least, most := slices.Min(b.Rates), slices.Max(b.Rates)
		rates = gigabytes(&least) + " to " + gigabytes(&most)
	}
	return table.Row{
		b.Pair.GPU, printable(b.Pair.Device), b.Pair.Port, printable(b.Identity.Driver), printable(b.Identity.Firmware), printable(b.Identity.Kernel),
		len(b.Rates), rates, span(now.Sub(b.Last)) + " ago",
	}
}
