package loopback

import "unsafe"

// GPU is a GPU opened for one run, on the thread that opened it: package
// gpu/cuda implements it with libcuda. Nothing of it outlives Close.
type GPU interface {
	// Facts are what the driver says that the GPU can do.
	Facts() GPUFacts
	// Alloc allocates GPU memory of size bytes, a multiple of 2 MiB, with
	// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS set.
	Alloc(size int) (GPUMemory, error)
	// Pin makes host memory fit for asynchronous copies (cuMemHostRegister)
	// until unpin is called.
	Pin(host unsafe.Pointer, size int) (unpin func() error, err error)
	// Stream makes a stream of copies.
	Stream() (Stream, error)
	// Close destroys the context. All memory and streams must have been freed.
	Close() error
}

// GPUFacts are attributes of a GPU (cuDeviceGetAttribute) and of its memory.
type GPUFacts struct {
	Address       string // PCI address as sysfs writes it
	UUID          string // GPU-...
	Name          string
	Driver        int  // cuDriverGetVersion: 13000 is CUDA 13.0
	GPUDirectRDMA bool // attribute 116: says nothing of a registration working
	DMABuf        bool // attribute 124
	Ordering      int  // attribute 118: 0 none, 100 owner, 200 all devices
	// Free and Total are bytes of GPU memory before the run allocated anything.
	Free, Total uint64
}

// GPUMemory is memory of a GPU.
type GPUMemory interface {
	// Pointer is the device pointer, as ibv_reg_mr takes it.
	Pointer() uintptr
	Size() int
	// DMABuf exports the whole memory (cuMemGetHandleForAddressRange). The caller
	// closes the descriptor, at once after registration if it likes.
	DMABuf() (fd int, err error)
	// Write and Read copy between host and GPU memory and return when it is done.
	Write(offset int, from []byte) error
	Read(offset int, into []byte) error
	Free() error
}

// Stream is a queue of asynchronous copies, done in order.
type Stream interface {
	// ToHost and FromHost enqueue a copy of n bytes from or to GPU memory. The
	// host memory must be pinned.
	ToHost(to unsafe.Pointer, from GPUMemory, offset, n int) error
	FromHost(to GPUMemory, offset int, from unsafe.Pointer, n int) error
	// Mark notes the current end of the queue; Reached reports whether the copies
	// up to the mark are done.
	Mark() (Mark, error)
	// Wait returns when all copies are done.
	Wait() error
	Close() error
}

// Mark is a place in a stream (a CUDA event).
type Mark interface {
	Reached() (bool, error)
	Wait() error
	Free() error
}
