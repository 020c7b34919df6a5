package verbs

import (
	"context"
	"errors"
	"time"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/peer/session"
)

// endpoint is an endpoint of package loopback as sessions have it.
type endpoint struct {
	own     *loopback.Endpoint
	address session.Address
}

// Address is what the peer must know.
func (e *endpoint) Address() session.Address { return e.address }

// Facts are what the opening found out.
func (e *endpoint) Facts() session.Facts { return facts(e.own.Facts()) }

func facts(r loopback.Result) session.Facts {
	f := session.Facts{MTU: r.MTU, QueuePairs: r.QueuePairs, MessageSize: r.MessageSize, Method: string(r.Method)}
	if r.GID.Known {
		f.GID, f.GIDType = r.GID.Value.Address.Unmap().String(), r.GID.Value.Type
	}
	if r.GPU.Known {
		f.GPU = r.GPU.Value.Address
	}
	return f
}

// Connect connects to the peer.
func (e *endpoint) Connect(ctx context.Context, peer session.Address) error {
	a, err := loopback.ParseAddress(peer.Text)
	if err != nil {
		return session.Fail(session.ReasonInvalid, string(loopback.StageConnect), err)
	}
	return orNil(loopback.StageConnect, e.own.Connect(ctx, a))
}

// Fill fills the memory to write from.
func (e *endpoint) Fill(ctx context.Context, seed uint64) error {
	return orNil(loopback.StageFill, e.own.Fill(ctx, seed))
}

// Write writes. What was written before a failure is told too.
func (e *endpoint) Write(ctx context.Context, bytes uint64, within time.Duration) (session.Written, error) {
	// Asleep rather than polling: large messages lose nothing by it, and the node has other work.
	w, err := e.own.Write(ctx, loopback.WriteSpec{Bytes: bytes, Within: within, Events: true})
	return written(w), orNil(loopback.StageWrite, err)
}

func written(w loopback.Written) session.Written {
	return session.Written{Bytes: w.Bytes, Elapsed: w.Elapsed, CPU: w.CPU, Extents: convert(w.Extents, func(e loopback.Extent) session.Extent {
		return session.Extent{Offset: e.Offset, Length: e.Length}
	})}
}

// Ping writes 8 bytes so many times.
func (e *endpoint) Ping(ctx context.Context, count int) (session.Pings, error) {
	p, err := e.own.Ping(ctx, count)
	return session.Pings{Latencies: p.Latencies, Lost: p.Lost}, orNil(loopback.StagePing, err)
}

// Serve does what the side that is written to has to do.
func (e *endpoint) Serve(ctx context.Context) error {
	_, err := e.own.Serve(ctx)
	return orNil(loopback.StageServe, err)
}

// Verify looks for the pattern. Wrong data is a result here, not an error.
func (e *endpoint) Verify(ctx context.Context, seed uint64, extents []session.Extent) (session.Verification, error) {
	v, err := e.own.Verify(ctx, seed, convert(extents, func(e session.Extent) loopback.Extent {
		return loopback.Extent{Offset: e.Offset, Length: e.Length}
	}))
	return verification(v, err)
}

func verification(v loopback.Verification, err error) (session.Verification, error) {
	if errors.Is(err, loopback.ErrCorrupt) && v.Mismatches > 0 {
		err = nil
	}
	return session.Verification{Bytes: v.Bytes, Mismatches: v.Mismatches}, orNil(loopback.StageVerify, err)
}

// Close gives everything back.
func (e *endpoint) Close() error { return orNil(loopback.StageTeardown, e.own.Close()) }

func convert[A, B any](all []A, one func(A) B) []B {
	if all == nil {
		return nil
	}
	others := make([]B, 0, len(all))
	for _, a := range all {
		others = append(others, one(a))
	}
	return others
}
