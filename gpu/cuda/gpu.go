package cuda

// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unsafe"
)

// Numbers of cuda.h.
const (
	attributeComputeMode = 20  // CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
	attributeGPUDirect   = 116 // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED
	attributeOrdering    = 118 // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING
	attributeDMABuf      = 124 // CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED

	computeModeProhibited = 2 // CU_COMPUTEMODE_PROHIBITED
	computeModeExclusive  = 3 // CU_COMPUTEMODE_EXCLUSIVE_PROCESS
)

// mpsVariable makes a process a client of the Multi-Process Service.
const mpsVariable = "CUDA_MPS_PIPE_DIRECTORY"

// Options are how a GPU is opened.
type Options struct {
	// Roots are the driver roots below which libcuda.so.1 is searched, in this
	// order. Without any, the loader searches.
	Roots []string
	// MinFree is how many bytes of GPU memory must be free beside the context.
	MinFree uint64
	// MPS allows the process to become a client of MPS.
	MPS bool
	// Dev and Procfs are where the driver's device files and procfs are looked at
	// to explain a failure ([DeviceNodeError]): /dev and /proc if "". libcuda itself
	// knows no others than those.
	Dev, Procfs string
	// Observe, if set, is told how long each step of Open and Close took: load,
	// cuInit, gate, context, release.
	Observe func(step string, took time.Duration)
}

// Facts are attributes of a GPU and of its memory.
type Facts struct {
	Address       string // PCI address as sysfs writes it
	UUID          string // GPU-..., cuDeviceGetUuid_v2; "" before CUDA 11.4
	Name          string // cuDeviceGetName
	Driver        int    // cuDriverGetVersion: 13000 is CUDA 13.0
	GPUDirectRDMA bool   // attribute 116: says nothing of a registration working
	DMABuf        bool   // attribute 124
	Ordering      int    // attribute 118: 0 none, 100 owner, 200 all devices
	// Free and Total are bytes of GPU memory (cuMemGetInfo_v2), with the context
	// made and nothing allocated.
	Free, Total uint64
}

// GPU is an open GPU: a context on the thread that opened it.
type GPU struct {
	c       *C.struct_gdr_cuda
	library string
	device  C.CUdevice
	facts   Facts
	observe func(step string, took time.Duration)
	// undo are the steps of Close, in the order in which Open made them necessary.
	undo []func() error
	// live is what was made of the GPU and is not freed yet, oldest first.
	live []resource
}

// resource is what Close frees if its owner did not.
type resource interface {
	Close() error
	kind() string
}

// WithoutMPS returns an environment for a child process without the variable that
// would make it a client of MPS.
func WithoutMPS(environment []string) []string {
	return slices.DeleteFunc(slices.Clone(environment), func(entry string) bool {
		return strings.HasPrefix(entry, mpsVariable+"=")
	})
}

// Open opens the GPU at a PCI address, in sysfs form, on the calling thread, which
// the caller has locked. It refuses with [RefusedError], if possible before it
// makes a context: what takes no context (compute mode, MIG as far as CUDA shows
// it, MPS) first, then free memory. NVML tells memory and MIG without a context:
// ask it first where it is at hand.
func Open(address string, options Options) (*GPU, error) {
	if _, set := os.LookupEnv(mpsVariable); set && !options.MPS {
		return nil, &RefusedError{Reason: ReasonMPS, Address: address}
	}
	g := &GPU{facts: Facts{Address: address}, observe: options.Observe}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"load", func() error { return g.load(options.Roots) }},
		{"cuInit", func() error { return g.explain(g.check("cuInit", C.gdr_cuInit(g.c, 0)), &options) }},
		{"gate", func() error { return g.explain(g.gate(), &options) }},
		{"context", func() error { return g.makeContext(options.MinFree) }},
	} {
		if err := g.timed(step.name, step.do); err != nil {
			return nil, errors.Join(err, g.Close())
		}
	}
	return g, nil
}

// Facts are what the driver says that the GPU can do.
func (g *GPU) Facts() Facts { return g.facts }

// Library is the path of the libcuda in use, or its bare name if the loader found it.
func (g *GPU) Library() string { return g.library }

// Close frees what was not freed, newest first, which is an error of its own, and
// releases the context. All of it is tried whatever fails; a second call does
// nothing. Registrations of GPU memory with a NIC must be gone by now.
func (g *GPU) Close() error {
	var errs []error
	left := map[string]int{}
	for len(g.live) > 0 {
		last := g.live[len(g.live)-1]
		left[last.kind()]++
		errs = append(errs, last.Close())
	}
	for _, kind := range []string{"memory", "pinned memory", "stream"} {
		if n := left[kind]; n > 0 {
			errs = append(errs, fmt.Errorf("GPU %s was closed with %d times %s in use", g.facts.Address, n, kind))
		}
	}
	for len(g.undo) > 0 {
		last := len(g.undo) - 1
		undo := g.undo[last]
		g.undo = g.undo[:last]
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}

// timed does a step and tells the observer.
func (g *GPU) timed(step string, do func() error) error {
	start := time.Now()
	err := do()
	if g.observe != nil {
		g.observe(step, time.Since(start))
	}
	return err
}

// load loads the library.
func (g *GPU) load(roots []string) (err error) {
	g.c, g.library, err = load(roots)
	if err != nil {
		return err
	}
	g.undo = append(g.undo, func() error {
		C.gdr_cuda_unload(g.c)
		g.c = nil
		return nil
	})
	return nil
}

// gate reads what needs no context and refuses a GPU that a context would disturb.
func (g *GPU) gate() error {
	if err := g.find(); err != nil {
		return err
	}
	mode, err := g.attribute(attributeComputeMode)
	switch {
	case err != nil:
		return err
	case mode == computeModeProhibited:
		return &RefusedError{Reason: ReasonProhibited, Address: g.facts.Address}
	case mode == computeModeExclusive:
		return &RefusedError{Reason: ReasonExclusive, Address: g.facts.Address}
	}
	if err := g.identify(); err != nil {
		return err
	}
	// There is no attribute for it: with MIG enabled CUDA shows an instance in the
	// GPU's place, named "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
	if strings.Contains(g.facts.Name, " MIG ") {
		return &RefusedError{Reason: ReasonMIG, Address: g.facts.Address}
	}
	for attribute, set := range map[int]func(int){
		attributeGPUDirect: func(value int) { g.facts.GPUDirectRDMA = value != 0 },
		attributeDMABuf:    func(value int) { g.facts.DMABuf = value != 0 },
		attributeOrdering:  func(value int) { g.facts.Ordering = value },
	} {
		value, err := g.attribute(attribute)
		if err != nil && !errors.Is(err, InvalidValue) { // a driver older than the attribute
			return err
		}
		set(value)
	}
	return nil
}

// find finds the device of the PCI address.
func (g *GPU) find() error {
	var count C.int
	if err := g.check("cuDeviceGetCount", C.gdr_cuDeviceGetCount(g.c, &count)); err != nil {
		return err
	}
	name := append([]byte(g.facts.Address), 0)
	err := g.check("cuDeviceGetByPCIBusId", C.gdr_cuDeviceGetByPCIBusId(g.c, &g.device, (*C.char)(unsafe.Pointer(&name[0]))))
	if err == nil {
		return nil
	}
	text := fmt.Sprintf("CUDA sees %d GPUs", int(count))
	if visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
		text += fmt.Sprintf(" with CUDA_VISIBLE_DEVICES=%q", visible)
	}
	return fmt.Errorf("GPU %s: %w (%s)", g.facts.Address, err, text)
}

// identify reads driver version, name and UUID.
func (g *GPU) identify() error {
	var version C.int
	if err := g.check("cuDriverGetVersion", C.gdr_cuDriverGetVersion(g.c, &version)); err != nil {
		return err
	}
	g.facts.Driver = int(version)
	var name [256]C.char
	if err := g.check("cuDeviceGetName", C.gdr_cuDeviceGetName(g.c, &name[0], C.int(len(name)-1), g.device)); err != nil {
		return err
	}
	g.facts.Name = C.GoString(&name[0])
	var uuid C.CUuuid
	switch err := g.check("cuDeviceGetUuid_v2", C.gdr_cuDeviceGetUuid_v2(g.c, &uuid, g.device)); {
	case err == nil:
		b := C.GoBytes(unsafe.Pointer(&uuid), C.int(unsafe.Sizeof(uuid)))
		g.facts.UUID = fmt.Sprintf("GPU-%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	case !errors.Is(err, missing):
		return err
	}
	return nil
}

// attribute reads cuDeviceGetAttribute.
func (g *GPU) attribute(number int) (int, error) {
	var value C.int
	err := g.check("cuDeviceGetAttribute", C.gdr_cuDeviceGetAttribute(g.c, &value, C.int(number), g.device))
	return int(value), err
}

// makeContext makes the context, and gives it back if it leaves too little memory.
func (g *GPU) makeContext(minFree uint64) error {
	var context C.CUcontext
	err := g.check("cuDevicePrimaryCtxRetain", C.gdr_cuDevicePrimaryCtxRetain(g.c, &context, g.device))
	if err != nil {
		return g.noContext(err, minFree)
	}
	g.undo = append(g.undo, func() error {
		return g.timed("release", func() error {
			return g.check("cuDevicePrimaryCtxRelease_v2", C.gdr_cuDevicePrimaryCtxRelease_v2(g.c, g.device))
		})
	})
	if err := g.check("cuCtxSetCurrent", C.gdr_cuCtxSetCurrent(g.c, context)); err != nil {
		return err
	}
	g.undo = append(g.undo, func() error {
		return g.check("cuCtxSetCurrent", C.gdr_cuCtxSetCurrent(g.c, nil))
	})
	var free, total C.size_t
	if err := g.check("cuMemGetInfo_v2", C.gdr_cuMemGetInfo_v2(g.c, &free, &total)); err != nil {
		return err
	}
	g.facts.Free, g.facts.Total = uint64(free), uint64(total)
	if g.facts.Free < minFree {
		return &RefusedError{Reason: ReasonMemory, Address: g.facts.Address, Free: g.facts.Free, MinFree: minFree}
	}
	return nil
}

// noContext says what it means that a context could not be made.
func (g *GPU) noContext(err error, minFree uint64) error {
	if errors.Is(err, OutOfMemory) {
		return &RefusedError{Reason: ReasonMemory, Address: g.facts.Address, MinFree: minFree, Err: err}
	}
	// The mode may have changed since the gate read it; else the GPU is ill.
	if mode, _ := g.attribute(attributeComputeMode); errors.Is(err, DeviceUnavailable) && mode == computeModeExclusive {
		return &RefusedError{Reason: ReasonExclusive, Address: g.facts.Address, Err: err}
	}
	return err
}

// check makes an error of a CUresult.
func (g *GPU) check(function string, code C.CUresult) error {
	if code == 0 {
		return nil
	}
	return g.failure(function, code)
}

func (g *GPU) failure(function string, code C.CUresult) error {
	if Code(code) == missing {
		return fmt.Errorf("this libcuda does not have it: %w", &Error{function, missing, "CUDA_ERROR_NOT_FOUND"})
	}
	failed := &Error{function, Code(code), Code(code).Error()}
	var name *C.char
	if C.gdr_cuGetErrorName(g.c, code, &name) == 0 && name != nil {
		failed.Name = C.GoString(name)
	}
	return failed
}

// keep notes what Close frees if its owner does not.
func (g *GPU) keep(r resource) { g.live = append(g.live, r) }

// drop forgets it again, before it is freed: a free that failed is not repeated.
func (g *GPU) drop(r resource) {
	if at := slices.Index(g.live, r); at >= 0 {
		g.live = slices.Delete(g.live, at, at+1)
	}
}
