// Package profile says what a node should have: by a file that a site gives, by
// a table of usual platforms, or by the best that was seen of this node.
//
// What is not known is not expected, and more than expected is never wrong. Of
// what comes and goes by design nothing is learned: virtual functions and
// sub-functions, planes of a port, devices of another RDMA namespace, and those
// whose role is not compute.
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

// Field is a part of an Expectation, each of which may come from another source.
type Field string

// Fields.
const (
	FieldGPUs        Field = "gpus"
	FieldPorts       Field = "ports" // which ports, not their rates
	FieldPortRate    Field = "port_rate"
	FieldDevices     Field = "devices"
	FieldNVLinks     Field = "nvlinks"
	FieldDirectPairs Field = "direct_pairs"
	FieldLoopback    Field = "loopback"
)

// Expectation is what a node should have. What is not known is not expected.
// Facts has what is to be compared with it.
type Expectation struct {
	Name   string // of the profile, "" of none
	Source Source // of the profile, or that of what was learned
	// From is where each field comes from that is known.
	From map[Field]Source
	// GPUs is how many there should be, whatever drivers they have.
	GPUs sysread.Maybe[int]
	// Ports are those that should be ACTIVE, with their rate in bytes per second.
	Ports map[prober.Port]sysread.Maybe[uint64]
	// PortRate is the rate in bytes per second that every port of a compute device
	// should have; that of those in Ports is there.
	PortRate sysread.Maybe[uint64]
	// Devices is how many RDMA devices of role compute there should be.
	Devices sysread.Maybe[int]
	// NVLinks is how many active links each GPU should have.
	NVLinks sysread.Maybe[int]
	// DirectPairs is how many pairs of GPU and compute device should be as near as
	// PIX or PXB (or P2C) by the PCIe tree.
	DirectPairs sysread.Maybe[int]
	// Loopback is the least rate of path host in bytes per second that a port of
	// the expected rate should reach.
	Loopback sysread.Maybe[float64]
}

// None is the Expectation of nothing.
func None() Expectation { return Expectation{Source: SourceNone} }
