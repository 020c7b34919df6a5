// Package affinity reads the PCIe path between GPUs and RDMA devices from
// sysfs: how far apart they are, through which bridges and links, and what on
// the way redirects, narrows or breaks their traffic.
//
// NVML knows the distance between two GPUs but nothing of NICs, so the tree is
// walked here, without NVML: it also works while the driver hangs or is absent.
//
// A function's place is in the target of its link in /sys/bus/pci/devices, such
// as /sys/devices/pci0000:15/0000:15:01.0/0000:17:00.0: below the PCI root
// pci0000:15 (a host bridge), the root port 0000:15:01.0, the function. Root
// ports lead to endpoints or to switches; a switch is an upstream port with
// downstream ports below it, and each is a bridge in the path. A link is
// between a port and what is below it; both ends show it.
//
// What sysfs does not say is not guessed:
//   - A virtual machine may show none of the tree: functions right below a host
//     bridge, or each below a root port of its own that the hypervisor made up.
//     Only a common bridge says something there; other distances are Unknown.
//   - Whether a GPU reaches the CPU over NVLink-C2C (Grace), so that P2C holds
//     rather than NODE, is known to NVML alone; see Listing.WithC2C.
//   - Which data-direct function belongs to which ConnectX-8.
package affinity
