// Package profile says what a node should have: by a file that a site gives, by
// a table of usual platforms, or by the best that was seen of this node.
package profile

import (
	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback/prober"
)

// Source is where an expectation comes from.
type Source string

// Sources, in the order in which they count.
const (
	SourceFile     Source = "file"     // --profile=FILE
	SourceEmbedded Source = "embedded" // matched by product name and GPU model
	SourceLearned  Source = "learned"  // the best that was seen here
	SourceNone     Source = "none"
)

// Expectation is what a node should have. What is not known is not expected.
type Expectation struct {
	Name   string // of the profile, "" of none
	Source Source
	GPUs   sysread.Maybe[int]
	// Ports are those that should be ACTIVE, with their rate in bytes per second.
	Ports map[prober.Port]sysread.Maybe[uint64]
	// Devices is how many RDMA devices of role compute there should be.
	Devices sysread.Maybe[int]
	// NVLinks is how many active links each GPU should have.
	NVLinks sysread.Maybe[int]
	// Pairs is how many pairs of GPU and compute device should be as near as PIX or
	// PXB (or P2C) by the PCIe tree.
	DirectPairs sysread.Maybe[int]
	// Loopback is the least rate of path host in bytes per second that a port of
	// the expected rate should reach.
	Loopback sysread.Maybe[float64]
}
