package collector

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/rdmatest"
)

const (
	acceptText        = "text/plain;version=0.0.4"
	acceptOpenMetrics = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
)

// server is the handler of /metrics over a tree.
type server struct {
	handler http.Handler
	reader  *rdma.Reader
	config  Config
}

// serverOf makes a handler; change may change its configuration.
func serverOf(t *testing.T, root string, options snapshot.Options, change func(*Config)) *server {
	t.Helper()
	if options.Deadline == 0 {
		options.Deadline = 10 * time.Second
	}
	reader := rdma.NewReader(rdma.Options{Sysfs: filepath.Join(root, "sys"), Descriptors: 4096})
	taker := snapshot.New(options).RDMA(reader, nil).Taker()
	t.Cleanup(taker.Close)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector())
	s := &server{reader: reader, config: Config{Taker: taker, Enabled: Names(), Roles: noRoles{}, Deadline: options.Deadline, Self: registry}}
	if change != nil {
		change(&s.config)
	}
	var err error
	if s.handler, err = NewHandler(s.config); err != nil {
		t.Fatal(err)
	}
	return s
}

// node8 is a server over a healthy node.
func node8(t *testing.T, change func(*Config)) *server {
	t.Helper()
	return serverOf(t, writeTree(t, rdmatest.Node8()), snapshot.Options{}, change)
}

func writeTree(t *testing.T, tree *rdmatest.Tree) string {
	t.Helper()
	dir := tempTree(t)
	if err := tree.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// get makes a request; header holds names and values in turn.
func (s *server) get(target string, header ...string) *httptest.ResponseRecorder {
	return s.do(http.MethodGet, target, header...)
}

func (s *server) do(method, target string, header ...string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(method, target, nil)
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, request)
	return w
}

// parseText parses the text format as Prometheus does.
func parseText(t *testing.T, page string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

func TestTextFormat(t *testing.T) {
	w := node8(t, nil).get("/metrics", "Accept", acceptText)
	if kind := w.Header().Get("Content-Type"); w.Code != http.StatusOK || !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
		t.Errorf("code %d, type %q", w.Code, kind)
	}
	families := parseText(t, w.Body.String())
	for family, samples := range map[string]int{
		"gdr_rdma_port_state_id": 8, "gdr_rdma_device_info": 8, "gdr_rdma_port_receive_bytes_total": 8, "gdr_scrape_collector_success": 1, "go_goroutines": 1,
	} {
		if got := len(families[family].GetMetric()); got != samples {
			t.Errorf("%d samples of %s, want %d", got, family, samples)
		}
	}
}

// openMetricsLine matches what this exporter writes in OpenMetrics.
var openMetricsLine = regexp.MustCompile(`^(# (HELP|TYPE|UNIT) [a-z_:][a-z0-9_:]* .+|[a-z_:][a-z0-9_:]*(\{([a-z_][a-z0-9_]*="([^"\\\n]|\\[\\"n])*",?)*\})? (NaN|[+-]?[0-9.]+([eE][+-]?[0-9]+)?|[+-]Inf)( [0-9.]+)?)$`)

// TestOpenMetrics checks the format's rules that the text format does not have,
// and that both formats have the same samples.
func TestOpenMetrics(t *testing.T) {
	s := node8(t, nil)
	w := s.get("/metrics", "Accept", acceptOpenMetrics)
	if kind := w.Header().Get("Content-Type"); w.Code != http.StatusOK || !strings.HasPrefix(kind, "application/openmetrics-text; version=1.0.0") {
		t.Errorf("code %d, type %q", w.Code, kind)
	}
	body, ended := strings.CutSuffix(w.Body.String(), "# EOF\n")
	if !ended || strings.Contains(body, "# EOF") {
		t.Fatal("# EOF is not the end, or comes twice")
	}
	kind := ""
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		if !openMetricsLine.MatchString(line) {
			t.Errorf("no OpenMetrics: %q", line)
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "# TYPE "), " ")
		if strings.HasPrefix(line, "# TYPE ") {
			kind = line[strings.LastIndex(line, " ")+1:]
			if kind == "counter" && strings.HasSuffix(name, "_total") {
				t.Errorf("a counter's family ends in _total: %q", line)
			}
		} else if metric, _, _ := strings.Cut(name, "{"); kind == "counter" && line[0] != '#' && !strings.HasSuffix(metric, "_total") && !strings.HasSuffix(metric, "_created") {
			t.Errorf("a counter's sample does not end in _total: %q", line)
		}
	}
	series := regexp.MustCompile(`(?m)^gdr_rdma_[^ ]*`)
	text := s.get("/metrics", "Accept", acceptText).Body.String()
	if a, b := len(series.FindAllString(body, -1)), len(series.FindAllString(text, -1)); a != b || a < 8*70 {
		t.Errorf("%d samples in OpenMetrics, %d in text", a, b)
	}
}

// TestCompression: compressed if asked for, and only then.
func TestCompression(t *testing.T) {
	s := node8(t, nil)
	for accept, compressed := range map[string]bool{
		"": false, "identity": false, "gzip": true, "gzip;q=0": false, "gzip; q=0": false, "gzip;q=0.000": false, "gzip;q=0.5": true,
		"deflate, gzip": true, "deflate": false, "br": false,
	} {
		w := s.get("/metrics", "Accept-Encoding", accept)
		got := w.Header().Get("Content-Encoding") == "gzip"
		if got != compressed {
			t.Errorf("Accept-Encoding %q: compressed %v", accept, got)
		}
		if !strings.Contains(w.Header().Get("Vary"), "Accept-Encoding") {
			t.Errorf("Accept-Encoding %q: Vary is %q", accept, w.Header().Get("Vary"))
		}
		body := io.Reader(w.Body)
		if got {
			var err error
			if body, err = gzip.NewReader(w.Body); err != nil {
				t.Fatal(err)
			}
		}
		page, err := io.ReadAll(body)
		if err != nil || len(parseText(t, string(page))) < 50 {
			t.Errorf("Accept-Encoding %q: %v, %d bytes", accept, err, len(page))
		}
	}
}

func TestHead(t *testing.T) {
	server := httptest.NewServer(node8(t, nil).handler)
	defer server.Close()
	response, err := http.Head(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || len(body) > 0 || response.StatusCode != http.StatusOK || !strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain") {
		t.Errorf("code %d, %d bytes, header %v, error %v", response.StatusCode, len(body), response.Header, err)
	}
}

func TestCollectAndExclude(t *testing.T) {
	s := node8(t, func(c *Config) { c.Enabled = []string{"gpu", "rdma"} })
	for query, want := range map[string]struct {
		code int
		rdma bool
		says string
	}{
		"":                               {200, true, ""},
		"collect[]=rdma":                 {200, true, ""},
		"collect[]=gpu&collect[]=rdma":   {200, true, ""},
		"collect[]=rdma&collect[]=rdma":  {200, true, ""},
		"collect[]=gpu":                  {200, false, ""},
		"exclude[]=gpu":                  {200, true, ""},
		"exclude[]=rdma":                 {200, false, ""},
		"exclude[]=gpu&exclude[]=rdma":   {200, false, ""},
		"other=1":                        {200, true, ""},
		"collect[]=rdma&exclude[]=gpu":   {400, false, "do not go together"},
		"collect[]=nosuch":               {400, false, `unknown collector "nosuch"; known: affinity`},
		"exclude[]=nosuch":               {400, false, `unknown collector "nosuch"`},
		"collect[]=":                     {400, false, `unknown collector ""`},
		"collect[]=RDMA":                 {400, false, `unknown collector "RDMA"`},
		"collect[]=nvlink":               {400, false, `collector "nvlink" is switched off`},
		"exclude[]=nvlink":               {400, false, `collector "nvlink" is switched off`},
		"collect[]=%3Cscript%3E%0Ax%22":  {400, false, `unknown collector "<script>\nx\""`},
		"collect[]=gpu&collect[]=nosuch": {400, false, "nosuch"},
	} {
		w := s.get("/metrics?" + query)
		if w.Code != want.code || !strings.Contains(w.Body.String(), want.says) {
			t.Errorf("%s: code %d, %.200s", query, w.Code, w.Body.String())
		}
		if w.Code != http.StatusOK {
			if body := w.Body.String(); strings.Count(body, "\n") != 1 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
				t.Errorf("%s: not one line of text: %q", query, body)
			}
			continue
		}
		families := parseText(t, w.Body.String())
		if got := families["gdr_rdma_port_state_id"] != nil; got != want.rdma || (families["gdr_scrape_collector_success"] != nil) != want.rdma {
			t.Errorf("%s: rdma is there: %v", query, got)
		}
		if families["go_goroutines"] == nil {
			t.Errorf("%s: the exporter's own metrics are missing", query)
		}
	}
}

func TestScrapeDeadline(t *testing.T) {
	const most = 5 * time.Second
	for header, want := range map[string]time.Duration{
		"10": most, "5.5": most, "5.49": 4990 * time.Millisecond, "3": 2500 * time.Millisecond, "1.0": 500 * time.Millisecond,
		"0.6": 300 * time.Millisecond, "0.1": 50 * time.Millisecond,
		// What makes no sense falls back to the flag.
		"": most, "0": most, "-1": most, "-0": most, "NaN": most, "Inf": most, "+Inf": most, "-Inf": most, "1e400": most, "-1e400": most, "1e300": most,
		"9223372036854775808": most, "soon": most, "1s": most, "1,5": most, "0x10": most, "１": most, strings.Repeat("9", 5000): most,
	} {
		if got := scrapeDeadline(header, most); got != want {
			t.Errorf("%.40q: %v, want %v", header, got, want)
		}
	}
}

func FuzzScrapeDeadline(f *testing.F) {
	for _, seed := range []string{"10", "NaN", "1e-320", "0x1p-1074", "-Inf", "5.5"} {
		f.Add(seed, 5.0)
	}
	f.Fuzz(func(t *testing.T, header string, seconds float64) {
		if !(seconds > 0.001 && seconds < 1e6) {
			return
		}
		most := time.Duration(seconds * float64(time.Second))
		if got := scrapeDeadline(header, most); got < 0 || got > most {
			t.Errorf("%q of at most %v: %v", header, most, got)
		}
	})
}

// hanging is a server over a node one of whose two devices hangs: one of its
// files is a FIFO that nobody writes.
func hanging(t *testing.T, options snapshot.Options, change func(*Config)) (s *server, sick, healthy string) {
	t.Helper()
	tree := rdmatest.New()
	device := tree.MLX5IB(rdmatest.Options{Name: "mlx5_0", PCIAddress: "0000:18:00.0"})
	tree.MLX5IB(rdmatest.Options{Name: "mlx5_1", PCIAddress: "0000:3b:00.0", Ordinal: 1})
	tree.Remove(device.File(1, "state"))
	root := writeTree(t, tree)
	fifo := filepath.Join(root, device.File(1, "state"))
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // let the reader go
		if f, err := os.OpenFile(fifo, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
			_ = f.Close()
		}
	})
	return serverOf(t, root, options, change), "mlx5_0", "mlx5_1"
}

// wantWithoutSick checks a page that was served while a device hung.
func wantWithoutSick(t *testing.T, w *httptest.ResponseRecorder, sick, healthy string) {
	t.Helper()
	body := w.Body.String()
	if w.Code != http.StatusOK || !strings.Contains(body, fmt.Sprintf(`gdr_device_read_stuck{collector="rdma",device=%q} 1`, sick)) ||
		strings.Contains(body, fmt.Sprintf(`gdr_rdma_port_state_id{device=%q`, sick)) || strings.Count(body, fmt.Sprintf("device=%q", healthy)) < 70 {
		t.Errorf("code %d, page %.500s", w.Code, body)
	}
}

// stalls is how often something is tried that must be quick: a busy machine stalls now
// and then, for longer than a healthy device may take too, but what waits for what it
// must not does so each time.
const stalls = 5

// prompt is how quick pages beside a device that hangs must be.
const prompt = 1500 * time.Millisecond

// beside asks for the page beside a device that hangs, until the healthy one is on it and
// it was quick. It returns how long the last page took.
func (s *server) beside(healthy string, header ...string) (w *httptest.ResponseRecorder, took time.Duration) {
	for range stalls {
		began := time.Now()
		w = s.get("/metrics", header...)
		if took = time.Since(began); took <= prompt && hasPort(w, healthy) {
			break
		}
	}
	return w, took
}

// hasPort reports whether a port of a device is on a page.
func hasPort(w *httptest.ResponseRecorder, device string) bool {
	return strings.Contains(w.Body.String(), fmt.Sprintf("device=%q,port", device))
}

func TestTimeoutHeaderIsHonoured(t *testing.T) {
	for try := 1; ; try++ {
		s, sick, healthy := hanging(t, snapshot.Options{Deadline: 15 * time.Second}, nil)
		began := time.Now()
		w := s.get("/metrics", timeoutHeader, "1.0")
		took := time.Since(began)
		if took < 400*time.Millisecond {
			t.Errorf("took %v", took)
		}
		if try < stalls && (took > prompt || !hasPort(w, healthy)) {
			continue
		}
		if took > prompt {
			t.Errorf("took %v", took)
		}
		wantWithoutSick(t, w, sick, healthy)
		return
	}
}

func TestDeadlineIsHonoured(t *testing.T) {
	s, sick, healthy := firstInTime(t)
	for _, header := range []string{"", "30", "nonsense"} {
		w, took := s.beside(healthy, timeoutHeader, header)
		if took > prompt {
			t.Errorf("header %q: took %v", header, took)
		}
		wantWithoutSick(t, w, sick, healthy)
	}
}

// firstInTime is a server with a device that hangs, whose first page kept its deadline.
func firstInTime(t *testing.T) (s *server, sick, healthy string) {
	t.Helper()
	for try := 1; ; try++ {
		s, sick, healthy = hanging(t, snapshot.Options{Deadline: 600 * time.Millisecond}, nil)
		began := time.Now()
		s.get("/metrics")
		switch took := time.Since(began); {
		case took < 500*time.Millisecond || took > prompt && try == stalls:
			t.Errorf("the first one took %v", took)
			return s, sick, healthy
		case took <= prompt:
			return s, sick, healthy
		}
	}
}

// TestStopEndsWaiting: at the end of the process a scrape is served at once
// with what it has.
func TestStopEndsWaiting(t *testing.T) {
	var trouble string
	for _, after := range []time.Duration{300 * time.Millisecond, 3 * time.Second, 12 * time.Second} {
		if trouble = stopEndsWaiting(t, after); trouble == "" {
			return
		}
	}
	t.Error(trouble)
}

// stopEndsWaiting ends the process so long after a scrape began. It returns what may be a
// busy machine's fault: the healthy device was not read by then, or the end was not quick.
func stopEndsWaiting(t *testing.T, after time.Duration) (trouble string) {
	t.Helper()
	stop, end := context.WithCancel(t.Context())
	defer end()
	s, sick, healthy := hanging(t, snapshot.Options{Deadline: time.Minute}, func(c *Config) { c.Stop = stop })
	time.AfterFunc(after, end)
	began := time.Now()
	w := s.get("/metrics")
	took := time.Since(began)
	switch {
	case !hasPort(w, healthy):
		return "the healthy device is missing"
	case took > after+2700*time.Millisecond:
		return fmt.Sprintf("stopped after %v, it took %v", after, took)
	}
	wantWithoutSick(t, w, sick, healthy)
	return ""
}

func TestMaxInFlight(t *testing.T) {
	h := newHandler(node8(t, func(c *Config) { c.MaxInFlight = 2 }).config)
	scrape := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return w
	}
	h.slots <- struct{}{} // one other scrape is running
	for range 3 {
		if w := scrape(); w.Code != http.StatusOK {
			t.Errorf("the second scrape: code %d", w.Code)
		}
	}
	h.slots <- struct{}{}
	if w := scrape(); w.Code != http.StatusServiceUnavailable || w.Body.String() != "more than 2 scrapes at once\n" {
		t.Errorf("the third scrape: code %d, message %q", w.Code, w.Body.String())
	}
	<-h.slots
	if w := scrape(); w.Code != http.StatusOK {
		t.Errorf("afterwards: code %d", w.Code)
	}
}

// TestHandlerSharesReads counts the reads of scrapes that follow closely.
func TestHandlerSharesReads(t *testing.T) {
	root := writeTree(t, rdmatest.Node8())
	fresh := serverOf(t, root, snapshot.Options{}, nil)
	fresh.get("/metrics")
	once := fresh.reader.IO().Reads()
	fresh.get("/metrics")
	if n := fresh.reader.IO().Reads(); n < once+8*20 {
		t.Errorf("with a maximum age of 0 a second scrape made %d reads", n-once)
	}
	shared := serverOf(t, root, snapshot.Options{MaxAge: time.Minute}, nil)
	shared.get("/metrics")
	once = shared.reader.IO().Reads()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { shared.get("/metrics") })
	}
	wg.Wait()
	if n := shared.reader.IO().Reads(); n != once {
		t.Errorf("within the maximum age scrapes made %d reads", n-once)
	}
}

// everyDevice is a tree with a device of every builder.
func everyDevice() *rdmatest.Tree {
	type options = rdmatest.Options
	t := rdmatest.New()
	for i, build := range []func(options) rdmatest.Device{
		t.MLX5IB, t.MLX5RoCE, t.MLX5VF, t.MLX5SF, t.MLX5Switchdev, t.MLX5Restricted, t.MLX4, t.BNXT, t.IRDMA, t.EFA, t.HFI1, t.MANA, t.ERDMA,
		t.QEDR, t.LegacyI40IW, t.RXE, t.SIW, t.Bond,
	} {
		build(options{Ordinal: i + 1})
	}
	t.OldExt(options{Ordinal: 30, Name: "mlx4_1", PCIAddress: "0000:03:00.0"})
	t.BNXT(options{Ordinal: 31, Name: "bnxt_re1", PCIAddress: "0000:41:00.1", Counters: true})
	t.IRDMAGen3(options{Ordinal: 32, Name: "irdma1", PCIAddress: "0000:8b:00.0"})
	t.MultiPlane(options{Ordinal: 33, Name: "mlx5_20", PCIAddress: "0000:c1:00.0"})
	t.MLX5XDR(options{Ordinal: 34, Name: "mlx5_21"})
	t.SMI(options{Ordinal: 35})
	t.Compat(options{Ordinal: 36, Name: "mlx5_22", PCIAddress: "0000:d1:00.0"})
	return t
}

// TestServedPageLint runs Prometheus's own linter over the page of a usual node and over
// that of one with every kind of device.
func TestServedPageLint(t *testing.T) {
	for name, tree := range map[string]*rdmatest.Tree{"node8": rdmatest.Node8(), "every device": everyDevice(), "none": rdmatest.New().Dir("sys")} {
		t.Run(name, func(t *testing.T) {
			page := serverOf(t, writeTree(t, tree), snapshot.Options{}, func(c *Config) { c.Self = nil }).get("/metrics").Body.String()
			problems, err := promlint.New(strings.NewReader(page)).Lint()
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range problems {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		})
	}
}

// TestHandlerReusesPages: pages come from a pool, and one scrape's samples must
// not show in another's.
func TestHandlerReusesPages(t *testing.T) {
	s := serverOf(t, writeTree(t, everyDevice()), snapshot.Options{MaxAge: time.Minute}, func(c *Config) { c.Self = nil })
	durations := regexp.MustCompile(`(?m)^gdr_scrape.*$`)
	whole := durations.ReplaceAllString(s.get("/metrics").Body.String(), "")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 10 {
				if i%2 == 0 {
					if got := s.get("/metrics?exclude[]=rdma").Body.String(); strings.Contains(got, "gdr_rdma") {
						t.Error("a page without rdma has its metrics")
					}
				} else if got := durations.ReplaceAllString(s.get("/metrics").Body.String(), ""); got != whole {
					t.Error("the same Snapshot makes another page")
				}
			}
		})
	}
	wg.Wait()
}

// TestGatherError: what the exporter's own metrics cannot give does not cost
// the devices' metrics.
func TestGatherError(t *testing.T) {
	s := node8(t, func(c *Config) {
		c.Self = prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return nil, fmt.Errorf("no process") })
	})
	if w := s.get("/metrics"); w.Code != http.StatusOK || len(parseText(t, w.Body.String())["gdr_rdma_port_state_id"].GetMetric()) != 8 {
		t.Errorf("code %d, page %.200s", w.Code, w.Body.String())
	}
}

// TestNoValueIsNaN: absent is absent.
func TestNoValueIsNaN(t *testing.T) {
	page := serverOf(t, writeTree(t, everyDevice()), snapshot.Options{}, nil).get("/metrics").Body.String()
	for name, family := range parseText(t, page) {
		for _, m := range family.Metric {
			if value := m.GetGauge().GetValue() + m.GetCounter().GetValue(); strings.HasPrefix(name, "gdr_") && (math.IsNaN(value) || math.IsInf(value, 0) || value < 0) {
				t.Errorf("%s is %v", name, value)
			}
		}
	}
}

// brokenWriter is a connection on which writing fails.
type brokenWriter struct {
	http.ResponseWriter
	err error
}

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// TestBrokenConnection: a client that goes away is no news, and any other
// failure is one line, however many families the page has.
func TestBrokenConnection(t *testing.T) {
	for err, want := range map[error]int{
		&net.OpError{Op: "write", Err: syscall.EPIPE}: 0, syscall.ECONNRESET: 0, syscall.EIO: 1,
	} {
		var logged strings.Builder
		root := tempTree(t)
		tree := rdmatest.New()
		tree.MLX5IB(rdmatest.Options{})
		if err := tree.WriteTo(root); err != nil {
			t.Fatal(err)
		}
		taker := snapshot.New(snapshot.Options{Deadline: time.Minute}).RDMA(rdma.NewReader(rdma.Options{Sysfs: filepath.Join(root, "sys")}), nil).Taker()
		defer taker.Close()
		h := newHandler(Config{Taker: taker, Enabled: []string{"rdma"}, Roles: noRoles{}, Deadline: time.Minute, Log: log.New(&logged, "", 0)})
		h.ServeHTTP(brokenWriter{httptest.NewRecorder(), err}, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if got := strings.Count(logged.String(), "\n"); got != want {
			t.Errorf("%v: %d lines: %.300s", err, got, logged.String())
		}
	}
}
