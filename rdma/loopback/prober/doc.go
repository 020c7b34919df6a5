// Package prober decides when which GPU-NIC pair is measured, and what of the
// results stands.
//
// It is pure Go and touches neither NIC nor GPU: a [Host] tells it what happens
// on the host, a [Runner] makes the measurements. Depth follows load: what needs
// traffic waits for an idle pair, a registration alone does not (see [Depth]). A
// result stands, with its age, until a newer one, an event that makes it say
// nothing any more, or, if it was good, until it is too old; one that would worsen
// what is known counts only if a repetition agrees.
package prober
