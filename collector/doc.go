// Package collector turns Snapshots into Prometheus metrics.
//
// Each subsystem is one view: a function that adds a Snapshot's part to a page.
// Views do no I/O. A family of metrics is declared once, with its help and
// type; the page then holds its samples for one scrape.
package collector
