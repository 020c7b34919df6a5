package collector

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/rdmatest"
)

type noRoles struct{}

func (noRoles) Role(string) string { return "" }

// BenchmarkScrape is one scrape of an 8-NIC node: reading, rendering, encoding.
func BenchmarkScrape(b *testing.B) {
	dir := tempTree(b)
	if err := rdmatest.Node8().WriteTo(dir); err != nil {
		b.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector())
	reader := rdma.NewReader(rdma.Options{Sysfs: dir + "/sys", SlowInterval: time.Minute, Descriptors: 4096})
	now := time.Now()
	taker := snapshot.New(snapshot.Options{Deadline: 5 * time.Second, Now: func() time.Time { return now }}).RDMA(reader, nil).Taker()
	for range 2 { // past the time in which a new device may be incomplete
		taker.Take(b.Context(), func(string) bool { return true })
		now = now.Add(3 * time.Second)
	}
	h, err := NewHandler(Config{Taker: taker, Enabled: []string{"rdma"}, Roles: noRoles{}, Deadline: 5 * time.Second, Self: registry})
	if err != nil {
		b.Fatal(err)
	}
	for _, encoding := range []string{"identity", "gzip"} {
		b.Run(encoding, func(b *testing.B) {
			r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3")
			r.Header.Set("Accept-Encoding", encoding)
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != http.StatusOK {
					b.Fatal(w.Code)
				}
			}
		})
	}
}
