// Package nldev asks the kernel's RDMA netlink family (NETLINK_RDMA, client
// nldev) about RDMA devices.
//
// Beside sysfs it is the other place where the kernel tells of RDMA devices,
// and the cheaper one: one request gives all of a port's states, another all
// of its hw_counters, where sysfs asks the firmware anew for each file. It also
// counts what applications hold (queue pairs, memory regions) and tells of
// devices that come, go and change their names.
//
// It changes nothing, needs no privilege, and should be run without
// CAP_NET_ADMIN: with it the kernel adds the keys of memory regions to its
// answers.
//
// Decoding is tolerant: unknown attributes are passed over, and an attribute of
// an unexpected length is taken for absent. Numbers are those of
// include/uapi/rdma/rdma_netlink.h, Linux 6.12.
package nldev
