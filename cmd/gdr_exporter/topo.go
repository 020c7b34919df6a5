package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"go.uber.org/zap"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/status"
)

const topoHelp = "Show how far every GPU is from every RDMA device, through which bridges and links, without the driver's help.\n\n" +
	"Example, for a script:\n\n  gdr_exporter topo --output json | jq '.pairs[] | select(.nearest)'"

// topoFlags adds the command topo.
func topoFlags(app *kingpin.Application, c *config) {
	command := app.Command("topo", topoHelp)
	command.Flag("output", "Form of the output: table or json.").Default("table").EnumVar(&c.topoOutput, "table", "json")
}

// topo reads the PCIe tree once and prints it.
func topo(ctx context.Context, c *config, stdout, stderr io.Writer) error {
	if err := c.openReplay(); err != nil {
		return err
	}
	if err := c.validate(); err != nil {
		return err
	}
	if c.replay != nil {
		fmt.Fprintln(stderr, c.replay.sentence())
	}
	logger := newLogger(c.logLevel, c.logFormat, stderr)
	taker := snapshot.New(snapshot.Options{Deadline: c.deadline, Tell: logReadError(logger)}).Affinity(c.affinityReader(c.origin())).Taker()
	defer taker.Close()
	limited, cancel := context.WithTimeout(ctx, c.deadline)
	defer cancel()
	s := taker.Take(limited, func(name string) bool { return name == snapshot.CollectorAffinity })
	if ctx.Err() != nil {
		return errInterrupted
	}
	for _, unit := range s.Affinity.Units {
		if unit.StuckFor > 0 {
			logger.Warn("reading the PCI function does not return", zap.String("address", unit.Name), zap.Duration("after", unit.StuckFor.Round(time.Millisecond)))
		}
	}
	t, err := status.NewTopology(s.Affinity)
	if err != nil {
		return err
	}
	if c.topoOutput == "json" {
		return t.WriteJSON(stdout)
	}
	return t.WriteTable(stdout)
}
