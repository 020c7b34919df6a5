package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/version"
	"go.uber.org/zap"

	"gdr_exporter/collector"
	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/status"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/peer"
)

// How long a stop may take: a running scrape gets grace to end by itself, then
// it is served with what it has.
const (
	stopGrace = 500 * time.Millisecond
	stopMost  = 3 * time.Second
)

// daemon is the serving exporter.
type daemon struct {
	config    *config
	logger    *zap.Logger
	taker     *snapshot.Taker
	engine    *diagnosis.Engine
	ready     atomic.Bool
	restarter *restarter
	lookout   lookout
	exec      func(*heritage) error

	book          *profile.Book
	prober        scheduler
	proberHost    *proberHost
	endProber     context.CancelFunc
	proberEnded   chan struct{}
	proberGrace   time.Duration
	endsLate      <-chan struct{} // proberEnded, if the prober was told to end for nothing
	unlockState   func()
	quiet         *quiet
	peers         *peers // nil: paths to other nodes are not measured
	control       *control
	controlSocket *controlSocket

	// waiting is done once scrapes must not wait for devices any more.
	waiting    context.Context
	endWaiting context.CancelFunc
}

// serve runs the daemon until ctx is done.
func serve(ctx context.Context, c *config, stderr io.Writer) error {
	from, err := inherit()
	if err != nil {
		return err
	}
	if err := c.openReplay(); err != nil {
		return err
	}
	if err := c.validateServe(); err != nil {
		return err
	}
	limitProcessors()
	listeners, err := listen(c.web, from.Listeners)
	if err != nil {
		return err
	}
	peerListener, err := c.peer.listenPeers()
	if err != nil {
		return err
	}
	d := newDaemon(c, newLogger(c.logLevel, c.logFormat, stderr), from)
	d.addPeers()
	if c.replay == nil {
		d.quiet.carryOn(ctx, d.prober.Status().QuiescedUntil)
	}
	handler, err := d.routes()
	if err != nil {
		return err
	}
	servers := serveOn(listeners, c, handler, d.logger)
	if c.replay == nil {
		d.serveControl(from.Control)
	}
	d.logger.Info("started", zap.String("version", version.Version))
	d.startProber()
	if err := d.peers.start(peerListener); err != nil {
		return err
	}
	go d.first()
	return d.run(ctx, servers)
}

// run serves until there is a reason to end.
func (d *daemon) run(ctx context.Context, servers *servers) error {
	for {
		err := d.wait(ctx, servers)
		if errors.Is(err, errRestart) {
			err = d.restart(ctx, servers)
		} else if err == nil {
			d.endProber() // its run ends while scrapes do, as do sessions with other nodes
			go d.peers.stop()
			err = d.stop(servers)
			d.stopProber(context.Background())
			d.peers.stop()
		}
		if errors.Is(err, errStay) {
			continue
		}
		d.controlSocket.remove()
		d.unlockState()
		return err
	}
}

func newDaemon(c *config, logger *zap.Logger, from *heritage) *daemon {
	d := &daemon{config: c, logger: logger, restarter: newRestarter(logger, from), exec: (*heritage).exec, unlockState: func() {}, proberGrace: proberGrace}
	d.waiting, d.endWaiting = context.WithCancel(context.Background())
	d.engine = newEngine(c, logger)
	builder := snapshot.New(snapshot.Options{
		MaxAge: c.maxAge, Deadline: c.deadline,
		Tell: logReadError(logger), Changed: logChange(logger), Taken: func(s *snapshot.Snapshot) {
			if c.replay == nil {
				d.restarter.look(s)
				d.prober.Saw(d.proberHost.sighting(s))
			}
		},
	})
	o := c.origin()
	c.addRDMA(builder, o)
	nvml := c.addGPU(builder, o)
	c.addProcess(builder, o)
	c.addHolders(builder)
	c.addKernelLog(builder, o)
	c.addHost(builder, o)
	d.expects(builder)
	builder.Prober(func() *prober.Status { return d.prober.Status() })
	builder.Peer(func() *peer.Status { return d.peers.status() })
	d.taker = builder.Taker()
	if c.replay != nil {
		d.openBook("")
		d.replayed()
		return d
	}
	d.proberHost = newProberHost(c, c.schedule.pairs.choice(), d.taker, nvml)
	d.addProber(d.proberHost, from)
	d.addControl(nvml)
	return d
}

// first takes the first Snapshot, so that ready does not wait for a scrape.
func (d *daemon) first() {
	s := d.snapshot(context.Background())
	d.ready.Store(true)
	d.logger.Info("first snapshot taken", zap.String("rdma", status.Sentence(s)), zap.String("gpu", status.GPUSentence(s)))
	if d.config.replay == nil {
		d.tellPrivileges(s)
	}
}

func (d *daemon) snapshot(ctx context.Context) *snapshot.Snapshot {
	ctx, cancel := context.WithTimeout(ctx, d.config.deadline)
	defer cancel()
	defer context.AfterFunc(d.waiting, cancel)()
	s := d.taker.Take(ctx, func(string) bool { return true })
	d.diagnose(s)
	return s
}

// stop closes the listeners at once and lets running scrapes end.
func (d *daemon) stop(servers *servers) error {
	d.logger.Info("stopping")
	defer time.AfterFunc(stopGrace, d.endWaiting).Stop()
	ctx, cancel := context.WithTimeout(context.Background(), stopMost)
	defer cancel()
	control := make(chan error, 1)
	go func() { control <- d.controlSocket.shutdown(ctx) }()
	if err := errors.Join(servers.shutdown(ctx), <-control); err != nil {
		if !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		d.logger.Warn("connections did not end in time", zap.Duration("waited", stopMost))
	}
	d.logger.Info("stopped")
	return nil
}

func (d *daemon) routes() (http.Handler, error) {
	metrics, err := collector.NewHandler(collector.Config{
		Taker: d.taker, Enabled: d.config.enabled(), Roles: d.config.roles,
		Deadline: d.config.deadline, MaxInFlight: d.config.maxRequests,
		Self: d.self(), Log: zap.NewStdLog(d.logger.With(zap.String("component", "metrics"))),
		Replay: d.config.replay.mark(), Diagnose: d.diagnose, Stop: d.waiting,
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+d.config.telemetryPath, sentAfter(metrics)) // GET stands for HEAD too
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "healthy\n") })
	mux.HandleFunc("GET /-/ready", d.serveReady)
	d.routePages(mux)
	commands := http.HandlerFunc(refuseControl)
	switch {
	case d.config.replay != nil:
		commands = refuseReplay
	case d.config.lifecycle:
		commands = guarded(*d.config.web.WebConfigFile, d.control.handler()).ServeHTTP
	}
	for _, path := range controlPaths {
		mux.Handle(path, commands)
	}
	return mux, nil
}

// self are the metrics about the exporter itself.
func (d *daemon) self() prometheus.Gatherer {
	registry := prometheus.NewRegistry()
	registry.MustRegister(versioncollector.NewCollector("gdr_exporter"))
	if d.config.exporterMetrics {
		registry.MustRegister(collectors.NewGoCollector())
		if process, err := newProcessCollector(); err == nil {
			registry.MustRegister(process)
		} else {
			d.logger.Warn("no process_* metrics", zap.Error(err))
		}
	}
	return withoutClash(registry)
}

// withoutClash leaves out the gauge go_memstats_alloc_bytes: in OpenMetrics the
// counter go_memstats_alloc_bytes_total is a family of that name too, and parsers
// that keep to the format refuse the page. go_memstats_heap_alloc_bytes is the same.
func withoutClash(gatherer prometheus.Gatherer) prometheus.GathererFunc {
	return func() ([]*dto.MetricFamily, error) {
		families, err := gatherer.Gather()
		return slices.DeleteFunc(families, func(mf *dto.MetricFamily) bool { return mf.GetName() == "go_memstats_alloc_bytes" }), err
	}
}

// serveReady answers 200 once the first Snapshot has ended, whatever it found:
// a hung driver must not hold a rollout.
func (d *daemon) serveReady(w http.ResponseWriter, _ *http.Request) {
	if !d.ready.Load() {
		http.Error(w, "the first snapshot is being taken", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "ready\n")
}
