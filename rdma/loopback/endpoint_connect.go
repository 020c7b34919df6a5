package loopback

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
)

// makeQueuePairs makes the queue pairs and what they need. They reach nobody yet.
func (h *half) makeQueuePairs() error {
	if h.ring != nil {
		if err := h.ring.prepare(); err != nil {
			return err
		}
	}
	var err error
	if h.channel, err = h.verbs.createChannel(h.context); err != nil {
		return err
	}
	h.undo.add("completion channel", func() error { return h.verbs.destroyChannel(h.channel) })
	depth, receives := h.depth(), 1
	if h.ring != nil {
		depth, receives = h.ring.queues()
	}
	// One that is only written to has no completions, but for those of staged memory.
	if h.base.cq, err = h.verbs.createCQ(h.context, h.channel, (depth+receives)*h.spec.QueuePairs); err != nil {
		return err
	}
	h.undo.add("completion queue", func() error { return h.verbs.destroyCQ(h.base.cq) })
	h.base.depth = depth
	for range h.spec.QueuePairs {
		pair, err := h.verbs.createQP(h.pd, h.base.cq, depth, receives)
		if err != nil {
			return err
		}
		h.undo.add("queue pair", func() error { return h.verbs.destroyQP(pair.qp) })
		h.pairs, h.psns = append(h.pairs, pair), append(h.psns, rand.Uint32()&0xffffff)
		h.base.qps = append(h.base.qps, pair.qp)
	}
	if h.ring != nil {
		h.undo.add("copies", h.ring.abandon)
	}
	return nil
}

// address is what the peer must know.
func (h *half) address() Address {
	a := Address{Ethernet: h.port.ethernet, PKey: h.result.PKey.Value, MTU: h.result.MTU}
	if !h.port.ethernet {
		a.LID = h.port.lid
	}
	if gid := h.result.GID; gid.Known {
		a.GID, a.GIDType = gid.Value.Address, gid.Value.Type
	}
	for i, pair := range h.pairs {
		a.QueuePairs = append(a.QueuePairs, QueuePairAddress{pair.number, h.psns[i]})
	}
	if h.role.receives() {
		address, length, r := h.exposed(&h.destination)
		a.RKey, a.VirtualAddress, a.Length = r.rkey, uint64(address), uint64(length)
	}
	if h.ring != nil {
		a.Staged = &StagedAddress{h.ring.slots, h.ring.chunk, uint64(h.spec.BufferSize)}
	}
	return a
}

// Connect connects to the peer: its address is checked first. Each queue pair's peer
// is the one of the same index. The path MTU is the smaller one of both ports. A peer
// that does not answer fails what is sent to it within a second or so.
func (e *Endpoint) Connect(ctx context.Context, peer Address) error {
	return e.do(ctx, StageConnect, func(limits) error { return e.half.connect(peer) })
}

func (h *half) connect(peer Address) error {
	if h.peer != nil {
		return &Error{Call: "connect", Errno: syscall.EISCONN}
	}
	own := h.address()
	if err := peer.Validate(); err != nil {
		return err
	}
	if err := own.canReach(peer); err != nil {
		return err
	}
	if h.role.sends() && peer.Length == 0 {
		return fmt.Errorf("the peer has no memory to write to: %w", syscall.EPROTONOSUPPORT)
	}
	for i := range h.pairs {
		if err := h.verbs.connectQP(h.pairs[i].qp, h.connection(i, peer)); err != nil {
			return err
		}
	}
	if h.role.sends() {
		address, _, r := h.exposed(&h.source)
		h.base.local, h.base.lkey = address, r.lkey
		h.base.remote, h.base.rkey = uintptr(peer.VirtualAddress), peer.RKey
	}
	if h.ring != nil {
		if err := h.ring.connect(peer); err != nil {
			return err
		}
	}
	h.peer = &peer
	return nil
}

func (h *half) connection(i int, peer Address) connection {
	gid := h.result.GID
	c := connection{
		port: h.spec.Port, pkeyIndex: h.result.PKey.Index, mtu: min(h.port.mtu, mtuNumber(peer.MTU)),
		lid: peer.LID, global: gid.Known, gidIndex: gid.Value.Index,
		peer: peer.QueuePairs[i].Number, psn: h.psns[i], peerPSN: peer.QueuePairs[i].PSN, rdAtomic: 1, far: true,
	}
	if gid.Known {
		c.gid = peer.GID.As16()
	}
	if h.role.receives() {
		c.allow = accessWrite
	}
	return c
}

// usable reports that there is no peer yet, or none any more.
func (h *half) usable() error {
	if h.peer == nil {
		return &Error{Call: "peer", Errno: syscall.ENOTCONN}
	}
	if h.broken != nil {
		return fmt.Errorf("after a failure: %w", h.broken)
	}
	return nil
}
