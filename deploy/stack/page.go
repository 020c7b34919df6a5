package stack

import (
	"bytes"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"

	"gdr_exporter/collector"
	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/diagnosis"
)

// page is a node's page, which is made at its own pace: a scrape is answered at once,
// also where the machine is too slow to make all pages as often as they are scraped.
type page struct {
	metrics http.Handler
	silent  func() bool
	end     func()
	only    map[string]bool // families that are shown; nil: all
	done    chan struct{}
	ended   sync.WaitGroup

	mu     sync.Mutex
	header http.Header
	body   []byte
}

// page makes the page of a node whose replay begins now.
func (n *Node) page(clock Clock) (*page, error) {
	player := capture.Move(n.Recording, clock.Now)
	taker := n.taker(player, clock)
	began := clock.Now()
	p := &page{
		done:   make(chan struct{}),
		silent: func() bool { return n.Silent != nil && holds(n.Silent, clock.Now().Sub(began).Seconds()) },
		end: func() {
			player.Close()
			taker.Close()
		},
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(versioncollector.NewCollector("gdr_exporter"))
	header := &n.Recording.Header
	var err error
	p.metrics, err = collector.NewHandler(collector.Config{
		Taker: taker, Enabled: collector.Names(), Roles: noRoles{}, Deadline: n.deadline(), Self: registry, Log: log.New(io.Discard, "", 0),
		Replay:   &collector.Replay{Name: n.Name, Recorded: header.Began, Synthetic: header.Synthetic, Scenario: n.Recording.Scenario != nil},
		Diagnose: diagnosis.NewEngine(diagnosis.EngineOptions{}).Diagnose,
	})
	if err != nil {
		p.end()
		return nil, err
	}
	p.ended.Add(1)
	return p, nil
}

func holds(s *capture.Span, at float64) bool { return at >= s.From && (s.Until == 0 || at < s.Until) }

// renew makes the page again and again, as far as there is a turn for it.
func (p *page) renew(every time.Duration, turns chan struct{}) {
	defer p.ended.Done()
	for {
		select {
		case turns <- struct{}{}:
		case <-p.done:
			return
		}
		p.make()
		<-turns
		select {
		case <-time.After(every):
		case <-p.done:
			return
		}
	}
}

// make makes the page: text, not compressed, for it does not leave the machine.
func (p *page) make() {
	answer := httptest.NewRecorder()
	p.metrics.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.header, p.body = answer.Header(), p.shown(answer.Body.Bytes())
}

// shown is what is shown of a page's text.
func (p *page) shown(text []byte) []byte {
	if p.only == nil {
		return bytes.Clone(text)
	}
	var kept bytes.Buffer
	for line := range bytes.Lines(text) {
		// "# TYPE family ..." or "family{...} value"
		rest := bytes.TrimPrefix(bytes.TrimPrefix(line, []byte("# HELP ")), []byte("# TYPE "))
		if end := bytes.IndexAny(rest, "{ "); end > 0 && p.only[string(rest[:end])] {
			kept.Write(line)
		}
	}
	return kept.Bytes()
}

// ServeHTTP implements http.Handler.
func (p *page) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	header, body := p.header, p.body
	p.mu.Unlock()
	switch {
	case p.silent():
		http.Error(w, "the node is away, as it should be", http.StatusServiceUnavailable)
	case body == nil:
		http.Error(w, "the first page is being made", http.StatusServiceUnavailable)
	default:
		maps.Copy(w.Header(), header)
		_, _ = w.Write(body)
	}
}

func (p *page) close() {
	close(p.done)
	p.end()
	p.ended.Wait()
}

// PageTime is how long the making of a node's page takes here: by it a show chooses its
// speed, so that a slow machine keeps up.
func PageTime(n Node) (time.Duration, error) {
	p, err := n.page(NewClock(1))
	if err != nil {
		return 0, err
	}
	p.ended.Done() // nothing renews it
	defer p.close()
	const times = 5
	p.make() // the first one reads more
	began := time.Now()
	for range times {
		p.make()
	}
	return time.Since(began) / times, nil
}
