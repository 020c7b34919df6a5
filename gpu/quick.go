package gpu

import (
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Why a GPU was not asked.
var (
	// ErrNotUp says that NVML is not initialised: there was no Read yet, the last
	// one says why, or the Reader is quiesced.
	ErrNotUp = errors.New("NVML is not up")
	// ErrNoGPU says that the last Read found no GPU at the address.
	ErrNoGPU = errors.New("NVML has no such GPU")
)

// Utilization is the share of time, from 0 to 1, in which a kernel ran on a GPU
// during NVML's last sample period, of 1/6 to 1 second
// (nvmlDeviceGetUtilizationRates). The address is a PCI address as sysfs writes it.
// See [Reader.Processes] for what ends the call.
func (r *Reader) Utilization(ctx context.Context, address string) (float64, error) {
	rates, err := quick(ctx, r, address, "nvmlDeviceGetUtilizationRates", func(d Device) (nvml.Utilization, nvml.Return) {
		return d.GetUtilizationRates()
	})
	if err != nil {
		return 0, err
	}
	return float64(rates.Gpu) / 100, nil
}

// Processes are the ids of the processes with a compute context on a GPU
// (nvmlDeviceGetComputeRunningProcesses). In a container without the host's PID
// namespace NVML may leave out those of others, or number them otherwise.
//
// Like Utilization it waits for a Read in progress, and does not initialise NVML.
// When ctx ends it returns, with an error that names the call that it waited for,
// its own or another's: that call goes on, and Calling tells of it.
func (r *Reader) Processes(ctx context.Context, address string) ([]int, error) {
	list, err := quick(ctx, r, address, "nvmlDeviceGetComputeRunningProcesses", func(d Device) ([]nvml.ProcessInfo, nvml.Return) {
		return d.GetComputeRunningProcesses()
	})
	if err != nil {
		return nil, err
	}
	pids := make([]int, 0, len(list))
	for _, process := range list {
		pids = append(pids, int(process.Pid))
	}
	return pids, nil
}

// quick makes one call about a GPU beside Read. It changes nothing that Read
// knows: what the call says of GPU or driver, the next Read finds out by itself.
func quick[T any](ctx context.Context, r *Reader, address, call string, f func(Device) (T, nvml.Return)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	failed := func(err error) (T, error) {
		var none T
		return none, fmt.Errorf("%s of GPU %s: %w", call, address, err)
	}
	if err := r.acquire(ctx); err != nil {
		return failed(err)
	}
	answers := make(chan answer, 1)
	go func() { // it keeps the slot for as long as it hangs, whoever waits for it
		defer r.release()
		handle, err := r.handle(address)
		if err != nil {
			answers <- answer{err: err}
			return
		}
		value, ret := invoke(&r.calls, address, call, func() (T, nvml.Return) { return f(handle) })
		if ret != nvml.SUCCESS {
			err = Error{ret}
		}
		answers <- answer{value, err}
	}()
	select {
	case a := <-answers:
		if a.err != nil {
			return failed(a.err)
		}
		return a.value, nil
	case <-ctx.Done():
		return failed(r.waited(ctx))
	}
}

// handle returns the handle of a GPU that may be asked now.
func (r *Reader) handle(address string) (Device, error) {
	if !r.up || r.calls.halt.Load() {
		return nil, ErrNotUp
	}
	d := r.device(address)
	switch {
	case d == nil:
		return nil, ErrNoGPU
	case d.wasLost: // asking costs time and brings nothing: Read does, ever more rarely
		return nil, Error{nvml.ERROR_GPU_IS_LOST}
	}
	return d.handle, nil
}
