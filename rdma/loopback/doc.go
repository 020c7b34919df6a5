// Package loopback measures RDMA writes between two queue pairs on one port of
// one NIC, between host and GPU memory: whether the NIC reaches GPU memory, and
// how fast, beside the same NIC on host memory.
package loopback
