package gpu

import (
	"context"
	"fmt"
	"time"
)

// Quiesce shuts NVML down as soon as no call runs and keeps it down until Resume:
// no device file of the driver is open then, and Read makes no call. A read in
// progress makes no further one.
//
// If ctx ends first, the error names the call that hangs. The Reader is quiesced
// all the same: NVML is shut down when that call returns.
func (r *Reader) Quiesce(ctx context.Context) error {
	r.calls.halt.Store(true)
	if err := r.acquire(ctx); err != nil {
		return fmt.Errorf("quiesce NVML: %w", err)
	}
	down := make(chan struct{})
	go func() { // nvmlShutdown may hang, too
		defer close(down)
		r.rest()
		<-r.slot
	}()
	select {
	case <-down:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("quiesce NVML: %w", r.waited(ctx))
	}
}

// Resume lets the next Read initialise NVML again. It does nothing to a Reader that
// is not quiesced.
func (r *Reader) Resume() { r.calls.halt.Store(false) }

// rest shuts NVML down for as long as it is quiesced. The next session begins as
// if there had been none.
func (r *Reader) rest() {
	r.shutDown()
	r.retry.Reset()
	r.state, r.err, r.stale = StateQuiesced, nil, false
	r.version, r.driver = "", ""
}

// acquire takes the slot, unless ctx ends first.
func (r *Reader) acquire(ctx context.Context) error {
	select {
	case r.slot <- struct{}{}:
	case <-ctx.Done():
		return r.waited(ctx)
	}
	if ctx.Err() != nil { // both had come
		<-r.slot
		return context.Cause(ctx)
	}
	return nil
}

// waited returns why a wait for NVML ended, with the call that it waited for.
func (r *Reader) waited(ctx context.Context) error {
	call, calling := r.Calling()
	if !calling {
		return context.Cause(ctx)
	}
	where := call.Name
	if call.GPUAddress != "" {
		where += " of GPU " + call.GPUAddress
	}
	return fmt.Errorf("%s has not returned for %v: %w", where, time.Since(call.Since).Round(time.Millisecond), context.Cause(ctx))
}
