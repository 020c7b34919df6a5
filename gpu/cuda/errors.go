package cuda

// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
)

// Code is a CUresult, for errors.Is: errors.Is(err, cuda.OutOfMemory).
type Code int

// The codes that a measurement meets or that a finding names (cuda.h, CUresult).
const (
	InvalidValue         Code = 1
	OutOfMemory          Code = 2
	NotInitialized       Code = 3
	Deinitialized        Code = 4
	StubLibrary          Code = 34
	DeviceUnavailable    Code = 46
	NoDevice             Code = 100
	InvalidDevice        Code = 101
	DeviceNotLicensed    Code = 102
	InvalidContext       Code = 201
	ECCUncorrectable     Code = 214
	NVLinkUncorrectable  Code = 220
	Contained            Code = 226
	OperatingSystem      Code = 304
	InvalidHandle        Code = 400
	NotReady             Code = 600
	IllegalAddress       Code = 700
	LaunchTimeout        Code = 702
	Assert               Code = 710
	HostMemoryRegistered Code = 712
	HardwareStackError   Code = 714
	IllegalInstruction   Code = 715
	MisalignedAddress    Code = 716
	InvalidAddressSpace  Code = 717
	InvalidPC            Code = 718
	LaunchFailed         Code = 719
	TensorMemoryLeak     Code = 721
	NotPermitted         Code = 800
	NotSupported         Code = 801
	SystemNotReady       Code = 802 // fabric manager; confidential computing without attestation
	SystemDriverMismatch Code = 803 // library and kernel module differ
	MPSConnectionFailed  Code = 805
	MPSClientTerminated  Code = 810
	ExternalDevice       Code = 911
	Unknown              Code = 999
	missing              Code = C.GDR_CUDA_MISSING
)

// codeNames are cuda.h's names. Those of an [Error] come from the driver, which
// knows more.
var codeNames = map[Code]string{
	InvalidValue:         "CUDA_ERROR_INVALID_VALUE",
	OutOfMemory:          "CUDA_ERROR_OUT_OF_MEMORY",
	NotInitialized:       "CUDA_ERROR_NOT_INITIALIZED",
	Deinitialized:        "CUDA_ERROR_DEINITIALIZED",
	StubLibrary:          "CUDA_ERROR_STUB_LIBRARY",
	DeviceUnavailable:    "CUDA_ERROR_DEVICE_UNAVAILABLE",
	NoDevice:             "CUDA_ERROR_NO_DEVICE",
	InvalidDevice:        "CUDA_ERROR_INVALID_DEVICE",
	DeviceNotLicensed:    "CUDA_ERROR_DEVICE_NOT_LICENSED",
	InvalidContext:       "CUDA_ERROR_INVALID_CONTEXT",
	ECCUncorrectable:     "CUDA_ERROR_ECC_UNCORRECTABLE",
	NVLinkUncorrectable:  "CUDA_ERROR_NVLINK_UNCORRECTABLE",
	Contained:            "CUDA_ERROR_CONTAINED",
	OperatingSystem:      "CUDA_ERROR_OPERATING_SYSTEM",
	InvalidHandle:        "CUDA_ERROR_INVALID_HANDLE",
	NotReady:             "CUDA_ERROR_NOT_READY",
	IllegalAddress:       "CUDA_ERROR_ILLEGAL_ADDRESS",
	LaunchTimeout:        "CUDA_ERROR_LAUNCH_TIMEOUT",
	Assert:               "CUDA_ERROR_ASSERT",
	HostMemoryRegistered: "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
	HardwareStackError:   "CUDA_ERROR_HARDWARE_STACK_ERROR",
	IllegalInstruction:   "CUDA_ERROR_ILLEGAL_INSTRUCTION",
	MisalignedAddress:    "CUDA_ERROR_MISALIGNED_ADDRESS",
	InvalidAddressSpace:  "CUDA_ERROR_INVALID_ADDRESS_SPACE",
	InvalidPC:            "CUDA_ERROR_INVALID_PC",
	LaunchFailed:         "CUDA_ERROR_LAUNCH_FAILED",
	TensorMemoryLeak:     "CUDA_ERROR_TENSOR_MEMORY_LEAK",
	NotPermitted:         "CUDA_ERROR_NOT_PERMITTED",
	NotSupported:         "CUDA_ERROR_NOT_SUPPORTED",
	SystemNotReady:       "CUDA_ERROR_SYSTEM_NOT_READY",
	SystemDriverMismatch: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
	MPSConnectionFailed:  "CUDA_ERROR_MPS_CONNECTION_FAILED",
	MPSClientTerminated:  "CUDA_ERROR_MPS_CLIENT_TERMINATED",
	ExternalDevice:       "CUDA_ERROR_EXTERNAL_DEVICE",
	Unknown:              "CUDA_ERROR_UNKNOWN",
}

// Error returns cuda.h's name: CUDA_ERROR_OUT_OF_MEMORY.
func (c Code) Error() string {
	if name := codeNames[c]; name != "" {
		return name
	}
	return fmt.Sprintf("CUDA_ERROR_%d", int(c))
}

// Error is a failed call of libcuda.
type Error struct {
	// Function is the call: cuMemAlloc_v2.
	Function string
	// Code is the CUresult.
	Code Code
	// Name is the driver's name of the code (cuGetErrorName).
	Name string
}

// Error names function, code and number.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Function, e.Name, int(e.Code)) }

// Is makes errors.Is work with the codes of this package.
func (e *Error) Is(target error) bool {
	code, ok := target.(Code)
	return ok && code == e.Code
}

// ErrnoName returns the name for the label errno: CUDA_ERROR_OUT_OF_MEMORY.
func (e *Error) ErrnoName() string { return e.Name }

// Uses of what is no longer, or never was, there.
var (
	// ErrClosed says that memory, stream or mark were freed before, or the GPU closed.
	ErrClosed = errors.New("GPU object was closed")
	// ErrRange says that a copy would leave the GPU memory, or that a size is not
	// a multiple of [Granularity].
	ErrRange = errors.New("not a range of the GPU memory")
)

// Reason is why a GPU was refused.
type Reason string

// The reasons, in the words of a result.
const (
	// ReasonExclusive is compute mode EXCLUSIVE_PROCESS: a context would make a
	// starting job fail.
	ReasonExclusive Reason = "exclusive"
	// ReasonProhibited is compute mode PROHIBITED.
	ReasonProhibited Reason = "prohibited"
	// ReasonMIG is a GPU split into instances.
	ReasonMIG Reason = "mig"
	// ReasonMPS is an environment that makes the process a client of MPS, where a
	// fault may hit the other clients.
	ReasonMPS Reason = "mps"
	// ReasonMemory is too little free GPU memory.
	ReasonMemory Reason = "memory"
)

// RefusedError says that a GPU was left alone although it may be healthy.
type RefusedError struct {
	Reason  Reason
	Address string
	// Free and MinFree are bytes, for ReasonMemory. Free is what is left beside
	// the context; it is 0 if not even a context found room.
	Free, MinFree uint64
	// Err is the call that said so, or nil.
	Err error
}

// Error says why and, for memory, with which numbers.
func (e *RefusedError) Error() string {
	text := "GPU " + e.Address + " is left alone: "
	switch e.Reason {
	case ReasonExclusive:
		return text + "its compute mode is EXCLUSIVE_PROCESS, a context would keep jobs from starting"
	case ReasonProhibited:
		return text + "its compute mode is PROHIBITED"
	case ReasonMIG:
		return text + "it is split into MIG instances"
	case ReasonMPS:
		return text + mpsVariable + " is set, a fault could hit other clients of MPS"
	}
	if e.Err != nil {
		return fmt.Sprintf("%sits free memory has no room for a context: %v", text, e.Err)
	}
	return fmt.Sprintf("%s%d MiB of its memory are free, %d MiB are wanted", text, e.Free>>20, e.MinFree>>20)
}

// SkipReason is the prober's word for it.
func (e *RefusedError) SkipReason() string { return skipReasons[e.Reason] }

var skipReasons = map[Reason]string{
	ReasonExclusive: "compute_mode", ReasonProhibited: "compute_mode", ReasonMIG: "mig", ReasonMPS: "mps", ReasonMemory: "gpu_memory_low",
}

// Unwrap returns the call that said so.
func (e *RefusedError) Unwrap() error { return e.Err }
