package main

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// What Prometheus sends with a scrape.
const (
	accept = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5," +
		"text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
	acceptText    = "text/plain;version=0.0.4"
	scrapeTimeout = 10 * time.Second // Prometheus's default
)

// client scrapes one address over one kept connection.
type client struct {
	http *http.Client
	url  string
}

func newClient(address string) client {
	transport := &http.Transport{DisableCompression: true, MaxConnsPerHost: 1, Proxy: nil}
	return client{&http.Client{Transport: transport, Timeout: scrapeTimeout}, "http://" + address + "/metrics"}
}

func (c client) close() { c.http.CloseIdleConnections() }

// get makes one scrape; the body must be closed.
func (c client) get(ctx context.Context, accept string, compressed bool) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return nil, err
	}
	encoding := "identity"
	if compressed {
		encoding = "gzip"
	}
	request.Header.Set("Accept", accept)
	request.Header.Set("Accept-Encoding", encoding)
	request.Header.Set("User-Agent", "Prometheus/3.5.0")
	request.Header.Set("X-Prometheus-Scrape-Timeout-Seconds", fmt.Sprintf("%g", scrapeTimeout.Seconds()))
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, fmt.Errorf("%s: HTTP %d", c.url, response.StatusCode)
	}
	return response, nil
}

// scrape makes one scrape and returns the size of what came over the wire.
func (c client) scrape(ctx context.Context, compressed bool) (int64, error) {
	response, err := c.get(ctx, accept, compressed)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	return io.Copy(io.Discard, response.Body)
}

// page returns the text of a scrape.
func (c client) page(ctx context.Context, accept string, compressed bool) (string, error) {
	response, err := c.get(ctx, accept, compressed)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body := io.Reader(response.Body)
	if response.Header.Get("Content-Encoding") == "gzip" {
		if body, err = gzip.NewReader(body); err != nil {
			return "", err
		}
	}
	text, err := io.ReadAll(io.LimitReader(body, 1<<28))
	return string(text), err
}

// samples returns the lines of a page that hold a value.
func samples(page string) []string {
	var lines []string
	for line := range strings.Lines(page) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			lines = append(lines, line)
		}
	}
	return lines
}

// seriesOf returns the series (name and labels, without value) of a page that carry a device label of that name.
func seriesOf(page, device string) map[string]bool {
	series := map[string]bool{}
	for _, line := range samples(page) {
		end := strings.LastIndex(line, "}")
		if end > 0 && strings.Contains(line[:end], `device="`+device+`"`) {
			series[line[:end+1]] = true
		}
	}
	return series
}
