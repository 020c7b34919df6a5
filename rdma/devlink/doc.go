// Package devlink reads devlink health reporters: what a NIC's driver says of
// its firmware, its queues and itself, and how often each failed and recovered.
//
// The kernel keeps these numbers in memory; asking for them costs the device
// nothing and needs no privilege. One dump over generic netlink answers for
// every device of the process's network namespace, so one Reader serves the
// whole host. A kernel without devlink, and a device without reporters, simply
// have none.
//
// With mlx5 the reporters are fw (firmware asserts, the health buffer's
// complaints), fw_fatal (the firmware is dead or the PCIe link lost), tx and rx
// (stuck queues) and vnic (which only answers diagnosis).
package devlink
