package main

import (
	"net"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/alecthomas/units"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/peer/schedule"
	"gdr_exporter/rdma/peer/session"
	"gdr_exporter/rdma/peer/targets"
)

// peerConfig is what the command line says of measurements between nodes.
type peerConfig struct {
	enabled, insecure bool
	listen, tls, self string
	files, dns        []string
	targetsPort       int
	degree            int
	interval          time.Duration
	devices           *regexp.Regexp // nil: the compute devices
	bytes, perHour    units.Base2Bytes
	limit, gpuLimit   float64
	asymmetry         float64
	frame, within     time.Duration

	queries  []targets.Query
	identity *session.Identity // nil: insecure
}

// peerFlags adds the flags of measurements between nodes.
func peerFlags(app *kingpin.Application, c *config) {
	p := &c.peer
	app.Flag("peer.enabled", "Measure the paths to the exporters of other nodes, and let them measure theirs to this one.").BoolVar(&p.enabled)
	app.Flag("peer.listen-address", "Address of the listener for the sessions of other nodes' exporters.").Default(":" + strconv.Itoa(targets.DefaultPort)).StringVar(&p.listen)
	app.Flag("peer.tls-config", "File with cert_file, key_file, ca_file and allowed_names for sessions, used in both directions.").PlaceHolder("FILE").StringVar(&p.tls)
	app.Flag("peer.insecure", "Let whoever comes from a target's address have sessions without TLS.").BoolVar(&p.insecure)
	app.Flag("peer.targets", "File with the nodes that measure each other, this one included, as of Prometheus's file_sd; a pattern, may be repeated.").PlaceHolder("FILE").StringsVar(&p.files)
	app.Flag("peer.dns", "DNS name that resolves to the nodes, such as that of a headless Service: NAME, NAME:PORT or srv+NAME; may be repeated.").PlaceHolder("NAME").StringsVar(&p.dns)
	app.Flag("peer.targets-port", "Port of all targets' session listeners, whatever port a list names that was made for scrapes; 0 for that of the list.").IntVar(&p.targetsPort)
	app.Flag("peer.self", "This node's target, host or host:port. Default: found by host name and addresses.").PlaceHolder("TARGET").StringVar(&p.self)
	app.Flag("peer.degree", "Neighbours whose bandwidth is measured in each --peer.interval; 0 for pings alone. The same on all nodes.").
		Default(strconv.Itoa(schedule.Defaults().Degree)).IntVar(&p.degree)
	app.Flag("peer.interval", "In which a node measures bandwidth with --peer.degree neighbours. The same on all nodes.").Default("1h").DurationVar(&p.interval)
	app.Flag("peer.device", "Devices that take part. Default: those of the role compute; if there are none, all.").PlaceHolder("REGEXP").SetValue(anchored{&p.devices})
	app.Flag("peer.bytes", "Most that one write of a session moves; it ends after a quarter of a second too.").Default("128MiB").BytesVar(&p.bytes)
	app.Flag("peer.bytes-per-hour", "Most that all sessions of this node move within an hour; 0B for no limit.").Default("256GiB").BytesVar(&p.perHour)
	app.Flag("peer.limit", "Share of the lesser port's rate below which host memory to host memory is slow.").Default("0.7").Float64Var(&p.limit)
	app.Flag("peer.gpu-limit", "Share of that of host memory below which GPU memory to GPU memory is slow.").Default("0.85").Float64Var(&p.gpuLimit)
	app.Flag("peer.asymmetry-limit", "Share of the other direction's rate below which a direction is slow.").Default("0.75").Float64Var(&p.asymmetry)
	app.Flag("peer.within", "For how long a session goes on beginning writes, for tests on slow machines.").Hidden().Default("250ms").DurationVar(&p.within)
	app.Flag("peer.frame", "Length of a frame of the schedule, for tests in a hurry. The same on all nodes.").Hidden().Default(schedule.Defaults().Frame.String()).DurationVar(&p.frame)
}

// options are those of the schedule.
func (p *peerConfig) options() schedule.Options {
	o := schedule.Defaults()
	o.Degree, o.Round = p.degree, p.interval
	if standard := o.Frame; p.frame != standard {
		scale := func(d time.Duration) time.Duration {
			return time.Duration(float64(d) * float64(p.frame) / float64(standard))
		}
		o.Frame, o.Ping, o.Guard = p.frame, scale(o.Ping), scale(o.Guard)
	}
	return o
}

// validate checks what no single flag can, and reads the certificate.
func (p *peerConfig) validate() error {
	if err := p.validateNumbers(); err != nil {
		return err
	}
	if p.enabled && len(p.files) == 0 && len(p.dns) == 0 {
		return usagef("--peer.enabled needs the nodes: --peer.targets or --peer.dns")
	}
	if !p.enabled && (len(p.files) > 0 || len(p.dns) > 0) {
		return usagef("--peer.targets and --peer.dns say nothing without --peer.enabled")
	}
	for _, text := range p.dns {
		query, err := targets.ParseQuery(text)
		if err != nil {
			return usagef("--peer.dns=%s: %w", text, err)
		}
		p.queries = append(p.queries, query)
	}
	if p.self != "" {
		if _, err := targets.ParseAddress(p.self, targets.DefaultPort); err != nil {
			return usagef("--peer.self=%s: %w", p.self, err)
		}
	}
	if !p.enabled {
		return nil
	}
	return p.identify()
}

func (p *peerConfig) validateNumbers() error {
	for _, l := range []struct {
		flag  string
		value float64
	}{{"limit", p.limit}, {"gpu-limit", p.gpuLimit}, {"asymmetry-limit", p.asymmetry}} {
		if !(l.value > 0 && l.value <= 1) { // NaN too
			return usagef("--peer.%s=%v: must be above 0, and at most 1", l.flag, l.value)
		}
	}
	if p.targetsPort < 0 || p.targetsPort > 1<<16-1 {
		return usagef("--peer.targets-port=%d: must be from 0 to %d", p.targetsPort, 1<<16-1)
	}
	if p.bytes < units.MiB || p.bytes > 4*units.GiB {
		return usagef("--peer.bytes=%v: must be from 1MiB to 4GiB", p.bytes)
	}
	if p.perHour < 0 || p.perHour > mostBytes {
		return usagef("--peer.bytes-per-hour=%v: must be from 0B to %v", p.perHour, mostBytes)
	}
	if p.perHour > 0 && p.perHour < 8*p.bytes {
		return usagef("--peer.bytes-per-hour=%v: no session would ever be, since one may move %v with --peer.bytes=%v", p.perHour, 8*p.bytes, p.bytes)
	}
	if err := p.options().Check(); err != nil {
		return usagef("--peer.degree=%d and --peer.interval=%v: %w", p.degree, p.interval, err)
	}
	return nil
}

// identify reads the certificate, without which there are no sessions unless the user
// wants just that.
func (p *peerConfig) identify() error {
	switch {
	case p.tls != "" && p.insecure:
		return usagef("--peer.tls-config and --peer.insecure exclude each other")
	case p.insecure:
		return nil
	case p.tls == "":
		return usagef("sessions between nodes need --peer.tls-config, or --peer.insecure where everybody in the network may have them")
	}
	identity, err := session.LoadIdentity(p.tls)
	if err != nil {
		return usagef("--peer.tls-config=%s: %w", p.tls, err)
	}
	p.identity = identity
	return nil
}

// listenPort is the port of the listener, 0 if it is not known.
func (p *peerConfig) listenPort() uint16 {
	_, text, err := net.SplitHostPort(p.listen)
	if err != nil {
		return 0
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(port)
}

// ownTarget is how this node is recognised in the list.
func (p *peerConfig) ownTarget() targets.Self {
	if p.self != "" {
		return targets.Self{Given: p.self}
	}
	port := p.listenPort()
	if p.targetsPort > 0 {
		port = 0 // the list may be reached through another port than the listener's
	}
	return targets.Own(port)
}

// watcher follows the list of nodes.
func (p *peerConfig) watcher() (*targets.Watcher, error) {
	return targets.New(targets.Options{
		Files: p.files, Queries: p.queries, Ports: targets.Ports{Always: uint16(p.targetsPort)}, Self: p.ownTarget,
	})
}

// validatePeers checks the flags for the daemon.
func (c *config) validatePeers() error {
	if err := c.peer.validate(); err != nil {
		return err
	}
	if !c.peer.enabled {
		return nil
	}
	if c.replay != nil {
		return usagef("--peer.enabled: a replay has nothing to measure")
	}
	if !c.reads(snapshot.CollectorRDMA) {
		return usagef("--peer.enabled needs the collector rdma, which --no-collector.rdma switches off")
	}
	if _, err := c.peer.watcher(); err != nil {
		return usagef("--peer.targets: %w", err)
	}
	return nil
}

// listenPeers opens the listener for sessions.
func (p *peerConfig) listenPeers() (net.Listener, error) {
	if !p.enabled {
		return nil, nil //nolint:nilnil // there is none
	}
	listener, err := listenOn(p.listen)
	if err != nil {
		return nil, usagef("--peer.listen-address=%s: %w", p.listen, listenCause(err))
	}
	return listener, nil
}

// nodeName is what this node calls itself to others, which show it where their list has
// but an address.
func nodeName() string {
	if name := os.Getenv("NODE_NAME"); name != "" { // set by the Helm chart
		return name
	}
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}
