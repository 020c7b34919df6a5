// Package netdev reads the network interface behind an Ethernet (RoCE, iWARP)
// RDMA port.
//
// What an RDMA port does not say of itself stands there: how often the fabric
// paused it and it paused the fabric (priority flow control), what it dropped,
// what its physical layer corrected, whether PCIe held it up, and whether it is
// configured for lossless traffic at all. The sources:
//
//   - ethtool statistics, by ioctl. Every driver has names of its own; the
//     table in meanings.go gives those that matter one name each and leaves out
//     the rest, of which mlx5 alone has thousands (per queue).
//   - DCB netlink (RTM_GETDCB): PFC-enabled priorities and trust.
//   - sysfs: MTU, carrier counts, and what NVIDIA's out-of-tree driver adds.
//
// All of it costs the device firmware commands (mlx5: some forty for the
// statistics, some thirty for DCB), so it belongs on a timer of a minute or
// more; DCB is read more rarely still. Nothing is ever changed.
//
// The ioctl and netlink answer for the network namespace of the process, sysfs
// for that of the mount. Where the two do not agree, an equal name is another
// interface: nothing but sysfs is then read.
package netdev
