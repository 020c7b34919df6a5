// Package rdma reads the RDMA devices of a host from sysfs, tolerantly.
//
// The kernel lists every RDMA device (InfiniBand, RoCE, iWARP, EFA, soft-RoCE)
// below /sys/class/infiniband. Each has ports, numbered from 1, each port has
// attributes such as state and rate, and up to three directories of counters:
// counters (the InfiniBand PMA counters), counters_ext (their 64-bit form
// before Linux 4.5) and hw_counters (whatever the driver counts). Any of these
// files may be missing, refuse to be read, hold garbage, or never return:
// drivers differ, functions are restricted, firmware dies, devices go away.
//
// So one rule shapes this package: a file that cannot be read costs the one
// value it would have given. A Reading says what was read and, beside it, what
// was not and why. Absent is not zero and unreadable is not down.
//
// A Reader lists devices, a DeviceReader reads one of them and keeps its files
// open between reads. A DeviceReader may hang in the kernel; whoever calls it
// gives each its own goroutine and deadline (package collector/snapshot).
package rdma
