// The part of CUDA's driver API that a measurement needs, declared here so that
// the build needs no headers of CUDA. Types and numbers are the ABI of
// libcuda.so.1 on 64-bit Linux (cuda.h); those of a suffix _v2 are as of CUDA 4
// to 11.4 and have not changed since.
#ifndef GDR_CUDA_DRIVER_H
#define GDR_CUDA_DRIVER_H

#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct {
	unsigned char bytes[16];
} CUuuid;

// A function that this libcuda does not have; no CUresult is negative.
#define GDR_CUDA_MISSING (-1)

// Every function once: whether it must be there, name, arguments, parameters.
#define GDR_CUDA_FUNCTIONS(F) \
	F(1, cuInit, (flags), unsigned int flags) \
	F(1, cuGetErrorName, (code, name), CUresult code, const char **name) \
	F(1, cuDriverGetVersion, (version), int *version) \
	F(1, cuDeviceGetCount, (count), int *count) \
	F(1, cuDeviceGetByPCIBusId, (device, address), CUdevice *device, const char *address) \
	F(1, cuDeviceGetName, (name, size, device), char *name, int size, CUdevice device) \
	F(0, cuDeviceGetUuid_v2, (uuid, device), CUuuid *uuid, CUdevice device) \
	F(1, cuDeviceGetAttribute, (value, attribute, device), int *value, int attribute, CUdevice device) \
	F(1, cuDevicePrimaryCtxRetain, (context, device), CUcontext *context, CUdevice device) \
	F(1, cuDevicePrimaryCtxRelease_v2, (device), CUdevice device) \
	F(1, cuCtxSetCurrent, (context), CUcontext context) \
	F(1, cuMemGetInfo_v2, (free, total), size_t *free, size_t *total) \
	F(1, cuMemAlloc_v2, (pointer, size), CUdeviceptr *pointer, size_t size) \
	F(1, cuMemFree_v2, (pointer), CUdeviceptr pointer) \
	F(1, cuPointerSetAttribute, (value, attribute, pointer), const void *value, int attribute, CUdeviceptr pointer) \
	F(0, cuPointerGetAttribute, (value, attribute, pointer), void *value, int attribute, CUdeviceptr pointer) \
	F(0, cuMemGetHandleForAddressRange, (handle, pointer, size, type, flags), void *handle, CUdeviceptr pointer, size_t size, int type, unsigned long long flags) \
	F(1, cuMemcpyHtoD_v2, (to, from, size), CUdeviceptr to, const void *from, size_t size) \
	F(1, cuMemcpyDtoH_v2, (to, from, size), void *to, CUdeviceptr from, size_t size) \
	F(1, cuMemcpyHtoDAsync_v2, (to, from, size, stream), CUdeviceptr to, const void *from, size_t size, CUstream stream) \
	F(1, cuMemcpyDtoHAsync_v2, (to, from, size, stream), void *to, CUdeviceptr from, size_t size, CUstream stream) \
	F(1, cuMemHostRegister_v2, (host, size, flags), void *host, size_t size, unsigned int flags) \
	F(1, cuMemHostUnregister, (host), void *host) \
	F(1, cuStreamCreate, (stream, flags), CUstream *stream, unsigned int flags) \
	F(1, cuStreamSynchronize, (stream), CUstream stream) \
	F(1, cuStreamDestroy_v2, (stream), CUstream stream) \
	F(1, cuEventCreate, (event, flags), CUevent *event, unsigned int flags) \
	F(1, cuEventRecord, (event, stream), CUevent event, CUstream stream) \
	F(1, cuEventQuery, (event), CUevent event) \
	F(1, cuEventSynchronize, (event), CUevent event) \
	F(1, cuEventDestroy_v2, (event), CUevent event)

// A loaded libcuda: the dlopen handle and its functions.
struct gdr_cuda {
	void *library;
#define GDR_CUDA_MEMBER(required, name, arguments, ...) CUresult (*name)(__VA_ARGS__);
	GDR_CUDA_FUNCTIONS(GDR_CUDA_MEMBER)
#undef GDR_CUDA_MEMBER
};

// gdr_cuInit and so on: Go cannot call through a pointer.
#define GDR_CUDA_CALL(required, name, arguments, ...) \
	static inline CUresult gdr_##name(const struct gdr_cuda *gdr, __VA_ARGS__) \
	{ \
		return gdr->name ? gdr->name arguments : GDR_CUDA_MISSING; \
	}
GDR_CUDA_FUNCTIONS(GDR_CUDA_CALL)
#undef GDR_CUDA_CALL

// Loads the library at path. Returns NULL and a text if that fails, or if a
// function is missing that must be there.
struct gdr_cuda *gdr_cuda_load(const char *path, char *error, size_t size);

// Gives the handle back. The library stays mapped: it has threads of its own once
// cuInit was called.
void gdr_cuda_unload(struct gdr_cuda *gdr);

#endif
