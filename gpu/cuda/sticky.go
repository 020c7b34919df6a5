package cuda

// relaunch are the codes of which cuda.h says: "This leaves the process in an
// inconsistent state and any further CUDA work will return the same error. To
// continue using CUDA, the process must be terminated and relaunched", or the
// last of these sentences alone.
var relaunch = map[Code]bool{
	Contained:           true,
	IllegalAddress:      true,
	LaunchTimeout:       true,
	HardwareStackError:  true,
	IllegalInstruction:  true,
	MisalignedAddress:   true,
	InvalidAddressSpace: true,
	InvalidPC:           true,
	LaunchFailed:        true,
	TensorMemoryLeak:    true,
	MPSClientTerminated: true,
	ExternalDevice:      true,
}

// beyond are further codes after which CUDA does not work in the process any more,
// though cuda.h does not say so of them.
var beyond = map[Code]bool{
	// The library that was loaded does not fit the kernel module, as after an
	// upgrade; it stays mapped, so that only a fresh process loads the new one.
	SystemDriverMismatch: true,
	// "The CUDA driver is in the process of shutting down": it does not come back.
	Deinitialized: true,
	// cuda.h: the context "cannot be used anymore, and must be destroyed". The
	// context here is the device's primary one, which all of the process share; the
	// runtime's documentation of the same number has the process relaunched.
	Assert: true,
	// Errors of the hardware under a context. NVIDIA's Xid documentation (48, 94,
	// 95, 74) has the affected applications restarted.
	ECCUncorrectable:    true,
	NVLinkUncorrectable: true,
}

// Sticky reports whether no further CUDA call can succeed in this process: it has
// to be replaced by a fresh one. An error that a GPU reset or a removed driver
// leaves behind has no code of its own: CUDA_ERROR_UNKNOWN counts, but from
// cuInit, where it says what is wrong with the host and not with the process.
func (e *Error) Sticky() bool {
	if e.Code == Unknown {
		return e.Function != "cuInit"
	}
	return relaunch[e.Code] || beyond[e.Code]
}
