package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/status"
	"gdr_exporter/rdma/loopback/prober"
)

// FuzzControl: whatever the request, the answer is JSON with a code of the API,
// and a mistake does nothing.
func FuzzControl(f *testing.F) {
	f.Add("POST", pathQuiesce, "for=30m", formType, "")
	f.Add("POST", pathProbe, "gpu=0000:1b:00.0&device=mlx5_0&force=1", "", "")
	f.Add("POST", pathForget, "", formType, "all=1")
	f.Add("GET", pathControl, "for=1h", "text/plain; charset=\"", "x")
	f.Add("POST", pathQuiesce, "for=9223372036854775807ns&for=1s", "", "%zz=;&")
	f.Fuzz(func(t *testing.T, method, path, query, kind, body string) {
		if _, known := endpoints[path]; !known { // other paths are http.ServeMux's
			return
		}
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		r.Method, r.URL.RawQuery = method, query
		r.Header.Set("Content-Type", kind)
		s := newScene()
		w := httptest.NewRecorder()
		s.control.handler().ServeHTTP(w, r)
		s.control.quiet.end("the test is over")
		done := slices.DeleteFunc(s.took(), func(call string) bool { return strings.HasSuffix(call, "resume") })
		if !json.Valid(w.Body.Bytes()) {
			t.Errorf("code %d, %q", w.Code, w.Body)
		}
		if w.Code >= http.StatusBadRequest && (w.Code >= http.StatusInternalServerError || len(done) > 0) {
			t.Errorf("%s %s?%q, %q: code %d, and %v was done", method, path, query, body, w.Code, done)
		}
	})
}

// answering is a daemon that gives one answer to everything.
type answering struct {
	code int
	body string
}

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: a.code, Status: http.StatusText(a.code), Request: r, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(a.body)),
	}, nil
}

// FuzzControlAnswer: whatever answers at the control socket, a command shows it or
// ends with an error.
func FuzzControlAnswer(f *testing.F) {
	s := newScene()
	_, now := s.ask(http.MethodGet, pathControl, "", "")
	f.Add(200, now)
	results, err := json.Marshal(capture.NewProberStatus(&prober.Status{Interval: time.Hour, Pairs: []prober.PairStatus{{}}}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(200, string(results))
	f.Add(409, `{"error":"busy"}`)
	f.Add(500, `null`)
	f.Fuzz(func(t *testing.T, code int, body string) {
		c := &client{"", &http.Client{Transport: answering{code, body}}}
		var shown status.Control
		if c.call(context.Background(), http.MethodGet, pathControl, nil, &shown) == nil {
			if err := shown.WriteTable(io.Discard, time.Now()); err != nil {
				t.Error(err)
			}
		}
		var results capture.ProberStatus
		if c.call(context.Background(), http.MethodGet, pathResults, nil, &results) == nil {
			if _, err := json.Marshal(capture.NewProberStatus(results.Status())); err != nil {
				t.Error(err)
			}
		}
	})
}

// FuzzHeritage: what the process before left in the environment is taken or
// refused in an error, and is gone from the environment.
func FuzzHeritage(f *testing.F) {
	f.Add(`{"listeners":[3,-1],"control":{"descriptor":4,"file":{}},"restarts":["2027-01-15T08:00:00Z"]}`)
	f.Add(`null`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		if os.Setenv(heritageEnv, text) != nil {
			return // not to be had in an environment
		}
		h, err := inherit()
		if _, left := os.LookupEnv(heritageEnv); left {
			t.Error("it is left to child processes")
		}
		if err != nil {
			return
		}
		for _, fd := range h.descriptors() {
			if fd < 0 && (h.Control == nil || fd != h.Control.Descriptor) {
				t.Errorf("descriptor %d", fd)
			}
		}
	})
}
