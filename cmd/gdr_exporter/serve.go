package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/common/version"
	"go.uber.org/zap"

	"gdr_exporter/collector"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/status"
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
	ready     atomic.Bool
	restarter *restarter
	// waiting is done once scrapes must not wait for devices any more.
	waiting    context.Context
	endWaiting context.CancelFunc
}

// serve runs the daemon until ctx is done.
func serve(ctx context.Context, c *config, stderr io.Writer) error {
	if err := c.validate(); err != nil {
		return err
	}
	limitProcessors()
	d := newDaemon(c, newLogger(c.logLevel, c.logFormat, stderr))
	handler, err := d.routes()
	if err != nil {
		return err
	}
	servers, err := listenAndServe(c, handler, d.logger)
	if err != nil {
		return err
	}
	d.logger.Info("started", zap.String("version", version.Version))
	go d.first()
	switch err := d.wait(ctx, servers); {
	case errors.Is(err, errRestart):
		return d.restart(servers)
	case err != nil:
		return err
	default:
		return d.stop(servers)
	}
}

func newDaemon(c *config, logger *zap.Logger) *daemon {
	d := &daemon{config: c, logger: logger, restarter: newRestarter()}
	d.waiting, d.endWaiting = context.WithCancel(context.Background())
	builder := snapshot.New(snapshot.Options{
		MaxAge: c.maxAge, Deadline: c.deadline,
		Tell: logReadError(logger), Changed: logChange(logger), Taken: d.restarter.look,
	})
	c.addRDMA(builder)
	c.addGPU(builder)
	d.taker = builder.Taker()
	return d
}

// first takes the first Snapshot, so that ready does not wait for a scrape.
func (d *daemon) first() {
	s := d.snapshot(context.Background())
	d.ready.Store(true)
	d.logger.Info("first snapshot taken", zap.String("rdma", status.Sentence(s)), zap.String("gpu", status.GPUSentence(s)))
}

func (d *daemon) snapshot(ctx context.Context) *snapshot.Snapshot {
	ctx, cancel := context.WithTimeout(ctx, d.config.deadline)
	defer cancel()
	defer context.AfterFunc(d.waiting, cancel)()
	return d.taker.Take(ctx, func(string) bool { return true })
}

// stop closes the listeners at once and lets running scrapes end.
func (d *daemon) stop(servers *servers) error {
	d.logger.Info("stopping")
	defer time.AfterFunc(stopGrace, d.endWaiting).Stop()
	ctx, cancel := context.WithTimeout(context.Background(), stopMost)
	defer cancel()
	if err := servers.shutdown(ctx); err != nil {
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
		Stop: d.waiting,
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+d.config.telemetryPath, metrics) // GET stands for HEAD too
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "healthy\n") })
	mux.HandleFunc("GET /-/ready", d.serveReady)
	mux.HandleFunc("GET /{$}", d.serveLanding)
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
	return registry
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

func (d *daemon) serveLanding(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	// The page is whole in itself: it loads nothing and runs nothing.
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	page := status.Page{Version: version.Version, MetricsPath: d.config.telemetryPath, Snapshot: d.snapshot(r.Context())}
	if err := page.WriteHTML(w); err != nil {
		d.logger.Debug("landing page not sent", zap.Error(err))
	}
}
