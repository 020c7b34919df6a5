// Package affinity reads the PCIe path between GPUs and RDMA devices from
// sysfs: how far apart they are, through which bridges and links, and what on
// the way redirects, narrows or breaks their traffic.
//
// NVML knows the distance between two GPUs but nothing of NICs, so the tree is
// walked here, without NVML: it also works while the driver hangs or is absent.
package affinity
