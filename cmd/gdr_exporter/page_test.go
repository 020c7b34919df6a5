package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"gdr_exporter/collector/status"
)

// TestPages: the status page, its JSON, the schema and the runbooks, as the daemon
// serves them of a node on which GPUDirect RDMA is lost on a pair.
func TestPages(t *testing.T) {
	t.Parallel()
	r := serveWith(t, "--web.listen-address=127.0.0.1:0", "--replay=gdr-lost", "--control.socket=", "--state.dir=")
	for path, want := range map[string]struct {
		contentType, text string
	}{
		"/":                         {"text/html; charset=utf-8", "GPUDirect RDMA works on 7 of 8 expected GPU-NIC pairs only"},
		"/runbooks/":                {"text/html; charset=utf-8", `href="/runbooks/path_staged"`},
		"/runbooks/path_staged":     {"text/html; charset=utf-8", "It is found on this node."},
		"/runbooks/peermem_refused": {"text/html; charset=utf-8", "What to do"},
		"/runbooks/GDRPathStaged":   {"text/html; charset=utf-8", "What the job feels"},
		"/api/v1/status":            {"application/json", `"state": "staged"`},
		"/api/v1/status/schema":     {"application/schema+json", `"$defs"`},
	} {
		got := r.get(t, path)
		if got.code != http.StatusOK || got.header.Get("Content-Type") != want.contentType || !strings.Contains(got.body, want.text) {
			t.Errorf("%s: code %d, %s, without %q: %s", path, got.code, got.header.Get("Content-Type"), want.text, got.body)
		}
		if got.header.Get("X-Content-Type-Options") != "nosniff" || got.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", path, got.header)
		}
		if html := strings.HasPrefix(want.contentType, "text/html"); html && got.header.Get("Content-Security-Policy") != status.Policy {
			t.Errorf("%s: policy %q", path, got.header.Get("Content-Security-Policy"))
		}
	}
	for _, path := range []string{"/runbooks/nosuch", "/runbooks/path_staged/", "/runbooks/..%2f..%2fetc%2fpasswd", "/runbooks/%3Cscript%3E", "/api/v1/status/", "/api/v1/nosuch"} {
		if got := r.get(t, path); got.code != http.StatusNotFound || strings.Contains(got.body, "<script>") {
			t.Errorf("%s: code %d: %s", path, got.code, got.body)
		}
	}
	var document status.Document
	if err := json.Unmarshal([]byte(r.get(t, "/api/v1/status").body), &document); err != nil {
		t.Fatal(err)
	}
	if document.SchemaVersion != status.SchemaVersion || document.Summary.Level != status.LevelProblem || document.Replay == nil || len(document.Pairs) != 64 || document.Summary.Staged != 1 {
		t.Errorf("version %d, replay %v, %d pairs, %+v", document.SchemaVersion, document.Replay, len(document.Pairs), document.Summary)
	}
	r.signal(t, syscall.SIGTERM)
}

// TestPageWithoutVerdicts: with the collector path switched off the page says that
// nothing is judged, and shows what was read.
func TestPageWithoutVerdicts(t *testing.T) {
	t.Parallel()
	r := serveWith(t, "--web.listen-address=127.0.0.1:0", "--replay=h100-8x8", "--no-collector.path", "--control.socket=", "--state.dir=")
	for path, text := range map[string]string{"/": "is not judged: the collector path is switched off", "/api/v1/status": `"judged": false`, "/runbooks/path_staged": "It is not judged here"} {
		if got := r.get(t, path); got.code != http.StatusOK || !strings.Contains(got.body, text) {
			t.Errorf("%s: code %d, without %q: %s", path, got.code, text, got.body)
		}
	}
	r.signal(t, syscall.SIGTERM)
}
