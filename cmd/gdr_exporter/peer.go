package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/status"
	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/session"
	"gdr_exporter/rdma/peer/targets"
)

const peerHelp = "Measure the paths to other nodes' exporters: latency and bandwidth of each rail, between host memories, between GPU memories (GPUDirect RDMA) and through copies, in each direction and both at once. " +
	"What arrives is verified. The other exporters must run with --peer.enabled and have this node in their list.\n\n" +
	"Example, two nodes:\n\n  gdr_exporter peer --peer.tls-config=peer.yml node17 node18\n\n" +
	"Exit code: 0 all was measured and is within its limits, 3 a node cannot be reached, a path failed or is slow, or data arrived wrong, " +
	"4 something could not be measured (a port or GPU under load, another measurement, refused), 2 a mistake on the command line."

// peerCommand is what the command line says of the command peer.
type peerCommand struct {
	hosts                   []string
	rails, memories, output string
	timeout                 time.Duration
}

// peerCommandFlags adds the command peer.
func peerCommandFlags(app *kingpin.Application, c *config) {
	x := &c.peerCommand
	command := app.Command("peer", peerHelp)
	command.Arg("host", "Nodes to measure with: host, or host:port if their --peer.listen-address has another port.").Required().StringsVar(&x.hosts)
	command.Flag("rails", "Which ports: match (each with its counterpart, by rail label, name or order) or all (each with every other one).").Default("match").EnumVar(&x.rails, "match", "all")
	command.Flag("memories", "Memory to measure bandwidth between, separated by commas: host, gpu, staged; none for latency alone.").Default("host,gpu,staged").StringVar(&x.memories)
	command.Flag("timeout", "Longest a node may take.").Default("2m").DurationVar(&x.timeout)
	command.Flag("output", "Form of the output: table or json.").Default("table").EnumVar(&x.output, "table", "json")
}

// peerOnce is the command peer.
func peerOnce(ctx context.Context, c *config, stdout, stderr io.Writer) error {
	if err := c.validatePeerCommand(); err != nil {
		return err
	}
	progress := newProgress(stderr)
	reports := []status.PeerReport{}
	host, done := c.handHost(ctx)
	defer done()
	for _, target := range c.peerCommand.hosts {
		progress.show("measuring the path to " + target)
		report := c.meet(ctx, host, target)
		progress.clear()
		reports = append(reports, report)
		if c.peerCommand.output == "table" {
			if err := report.WriteTable(stdout); err != nil {
				return err
			}
			_, _ = io.WriteString(stdout, "\n")
		}
		if ctx.Err() != nil {
			break
		}
	}
	var err error
	if c.peerCommand.output == "json" {
		err = status.WritePeerJSON(stdout, reports)
	} else {
		_, err = io.WriteString(stdout, status.PeerLegend)
	}
	if err != nil {
		return err
	}
	return peerExit(reports)
}

func peerExit(reports []status.PeerReport) error {
	has := func(outcome string) bool {
		return slices.ContainsFunc(reports, func(r status.PeerReport) bool { return r.Outcome == outcome })
	}
	switch {
	case has(status.PeerBad):
		return exitError(exitProbeBad)
	case has(status.PeerNotMeasured), len(reports) == 0:
		return exitError(exitProbeNotJudged)
	}
	return nil
}

// validatePeerCommand checks what no single flag can.
func (c *config) validatePeerCommand() error {
	if err := c.validate(); err != nil {
		return err
	}
	if _, err := c.peerCommand.wantedMemories(); err != nil {
		return err
	}
	if c.peerCommand.timeout <= 0 {
		return usagef("--timeout=%v: must be above 0", c.peerCommand.timeout)
	}
	return c.validateHosts(c.peerCommand.hosts)
}

// validateHosts checks the nodes that a command measures with, and makes them targets.
func (c *config) validateHosts(hosts []string) error {
	if err := c.peer.validateNumbers(); err != nil {
		return err
	}
	for i, text := range hosts {
		target, err := targets.ParseAddress(text, targets.DefaultPort)
		if err != nil {
			return usagef("%s: %w", text, err)
		}
		hosts[i] = target.Address()
	}
	return c.peer.identify()
}

func (x *peerCommand) wantedMemories() ([]session.Memory, error) {
	if x.memories == "none" || x.memories == "" {
		return nil, nil
	}
	var wanted []session.Memory
	for name := range strings.SplitSeq(x.memories, ",") {
		memory := session.Memory(name)
		if memory != session.Host && memory != session.GPU && memory != session.Staged {
			return nil, usagef("--memories=%s: unknown memory %q, known are host, gpu and staged", x.memories, name)
		}
		wanted = append(wanted, memory)
	}
	return wanted, nil
}

// handHost is this host as a command by hand sees it: with the daemon's readers.
func (c *config) handHost(ctx context.Context) (host *peerHost, done func()) {
	builder := snapshot.New(snapshot.Options{Deadline: c.deadline})
	o := c.origin()
	c.addRDMA(builder, o)
	nvml := c.addGPU(builder, o)
	taker := builder.Taker()
	host = newPeerHost(newProberHost(c, c.schedule.pairs.choice(), taker, nvml))
	host.look(ctx) // NVML is asked for utilisation once it is up
	return host, taker.Close
}

// meet measures with one node.
func (c *config) meet(ctx context.Context, host *peerHost, target string) status.PeerReport {
	memories, _ := c.peerCommand.wantedMemories() // they were checked
	if c.peerCommand.timeout > 0 {                // 0: another command, which has a time of its own
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.peerCommand.timeout)
		defer cancel()
	}
	report := status.PeerReport{Target: target}
	runner, err := peer.New(c.peerOptions(host, c.peerOpener()))
	if err != nil {
		report.Failure = session.Fail(session.ReasonInvalid, "", fmt.Errorf("peers: %w", err))
		report.Conclude()
		return report
	}
	once := peer.OnceOptions{Target: target, All: c.peerCommand.rails == "all", Memories: memories}
	if len(memories) == 0 {
		once.Kinds = []session.Kind{session.Ping}
	}
	for _, once.Self = range c.peer.selves(target) {
		meeting, failure := runner.Once(ctx, once)
		report.Contact, report.Paths, report.Failure = meeting.Contact, meeting.Paths, failure
		if failure == nil || failure.Reason != session.ReasonNotListed {
			break
		}
	}
	report.Conclude()
	return report
}

// selves are what the other node's list may call this one: what the command line says,
// else its name or the address that the other one sees.
func (p *peerConfig) selves(target string) []string {
	port := p.listenPort()
	if p.targetsPort > 0 {
		port = uint16(p.targetsPort)
	}
	if p.self != "" {
		if own, err := targets.ParseAddress(p.self, port); err == nil {
			return []string{own.Address()}
		}
	}
	var all []string
	add := func(host string) {
		if own, err := targets.ParseAddress(net.JoinHostPort(host, strconv.Itoa(int(port))), port); err == nil {
			all = append(all, own.Address())
		}
	}
	if name := nodeName(); name != "" {
		add(name)
	}
	if c, err := net.Dial("udp", target); err == nil { // sends nothing
		if own, is := c.LocalAddr().(*net.UDPAddr); is {
			add(own.AddrPort().Addr().Unmap().WithZone("").String())
		}
		_ = c.Close()
	}
	return all
}
