// Package loopback measures RDMA writes between two queue pairs on one port of
// one NIC, between host and GPU memory: whether the NIC reaches GPU memory, and
// how fast, beside the same NIC on host memory.
//
// A NIC loops writes to its own address inside, so one port can be both ends:
// two RC (reliable connected) queue pairs, each the other's peer. Nothing leaves
// the host, and the data crosses PCIe twice, once read and once written.
//
// What is compared are five paths (see [Path]). The host path is the control: a
// NIC that is slow on host memory too has another problem. gpu_read, gpu_write
// and gpu need GPU memory that is registered with the NIC, which can fail by
// itself (no nvidia-peermem, no dma-buf), and the PCIe path between the two
// functions to be good, which fails by itself too (ACS, IOMMU). staged is what a
// job gets when either fails.
//
// A run holds nothing when it is over: memory regions, queue pairs, GPU memory
// and open device files are all given back in the reverse order of their making,
// whatever failed. libibverbs is loaded when it is needed, and all C that there is
// (loopback.h) takes its deadline and its number of bytes as arguments, because
// nothing else can interrupt it.
//
// An [Endpoint] is one half of such a connection, whose other half is on another
// host: the same parts, with a buffer that the other side may write to and nothing
// else. What both tell each other, and how, is not of this package.
package loopback
