package session

import (
	"context"
	"encoding/json"
	"time"
)

// Kind is how deep a session goes.
type Kind string

// The kinds.
const (
	Ping      Kind = "ping"      // few writes of 8 bytes between host memories, one at a time
	Bandwidth Kind = "bandwidth" // as much as the path takes
)

// Memory is where the data is, on both sides.
type Memory string

// The kinds of memory.
const (
	Host   Memory = "host"
	GPU    Memory = "gpu"    // registered with the NIC: GPUDirect RDMA
	Staged Memory = "staged" // of the GPU, copied through host memory on both sides
)

// Direction is who writes.
type Direction string

// The directions.
const (
	Write   Direction = "write"   // the initiator
	Reverse Direction = "reverse" // the responder
	Both    Direction = "both"    // both at once
)

// initiator reports whether the initiator writes, responder whether the responder does.
func (d Direction) initiator() bool { return d == Write || d == Both }
func (d Direction) responder() bool { return d == Reverse || d == Both }

// Port is a port of an RDMA device.
type Port struct {
	Device string `json:"device"`
	Port   int    `json:"port"`
}

// Shape are the sizes of a session. Zero values stand for the endpoint's defaults.
type Shape struct {
	Buffer     int `json:"buffer,omitempty"`  // bytes
	Message    int `json:"message,omitempty"` // bytes of each write
	Chunk      int `json:"chunk,omitempty"`   // bytes of each copy of staged memory
	QueuePairs int `json:"queue_pairs,omitempty"`
	Depth      int `json:"depth,omitempty"` // writes outstanding on each queue pair
}

// Spec says what an endpoint is made of.
type Spec struct {
	Port
	Memory   Memory
	GPU      string // PCI address; "": host memory
	Sends    bool   // it writes to the peer's memory
	Receives bool   // its memory is written to
	Shape    Shape
	Deadline time.Duration // it is gone after it, whatever is under way
	Peer     *Address      // if it is known already
}

// Opener makes endpoints, and reads addresses of others'.
type Opener interface {
	// Open makes an endpoint that is connected to nobody.
	Open(ctx context.Context, spec Spec) (Endpoint, error)
	// Parse reads and checks an address that came from another host.
	Parse(text json.RawMessage) (Address, error)
}

// Address is what the peer of an endpoint must know.
type Address struct {
	Text   json.RawMessage // as it goes from host to host
	Where  string          // the port's address alone: a GID, or a LID
	Length uint64          // of the memory that may be written to
}

// Facts are what the opening of an endpoint found out.
type Facts struct {
	GID         string `json:"gid,omitempty"`
	GIDType     string `json:"gid_type,omitempty"`
	MTU         int    `json:"mtu,omitempty"` // bytes
	QueuePairs  int    `json:"queue_pairs,omitempty"`
	MessageSize int    `json:"message_size,omitempty"`
	GPU         string `json:"gpu,omitempty"`    // PCI address
	Method      string `json:"method,omitempty"` // that GPU memory was registered by
}

// Endpoint is one half of an RDMA connection. Failures are of type *[Failure] if they
// have more to say than their text. Methods end soon after their context does; Close
// ends what is under way, and when it has returned nobody can write to the memory.
type Endpoint interface {
	Address() Address
	Facts() Facts
	Connect(ctx context.Context, peer Address) error
	// Fill fills the memory to write from with the pattern of a seed.
	Fill(ctx context.Context, seed uint64) error
	Write(ctx context.Context, bytes uint64, within time.Duration) (Written, error)
	Ping(ctx context.Context, count int) (Pings, error)
	// Serve does what the side that is written to has to do, until the context ends.
	Serve(ctx context.Context) error
	// Verify looks for the pattern in what was written here. Wrong data is no error.
	Verify(ctx context.Context, seed uint64, extents []Extent) (Verification, error)
	Close() error
}

// Written is what was written and acknowledged.
type Written struct {
	Bytes   uint64        `json:"bytes"`
	Elapsed time.Duration `json:"ns"`
	CPU     time.Duration `json:"cpu_ns,omitempty"`
	Extents []Extent      `json:"extents,omitempty"`
}

// Extent is a part of a buffer, in bytes.
type Extent struct {
	Offset int `json:"offset"`
	Length int `json:"length"`
}

// Pings is how writes of 8 bytes were answered.
type Pings struct {
	Latencies []time.Duration
	Lost      int
}

// Verification is what was found in the memory that was written to.
type Verification struct {
	Bytes      uint64 `json:"bytes"`
	Mismatches int    `json:"mismatches"` // words of 8 bytes that are wrong
}
