// Package peer measures the paths between this node and others, all the time and
// without a coordinator: the schedule says who meets whom, a session measures, and
// what came of it stands until the next one.
//
// It is pure Go and touches neither NIC nor GPU: a [Host] tells what there is and
// whether it is free, and package session's Opener moves the data.
package peer
