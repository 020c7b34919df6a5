package gpu

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
)

// versions are the functions of which NVML has several, the one that go-nvml
// prefers first (updateVersionedSymbols in its lib.go). It calls the first that
// the driver has.
var versions = map[string][]string{
	"nvmlInit":                             {"nvmlInit_v2", "nvmlInit"},
	"nvmlDeviceGetCount":                   {"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
	"nvmlDeviceGetHandleByIndex":           {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
	"nvmlDeviceGetPciInfo":                 {"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"},
	"nvmlDeviceGetNvLinkRemotePciInfo":     {"nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo"},
	"nvmlDeviceGetComputeRunningProcesses": {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses"},
	"nvmlEventSetWait":                     {"nvmlEventSetWait_v2", "nvmlEventSetWait"},
}

// symbols are the functions of which the library must have one before call may
// be made.
func symbols(call string) []string {
	if names := versions[call]; names != nil {
		return names
	}
	return []string{call}
}

// Call is an NVML call in progress.
type Call struct {
	Name       string // the C function, less its version: nvmlDeviceGetMemoryInfo
	GPUAddress string // the GPU it concerns; "" for none
	Since      time.Time
}

// calls is the one place through which NVML is called.
type calls struct {
	lib      Library
	exported map[string]bool // by call; what the driver has does not change
	current  atomic.Pointer[Call]
	// halt keeps a read from making further calls. interrupted: it has kept the
	// read in progress from making one, whose result is not whole.
	halt        atomic.Bool
	interrupted bool
	spent       time.Duration                             // in calls since it was set to 0
	observe     func(call string, duration time.Duration) // for measurements; may be nil
}

// use makes lib the library that is called.
func (c *calls) use(lib Library) { c.lib, c.exported = lib, map[string]bool{} }

// has reports whether the driver has the function.
func (c *calls) has(call string) bool {
	exported, known := c.exported[call]
	if !known {
		for _, name := range symbols(call) {
			exported = exported || c.lib.LookupSymbol(name) == nil
		}
		c.exported[call] = exported
	}
	return exported
}

// halted reports whether no call may be made, and notes that one was to be.
func (c *calls) halted() bool {
	if c.halt.Load() {
		c.interrupted = true
	}
	return c.interrupted
}

// begin publishes a call and returns what ends it.
func (c *calls) begin(call, address string) (end func()) {
	now := time.Now()
	c.current.Store(&Call{call, address, now})
	return func() {
		c.current.Store(nil)
		took := time.Since(now)
		c.spent += took
		if c.observe != nil {
			c.observe(call, took)
		}
	}
}

// invoke calls f, if the driver has the function that f calls: calling one that
// is missing ends the process ("symbol lookup error", NVIDIA/go-nvml#131).
func invoke[T any](c *calls, address, call string, f func() (T, nvml.Return)) (T, nvml.Return) {
	if !c.has(call) {
		var none T
		return none, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	defer c.begin(call, address)()
	return f()
}

// init initialises NVML. It is not looked up first: go-nvml loads the library
// only now, and OpenLibrary has seen that it has the function.
func (c *calls) init() nvml.Return {
	defer c.begin("nvmlInit", "")()
	return c.lib.Init()
}

// status makes a call that returns nothing but its success fit invoke.
func status(f func() nvml.Return) func() (struct{}, nvml.Return) {
	return func() (struct{}, nvml.Return) { return struct{}{}, f() }
}

// visit is one read of one GPU, or of NVML itself where address is "".
type visit struct {
	calls   *calls
	address string
	errs    []sysread.ReadError
	// lost: a call said that the GPU is lost; no further one is made.
	lost          bool
	resetRequired bool
	// down: a call said that NVML as a whole does not work any more.
	down bool
	// answered and unknown count the calls that said something, and those that
	// gave ERROR_UNKNOWN.
	answered, unknown int
	last              nvml.Return // of the last call
	// closing: its calls give NVML back, and are made though calls are halted.
	closing bool
}

// ask makes a call about the visited GPU. What the GPU or the driver does not
// have is unknown in silence, and so is what gives one of the returns in also.
func ask[T any](v *visit, call string, f func() (T, nvml.Return), also ...nvml.Return) sysread.Maybe[T] {
	if v.lost || v.down || !v.closing && v.calls.halted() {
		return sysread.Maybe[T]{}
	}
	value, ret := invoke(v.calls, v.address, call, f)
	if !v.judge(call, ret, also) {
		return sysread.Maybe[T]{}
	}
	return sysread.Some(value)
}

// judge notes how a call went and reports whether it gave a value.
func (v *visit) judge(source string, ret nvml.Return, also []nvml.Return) bool {
	v.last = ret
	if slices.Contains(also, ret) {
		return false
	}
	switch ret {
	case nvml.SUCCESS:
		v.answered++
		return true
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_DEPRECATED:
		v.answered++
		return false
	case nvml.ERROR_FUNCTION_NOT_FOUND: // no call was made
		return false
	case nvml.ERROR_GPU_IS_LOST:
		v.lost = true
	case nvml.ERROR_RESET_REQUIRED:
		v.resetRequired = true
	case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		v.down = true
	case nvml.ERROR_UNKNOWN:
		v.unknown++
	}
	v.fail(source, Error{ret})
	return false
}

func (v *visit) fail(source string, err error) {
	v.errs = append(v.errs, sysread.ReadError{Device: v.address, Source: source, Err: err})
}

// refuses reports whether nothing but ERROR_UNKNOWN came back: what a library
// says whose driver was exchanged under it.
func (v *visit) refuses() bool { return v.answered == 0 && v.unknown > 0 }
