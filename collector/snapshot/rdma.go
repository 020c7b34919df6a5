package snapshot

import "gdr_exporter/rdma"

// CollectorRDMA is the collector that reads RDMA devices and their ports.
const CollectorRDMA = "rdma"

// RDMAPart is the RDMA devices' share of a Snapshot.
type RDMAPart = Part[rdma.Device, RDMAListing]

// RDMAListing is what the class directory says beside its devices.
type RDMAListing struct {
	Present  bool // /sys/class/infiniband exists
	Devices  int  // listed and not excluded
	Excluded int
	Netlink  bool // the RDMA netlink family answers
	// NetlinkFailed: it was asked and does not answer.
	NetlinkFailed bool
	// Events counts the kernel's events about devices by type; nil if the kernel
	// tells of none. Monitor: it is still being listened to.
	Events  map[string]uint64
	Monitor bool
}

type rdmaSource = source[*rdma.DeviceReader, rdma.Device, RDMAListing]

func newRDMASource(options *Options, ledger *Ledger, reader *rdma.Reader) *rdmaSource {
	return newSource(CollectorRDMA, options, ledger, func() ([]*rdma.DeviceReader, RDMAListing, error) {
		listing, err := reader.List()
		ledger.add(CollectorRDMA, listing.Failed)
		return listing.Devices, RDMAListing{
			Present: listing.Present, Devices: len(listing.Devices), Excluded: listing.Excluded, Netlink: listing.Netlink, NetlinkFailed: listing.NetlinkErr != nil,
			Events: listing.Events, Monitor: listing.Monitor,
		}, err
	})
}
