package main

import (
	"bytes"
	"context"
	"net/http"

	"github.com/prometheus/common/version"
	"go.uber.org/zap"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/status"
)

// Paths of what a person, or a program in a person's place, is shown.
const (
	pathStatus = "/api/v1/status"
	pathSchema = pathStatus + "/schema"
)

// routePages adds the status page, its JSON and the runbooks.
func (d *daemon) routePages(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", d.serveStatus)
	mux.HandleFunc("GET "+pathStatus, d.serveStatusJSON)
	mux.HandleFunc("GET "+pathSchema, d.serveSchema)
	mux.HandleFunc("GET "+pathPeers, d.servePeers)
	mux.HandleFunc("GET "+pathPeersSchema, d.servePeersSchema)
	mux.HandleFunc("GET "+status.RunbookRoot+"{$}", d.serveRunbooks)
	mux.HandleFunc("GET "+status.RunbookRoot+"{rule}", d.serveRunbook)
}

// page is what is shown of the host now.
func (d *daemon) page(ctx context.Context) status.Page { return d.pageOf(d.snapshot(ctx)) }

// pageOf is what is shown of the host as a Snapshot has it.
func (d *daemon) pageOf(s *snapshot.Snapshot) status.Page {
	return status.Page{Version: version.Version, MetricsPath: d.config.telemetryPath, Replay: d.config.replay.sentence(), Snapshot: s, Diagnosis: d.diagnose(s)}
}

func (d *daemon) serveStatus(w http.ResponseWriter, r *http.Request) {
	htmlHeader(w)
	d.sent("status page", d.page(r.Context()).WriteHTML(w))
}

func (d *daemon) serveRunbooks(w http.ResponseWriter, r *http.Request) {
	htmlHeader(w)
	d.sent("runbooks", d.page(r.Context()).WriteRunbooks(w))
}

func (d *daemon) serveRunbook(w http.ResponseWriter, r *http.Request) {
	var b bytes.Buffer
	found, err := d.page(r.Context()).WriteRunbook(&b, r.PathValue("rule"))
	switch {
	case err != nil:
		d.logger.Error("runbook", zap.Error(err))
		http.Error(w, "the runbook cannot be shown", http.StatusInternalServerError)
	case !found:
		http.Error(w, "there is no rule and no alert of this name: see "+status.RunbookRoot, http.StatusNotFound)
	default:
		htmlHeader(w)
		_, err = b.WriteTo(w)
		d.sent("runbook", err)
	}
}

func (d *daemon) serveStatusJSON(w http.ResponseWriter, r *http.Request) {
	jsonHeader(w, "application/json")
	page := d.page(r.Context())
	d.sent("status as JSON", page.Document().WriteJSON(w))
}

func (d *daemon) serveSchema(w http.ResponseWriter, _ *http.Request) {
	jsonHeader(w, "application/schema+json")
	_, err := w.Write(status.Schema())
	d.sent("schema", err)
}

// sent notes that something was not sent, as where the client went away.
func (d *daemon) sent(what string, err error) {
	if err != nil {
		d.logger.Debug(what+" not sent", zap.Error(err))
	}
}

func htmlHeader(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", status.Policy)
	commonHeader(w)
}

func jsonHeader(w http.ResponseWriter, contentType string) {
	w.Header().Set("Content-Type", contentType)
	commonHeader(w)
}

func commonHeader(w http.ResponseWriter) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Cache-Control", "no-store") // it is of this moment
}
