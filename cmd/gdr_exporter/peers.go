package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/alecthomas/units"
	"github.com/prometheus/common/version"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/status"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/child"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/session"
	"gdr_exporter/rdma/peer/verbs"
)

// pathPeers is where all is shown that is known of the paths to other nodes.
const (
	pathPeers       = "/api/v1/peers"
	pathPeersSchema = pathPeers + "/schema"
)

// peers measures the paths to other nodes. A nil one does not.
type peers struct {
	config *config
	host   *peerHost
	opener session.Opener
	logger *zap.Logger

	mu     sync.Mutex
	runner *peer.Runner // nil: none was started
	cancel context.CancelFunc
	ended  chan struct{}
	late   bool // it was told to end, and has not: it starts again when it has
	// certificate is what was seen of it last, so that nobody who asks waits for its files;
	// nil: sessions have no TLS, or it was not looked at yet.
	certificate *peer.Certificate
}

// addPeers makes what measures the paths to other nodes, if that is wanted.
func (d *daemon) addPeers() {
	c := d.config
	if !c.peer.enabled {
		return
	}
	host := newPeerHost(d.proberHost)
	host.off = func() string {
		if until := d.prober.Status().QuiescedUntil; time.Now().Before(until) {
			return "quiesced"
		}
		return ""
	}
	isolation := c.peerIsolation()
	d.quiet.sessions = isolation
	opener := c.peerOpener()
	opener.Isolation = func() *verbs.Isolation {
		if d.prober.Status().Isolation == prober.InChild { // as for loopback runs: a flag, or after CUDA errors
			return isolation
		}
		return nil
	}
	d.peers = &peers{config: c, host: host, opener: opener, logger: d.logger.With(zap.String("component", "peer"))}
}

// start begins to measure and to serve. The listener is closed at the end.
func (p *peers) start(listener net.Listener) error {
	if p == nil {
		return nil
	}
	watcher, err := p.config.peer.watcher()
	if err != nil {
		return usagef("--peer.targets: %w", err)
	}
	options := p.config.peerOptions(p.host, p.opener)
	options.Watcher, options.Listener, options.Event = watcher, listener, p.tell
	runner, err := peer.New(options)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	p.mu.Lock()
	p.runner, p.cancel, p.ended, p.late = runner, cancel, ended, false
	p.mu.Unlock()
	p.logger.Info("sessions with other nodes", zap.Stringer("address", listener.Addr()), zap.Bool("tls", p.config.peer.identity != nil), zap.Strings("targets", p.config.peer.sources()))
	if p.config.peer.identity == nil {
		p.logger.Warn("sessions are not encrypted: whoever has a target's address can have one", zap.String("flag", "--peer.insecure"))
	}
	go watcher.Run(ctx)
	if identity := p.config.peer.identity; identity != nil {
		go p.watchCertificate(ctx, identity, certificateLooks)
	}
	go func() {
		defer close(ended)
		if err := runner.Run(ctx); err != nil {
			p.logger.Error("sessions with other nodes have ended", zap.Error(err))
		}
	}()
	return nil
}

// lastingCertificate is what is looked at of a session.Identity.
type lastingCertificate interface {
	Err() error
	Begins() time.Time
	Expires() time.Time
}

// certificateLooks is how often a certificate is looked at, and oftener while its files
// are not taken: those of a renewal are written one after the other.
const (
	certificateLooks = time.Minute
	certificateAgain = 6
)

// watchCertificate keeps what is seen of the certificate for status, and tells, once
// each, why new files do not count, and that the certificate ends soon: when it has, no
// session is possible any more.
func (p *peers) watchCertificate(ctx context.Context, of lastingCertificate, every time.Duration) {
	var last string
	var told time.Time
	for {
		seen := p.seeCertificate(of)
		if seen.Text != "" && seen.Text != last {
			p.logger.Warn("the certificate's files are not taken, the last good ones are in use", zap.String("error", seen.Text))
		}
		last = seen.Text
		if state := seen.State(time.Now()); (state == peer.CertificateLate || state == peer.CertificateEnded) && !seen.Ends.Equal(told) {
			told = seen.Ends
			p.logger.Warn("the certificate of sessions with other nodes ends soon", zap.Time("ends", seen.Ends))
		}
		wait := every
		if seen.Text != "" {
			wait /= certificateAgain
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// seeCertificate looks at a certificate and its files, which may take as long as a file
// system does.
func (p *peers) seeCertificate(of lastingCertificate) *peer.Certificate {
	seen := &peer.Certificate{}
	if err := of.Err(); err != nil {
		seen.Text = err.Error()
	}
	seen.Begins, seen.Ends = of.Begins(), of.Expires()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.certificate = seen
	return seen
}

// peersGrace is how long sessions may take to end.
const peersGrace = 5 * time.Second

// stop ends all sessions, and returns whether they have ended.
func (p *peers) stop() bool {
	if p == nil {
		return true
	}
	p.mu.Lock()
	cancel, ended := p.cancel, p.ended
	p.mu.Unlock()
	if cancel == nil {
		return true
	}
	cancel()
	select {
	case <-ended:
		return true
	case <-time.After(peersGrace):
		return false
	}
}

// status is what is known; nil where nothing is measured.
func (p *peers) status() *peer.Status {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runner == nil {
		return nil
	}
	s := *p.runner.Status() // which is shared
	s.Certificate = p.certificate
	return &s
}

// tell logs what changed.
func (p *peers) tell(e peer.Event) {
	level := zapcore.InfoLevel
	if e.Is.Bad() {
		level = zapcore.WarnLevel
	}
	var fields []zap.Field
	if e.Target != "" {
		fields = append(fields, zap.String("peer", e.Target))
	}
	if e.Kind == peer.EventPath {
		fields = append(fields, zap.Stringer("port", e.Own), zap.Stringer("peer_port", e.Peer), zap.String("kind", string(e.Measured)), zap.String("memory", string(e.Memory)))
	}
	if e.Kind != peer.EventList {
		fields = append(fields, zap.String("result", string(e.Is)), zap.String("before", string(e.Was)))
	}
	if e.Text != "" {
		fields = append(fields, zap.String("why", e.Text))
	}
	if f := e.Failure; f != nil {
		fields = append(fields, zap.String("reason", string(f.Reason)), zap.String("stage", f.Stage), zap.String("errno", f.Errno), zap.Bool("found_by_peer", f.Peer))
	}
	p.logger.Log(level, peerNews[e.Kind], fields...)
}

// peerNews is what the kinds of events are called in the log.
var peerNews = map[peer.EventKind]string{
	peer.EventList: "the list of nodes", peer.EventPeer: "calls of a node come out differently", peer.EventPath: "the path to a node comes out differently",
}

// sources are where the list of nodes comes from.
func (p *peerConfig) sources() []string {
	all := append([]string(nil), p.files...)
	return append(all, p.dns...)
}

// mostPeerBuffer is what other nodes accept at most, see session.Limits.
const mostPeerBuffer = 64 * units.MiB

// peerOpener opens the endpoints of sessions, in this process.
func (c *config) peerOpener() verbs.Opener {
	s := &c.schedule
	template := loopback.EndpointSpec{
		LibraryDirs: verbsDirs, SysfsRoot: c.sysfs, PKey: s.pkey, FreeGPUMemory: uint64(s.minFree),
	}
	template.GID = c.scheduledSpec().GID
	return verbs.Opener{Template: template, OpenGPU: func(address string) (loopback.GPU, error) {
		return openGPU(c.gpuSettings(address))()
	}}
}

// peerIsolation opens those with GPU memory in children.
func (c *config) peerIsolation() *verbs.Isolation {
	return &verbs.Isolation{Program: child.Program{Environ: childEnviron}, Settings: c.gpuSettings("")}
}

// peerOptions are what the daemon's sessions and those by hand have in common.
func (c *config) peerOptions(host peer.Host, opener session.Opener) peer.Options {
	p, s := &c.peer, &c.schedule
	return peer.Options{
		Schedule: p.options(), Host: host, Opener: opener, Identity: p.identity, BytesPerHour: uint64(p.perHour),
		Name: nodeName(), Build: version.Version, Bytes: uint64(p.bytes), Within: p.within, Shape: session.Shape{Buffer: int(min(s.buffer, mostPeerBuffer)), QueuePairs: s.queuePairs},
		Rates: peer.RateLimits{Port: p.limit, GPU: p.gpuLimit, Asymmetry: p.asymmetry},
	}
}

// servePeers answers with all that is known of the paths to other nodes.
func (d *daemon) servePeers(w http.ResponseWriter, _ *http.Request) {
	known := d.peers.status()
	if known == nil {
		http.Error(w, "no paths to other nodes are measured: see --peer.enabled", http.StatusNotFound)
		return
	}
	jsonHeader(w, "application/json")
	d.sent("peers as JSON", status.PeersDocument(&snapshot.Snapshot{Taken: time.Now(), Peer: known}).WriteJSON(w))
}

func (d *daemon) servePeersSchema(w http.ResponseWriter, _ *http.Request) {
	jsonHeader(w, "application/schema+json")
	_, err := w.Write(status.PeersSchema())
	d.sent("schema of the peers", err)
}

// peerResults is what is known of the paths to other nodes, for the command check.
func (c *control) peerResults(context.Context, url.Values) (any, error) {
	s := c.peers()
	if s == nil {
		return nil, apiError{http.StatusNotFound, errors.New("no paths to other nodes are measured: see --peer.enabled")}
	}
	return s, nil
}

// knownPeers asks the running exporter what it knows of the paths to other nodes; nil if
// there is none, or it measures none.
func (c *config) knownPeers(ctx context.Context) *peer.Status {
	const most = 5 * time.Second
	if c.socket == "" || c.replay != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	var answer peer.Status
	if newClient(c.socket).call(ctx, http.MethodGet, pathPeerResults, nil, &answer) != nil {
		return nil
	}
	return &answer
}

// peersHang says what keeps a restart back.
const peersHang = "a session with another node"

// whenEnded calls a function once sessions that were told to end have ended, unless that
// is under way.
func (p *peers) whenEnded(f func()) {
	p.mu.Lock()
	ended, again := p.ended, p.late
	p.late = true
	p.mu.Unlock()
	if !again {
		go func() { <-ended; f() }()
	}
}

// restartPeers starts the sessions again after a restart that was not made.
func (d *daemon) restartPeers() {
	listener, err := d.config.peer.listenPeers()
	if err == nil {
		err = d.peers.start(listener)
	}
	if err != nil {
		d.logger.Error("sessions with other nodes did not start again", zap.Error(fmt.Errorf("peers: %w", err)))
	}
}
