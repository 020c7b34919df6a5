// Package snapshot reads a host into one Snapshot: plain values, each part with
// its own error and duration, from which every view (metrics, status page,
// findings) is computed.
//
// A driver may hang in any read, in a way that no signal ends. So every device
// is read on a goroutine of its own (worker). A Snapshot waits for its devices
// until the scrape's deadline and is then served without those that have not
// answered; they are reported as stuck and not asked again until the read that
// hangs has returned. A hung driver costs one goroutine and its own samples.
//
// Concurrent scrapes share one read of each subsystem (a round), and a round
// younger than the maximum age serves another scrape.
//
// To add a collector: a reader package that offers Units, one file here that
// makes a source of them and a field of Snapshot, and one view file in package
// collector.
package snapshot
