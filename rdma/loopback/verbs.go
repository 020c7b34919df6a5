package loopback

import (
	"sync/atomic"
	"time"
)

// verbs is libibverbs as the measurement needs it: one method for each call,
// without policy. Objects are opaque handles, to be given back in the reverse
// of the order in which they were made. Errors are *Error.
type verbs interface {
	open(device string) (handle, error)
	close(context handle) error
	queryDevice(context handle) (deviceLimits, error)
	queryPort(context handle, port int) (portState, error)
	// dataDirect succeeds if the NIC has a data-direct function.
	dataDirect(context handle) error

	allocPD(context handle) (handle, error)
	deallocPD(pd handle) error
	// regMR registers memory, with relaxed ordering if asked to.
	regMR(pd handle, address uintptr, length int, allow access, relaxed bool) (region, error)
	// regDMABuf registers a whole dma-buf, of which address is the first byte.
	regDMABuf(pd handle, address uintptr, length, fd int, allow access, relaxed bool) (region, error)
	deregMR(mr handle) error

	createChannel(context handle) (handle, error)
	destroyChannel(channel handle) error
	createCQ(context, channel handle, entries int) (handle, error)
	destroyCQ(cq handle) error
	// createQP makes an RC queue pair, with room for depth messages to send and
	// for receives messages of the peer.
	createQP(pd, cq handle, depth, receives int) (queuePair, error)
	destroyQP(qp handle) error
	// connectQP takes a queue pair through INIT and RTR to RTS.
	connectQP(qp handle, c connection) error

	// transfer moves bytes with full windows. Its progress is true on error too.
	transfer(t transfer, l limits) (progress, error)
	// latency fills samples with the times from post to completion of single
	// messages on the first queue pair, and returns how many it took. With a
	// channel it sleeps for answers that are late.
	latency(t transfer, l limits, samples []time.Duration) (int, error)
	// post posts one message on the first queue pair; postReceive lets one more
	// announcement of the peer in; next takes one completion, if there is one. With
	// a channel it sleeps for it, 100 ms at most.
	post(t transfer, localOffset, remoteOffset int, id uint64) error
	postReceive(qp handle, id uint64) error
	next(cq, channel handle, l limits) (c completion, found bool, err error)

	unload()
}

// handle is an object of the library; 0 is none.
type handle uintptr

// deviceLimits are of ibv_query_device.
type deviceLimits struct {
	queuePairs, depth, completions int
	rdAtomic                       int // RDMA READs in flight on one queue pair
	regionSize                     uint64
}

// portState is of ibv_query_port.
type portState struct {
	state       int // enum ibv_port_state: 4 is ACTIVE
	mtu         int // enum ibv_mtu: 1 is 256, 5 is 4096
	ethernet    bool
	lid         int
	grhRequired bool
	messageSize uint64
}

// access is what the peer may do with a region, or through a queue pair: enum
// lb_access of loopback.h.
type access int

const (
	accessNone  access = iota // nothing
	accessWrite               // write
	accessFull                // write and read
)

// region is a memory region: registered memory.
type region struct {
	mr         handle
	lkey, rkey uint32
}

type queuePair struct {
	qp     handle
	number uint32
}

// completion is that of something posted with an id. One with received is of a
// message of the peer, whose announcement is imm.
type completion struct {
	id       uint64
	received bool
	imm      uint32
}

// connection is how one queue pair reaches its peer.
type connection struct {
	port, pkeyIndex, mtu int
	lid                  int
	global               bool // with a GRH: gidIndex and gid count
	gidIndex             int
	gid                  [16]byte
	peer                 uint32
	psn, peerPSN         uint32 // the first number of either direction
	rdAtomic             int
	allow                access // what the peer may do
	far                  bool   // the peer is another host's
}

// transfer says what to move: RDMA WRITEs of size bytes, or READs, with depth of
// them outstanding on each queue pair. Queue pair i works through its own slice
// of both buffers, over and over.
type transfer struct {
	qps           []handle
	cq            handle
	channel       handle // sleep for completion events; 0: poll without pause
	read          bool
	depth         int
	signalEvery   int
	batch         int // posted with one call at most; 0: what suits a port that is its own peer
	local, remote uintptr
	lkey, rkey    uint32
	size, slice   int
	bytes         uint64 // the most to move
	// announce, for post, lets the peer hear of the message, and of imm. One of size
	// 0 is nothing else.
	announce bool
	imm      uint32
}

// progress is how far a transfer got.
type progress struct {
	posted, completed uint64 // messages
	least             uint64 // completed messages of the queue pair that has fewest
	// elapsed is the time from the first post to the last completion.
	elapsed time.Duration
}

// limits end a loop, wherever it runs. Times are of CLOCK_MONOTONIC, which C can
// ask too.
type limits struct {
	enough   time.Duration // post no more after it
	deadline time.Duration // give up
	stop     *atomic.Int32 // not 0: give up at once
}
