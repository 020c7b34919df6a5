package collector

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/klauspost/compress/gzhttp"
	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/snapshot"
)

// timeoutHeader is how Prometheus tells how long it will wait.
const timeoutHeader = "X-Prometheus-Scrape-Timeout-Seconds"

// timeoutMargin is what is left of Prometheus's timeout for encoding and the network.
const timeoutMargin = 500 * time.Millisecond

// view shows a Snapshot's part on a page.
type view func(*page, *snapshot.Snapshot)

// Config says what a Handler serves.
type Config struct {
	Taker *snapshot.Taker
	// Enabled are the names of the collectors to read, out of Names.
	Enabled []string
	Roles   Roles
	// Deadline is the longest a scrape takes, whatever Prometheus allows.
	Deadline time.Duration
	// Self is gathered beside the Snapshot: go_, process_ and build_info. May be nil.
	Self prometheus.Gatherer
	// MaxInFlight bounds concurrent scrapes; 0: no bound.
	MaxInFlight int
	// Log takes errors of encoding. May be nil.
	Log *log.Logger
	// Replay is what is replayed; nil: the Snapshots are of this host.
	Replay *Replay
	// Diagnose says what a Snapshot means, see [diagnosis.Engine]; nil: nobody does.
	Diagnose func(*snapshot.Snapshot) *diagnosis.Diagnosis
	// Stop ends all waiting for devices once it is done: at exit.
	Stop context.Context
}

// Handler serves /metrics.
type Handler struct {
	config  Config
	views   []view
	slots   chan struct{}
	options promhttp.HandlerOpts
	pages   sync.Pool // of *page
}

// NewHandler returns the handler of /metrics.
//
// It compresses with klauspost's gzip at its fastest level rather than
// promhttp's: the standard library's took a third of a whole scrape.
func NewHandler(config Config) (http.Handler, error) {
	compress, err := gzhttp.NewWrapper(gzhttp.CompressionLevel(gzip.BestSpeed))
	if err != nil {
		return nil, err
	}
	return compress(newHandler(config)), nil
}

func newHandler(config Config) *Handler {
	rdma := newRDMAView(config.Roles)
	h := &Handler{
		config: config,
		views: []view{
			asked("rdma", rdma.show), asked("gpu", showGPU), asked("nvlink", showNVLink), asked("fabric", showFabric), asked("driver", showDriver),
			asked("peermem", showPeermem), asked("affinity", showAffinity), asked("pcie", showPCIe), asked("probe", showProbe), asked("kmsg", showKernelLog),
			asked("process", showProcess), asked("pods", showPods), asked("jobs", showJobs), asked("path", showExpected),
			asked("peer", showPeer), scrapeView,
		},
		options: promhttp.HandlerOpts{
			ErrorHandling:      promhttp.ContinueOnError,
			EnableOpenMetrics:  true,
			DisableCompression: true, // see NewHandler
		},
	}
	if config.Diagnose != nil {
		h.views = append(h.views, asked("path", pathView(config.Diagnose)))
	}
	if config.Replay != nil {
		h.views = append(h.views, replayView(config.Replay))
	}
	if config.MaxInFlight > 0 {
		h.slots = make(chan struct{}, config.MaxInFlight)
	}
	return h
}

// asked shows a view only if its collector was asked for: several share what is
// read.
func asked(collector string, show view) view {
	return func(p *page, s *snapshot.Snapshot) {
		if s.Asked[collector] {
			show(p, s)
		}
	}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.slots != nil {
		select {
		case h.slots <- struct{}{}:
			defer func() { <-h.slots }()
		default:
			http.Error(w, fmt.Sprintf("more than %d scrapes at once", cap(h.slots)), http.StatusServiceUnavailable)
			return
		}
	}
	wanted, err := h.wanted(r.URL.Query()["collect[]"], r.URL.Query()["exclude[]"])
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := h.context(r)
	defer cancel()
	gather := gathererFunc(func() ([]*dto.MetricFamily, func(), error) { return h.gather(ctx, wanted) })
	options := h.options
	options.ErrorLog = &requestLog{log: h.config.Log}
	promhttp.HandlerForTransactional(gather, options).ServeHTTP(w, r)
}

// requestLog logs the first error of a request, and none of a client that went
// away: promhttp has one for each of the page's families then.
type requestLog struct {
	log  *log.Logger // may be nil
	said bool
}

// Println implements promhttp.Logger.
func (l *requestLog) Println(v ...any) {
	gone := slices.ContainsFunc(v, func(value any) bool {
		err, is := value.(error)
		return is && (errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, context.Canceled))
	})
	if l.log != nil && !l.said && !gone {
		l.log.Println(v...)
	}
	l.said = true
}

// wanted returns the collectors that a scrape asks for.
func (h *Handler) wanted(collect, exclude []string) ([]string, error) {
	if len(collect) > 0 && len(exclude) > 0 {
		return nil, fmt.Errorf("collect[] and exclude[] do not go together")
	}
	for _, name := range slices.Concat(collect, exclude) {
		switch {
		case !slices.Contains(Names(), name):
			return nil, fmt.Errorf("unknown collector %q; known: %s", name, strings.Join(Names(), " "))
		case !slices.Contains(h.config.Enabled, name):
			return nil, fmt.Errorf("collector %q is switched off", name)
		}
	}
	if len(collect) > 0 {
		return collect, nil
	}
	if len(exclude) == 0 {
		return h.config.Enabled, nil
	}
	return slices.DeleteFunc(slices.Clone(h.config.Enabled), func(name string) bool {
		return slices.Contains(exclude, name)
	}), nil
}

// context bounds a scrape by its deadline and by the end of the process.
func (h *Handler) context(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(r.Context(), scrapeDeadline(r.Header.Get(timeoutHeader), h.config.Deadline))
	if h.config.Stop == nil {
		return ctx, cancel
	}
	unlink := context.AfterFunc(h.config.Stop, cancel)
	return ctx, func() { unlink(); cancel() }
}

// scrapeDeadline is Prometheus's timeout less a margin, at most the limit.
func scrapeDeadline(header string, most time.Duration) time.Duration {
	seconds, err := strconv.ParseFloat(header, 64)
	if err != nil || !(seconds > 0) || seconds > most.Seconds()+timeoutMargin.Seconds() {
		return most
	}
	timeout := time.Duration(seconds * float64(time.Second))
	return min(most, max(timeout-timeoutMargin, timeout/2))
}

// gather returns the metrics of one scrape, and what to call once they are not
// used any more.
func (h *Handler) gather(ctx context.Context, wanted []string) ([]*dto.MetricFamily, func(), error) {
	s := h.config.Taker.Take(ctx, func(name string) bool { return slices.Contains(wanted, name) })
	p, _ := h.pages.Get().(*page)
	if p == nil {
		p = newPage()
	}
	done := func() {
		p.reset()
		h.pages.Put(p)
	}
	families := h.render(p, s)
	if h.config.Self == nil {
		return families, done, nil
	}
	self, err := h.config.Self.Gather()
	return merged(families, self), done, err
}

// render makes a Snapshot's metrics.
func (h *Handler) render(p *page, s *snapshot.Snapshot) []*dto.MetricFamily {
	for _, show := range h.views {
		show(p, s)
	}
	return p.gather()
}
