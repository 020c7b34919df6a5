// Package cuda gives one measurement the GPU memory it needs, and nothing else of
// CUDA: no kernels, no runtime library, no headers of CUDA at build.
//
// libcuda.so.1 belongs to the driver and is loaded when a GPU is opened, by its
// full path below the driver's root; a host without it runs the same binary. A
// context costs about half a GiB of GPU memory and 0.2 s, is seen in nvidia-smi,
// and keeps a driver from being unloaded: so a GPU is open for one run only, and
// some GPUs are refused ([RefusedError]) because a context would disturb a job.
//
// A context belongs to a thread: the caller locks its goroutine to one
// (runtime.LockOSThread) before [Open] and uses the GPU and all that comes of it
// on that thread, up to and including Close. Called from another thread, libcuda
// answers CUDA_ERROR_INVALID_CONTEXT.
//
// What cannot be undone: cuInit opens /dev/nvidiactl, /dev/nvidia-uvm and others
// for the life of the process, and the library stays mapped. Whoever wants those
// gone runs the measurement in a child process, with [WithoutMPS] for its
// environment. A call can hang in the driver; only a watchdog outside can tell.
package cuda
