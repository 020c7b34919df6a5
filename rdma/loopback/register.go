package loopback

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gdr_exporter/collector/sysread"
)

// register registers host memory, tries both methods for GPU memory, and
// registers that by the one that is to be measured. GPU memory that cannot be
// registered is a result, not a failure.
func (r *run) register() error {
	r.testDMABuf()
	if !r.spec.RegisterOnly {
		if err := r.registerHost(); err != nil {
			return err
		}
	}
	if r.gpu == nil {
		return nil
	}
	r.result.NCCLMethod = MethodPeermem
	if r.gpu.Facts().DMABuf && r.result.NICDMABuf.Value {
		r.result.NCCLMethod = MethodDMABuf
	}
	works := map[Method]bool{}
	for _, method := range methods {
		registration, err := r.tryMethod(method)
		r.result.Registrations = append(r.result.Registrations, registration)
		if err != nil {
			return err
		}
		works[method] = registration.Err == nil
	}
	r.result.Method = r.choose(works)
	if r.result.Method != "" && r.spec.wants(Path.direct) {
		r.registerGPU()
	}
	return nil
}

// testDMABuf asks for the registration of no dma-buf: EBADF says that library,
// kernel and driver know how.
func (r *run) testDMABuf() {
	mr, err := r.verbs.regDMABuf(r.pd, 0, hugePage, -1, accessFull, false)
	if err == nil { // no driver should take it
		err = r.verbs.deregMR(mr.mr)
	}
	r.result.NICDMABufErr = err
	switch {
	case errors.Is(err, syscall.EBADF):
		r.result.NICDMABuf = sysread.Some(true)
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.EPROTONOSUPPORT), errors.Is(err, syscall.ENOSYS):
		r.result.NICDMABuf = sysread.Some(false)
	}
}

// relaxable calls register with relaxed ordering and, if that is refused, without.
func relaxable(register func(relaxed bool) (region, error)) (made region, relaxed bool, err error) {
	if made, err = register(true); errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP) {
		made, err = register(false)
		return made, false, err
	}
	return made, err == nil, err
}

func (r *run) registerHost() error {
	regions := []struct {
		memory *hostMemory
		into   *region
	}{{r.source.host, &r.source.hostRegion}, {r.destination.host, &r.destination.hostRegion}, {r.scratch, &r.scratchRegion}}
	for _, wanted := range regions {
		made, relaxed, err := relaxable(func(relaxed bool) (region, error) {
			return r.verbs.regMR(r.pd, wanted.memory.address(), len(wanted.memory.bytes), accessFull, relaxed)
		})
		if err != nil {
			return fmt.Errorf("host memory of %d bytes: %w", len(wanted.memory.bytes), err)
		}
		r.keep(made, wanted.into)
		r.result.RelaxedOrdering = sysread.Some(relaxed)
	}
	return nil
}

// keep notes a region, to be given back at the end.
func (r *run) keep(made region, into *region) {
	*into = made
	r.undo.add("memory region", func() error { return r.verbs.deregMR(made.mr) })
}

// tryMethod registers GPU memory and takes it back. The error is that of a
// region which cannot be given back.
func (r *run) tryMethod(method Method) (Registration, error) {
	tried := Registration{Method: method}
	began := time.Now()
	var made region
	made, tried.RelaxedOrdering, tried.Err = r.registerBy(method, r.source.gpu, accessFull)
	tried.Duration = time.Since(began)
	var err error
	if tried.Err == nil {
		err = r.verbs.deregMR(made.mr)
	}
	if err != nil {
		// Try again in the teardown, which keeps the memory if that fails too.
		r.keep(made, new(region))
	}
	return tried, err
}

func (r *run) registerBy(method Method, memory GPUMemory, allow access) (region, bool, error) {
	if method == MethodPeermem {
		return relaxable(func(relaxed bool) (region, error) {
			return r.verbs.regMR(r.pd, memory.Pointer(), memory.Size(), allow, relaxed)
		})
	}
	fd, err := memory.DMABuf()
	if err != nil {
		return region{}, false, fmt.Errorf("dma-buf export: %w", err)
	}
	// The region holds the dma-buf itself.
	defer func() { _ = unix.Close(fd) }()
	return relaxable(func(relaxed bool) (region, error) {
		return r.verbs.regDMABuf(r.pd, memory.Pointer(), memory.Size(), fd, allow, relaxed)
	})
}

// choose returns the method to measure with: the forced one, else NCCL's, else
// the other one, "" if none works.
func (r *run) choose(works map[Method]bool) Method {
	wanted := []Method{r.spec.Force}
	if r.spec.Force == "" {
		wanted = []Method{r.result.NCCLMethod, MethodPeermem, MethodDMABuf}
	}
	for _, method := range wanted {
		if works[method] {
			return method
		}
	}
	return ""
}

// registerGPU registers both ends by the chosen method. One that works once may
// not work for two buffers, where BAR1 is nearly full: that is its failure then.
func (r *run) registerGPU() {
	for _, end := range []*buffers{&r.source, &r.destination} {
		made, _, err := r.registerBy(r.result.Method, end.gpu, accessFull)
		if err != nil {
			r.failMethod(err)
			return
		}
		r.keep(made, &end.gpuRegion)
	}
	r.registered = true
}

func (r *run) failMethod(err error) {
	for i := range r.result.Registrations {
		if tried := &r.result.Registrations[i]; tried.Method == r.result.Method {
			tried.Err = err
		}
	}
	r.result.Method = ""
}
