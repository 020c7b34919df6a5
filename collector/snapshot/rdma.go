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
}

type rdmaSource = source[*rdma.DeviceReader, rdma.Device, RDMAListing]

func newRDMASource(options *Options, ledger *Ledger, reader *rdma.Reader) *rdmaSource {
	return newSource(CollectorRDMA, options, ledger, func() ([]*rdma.DeviceReader, RDMAListing, error) {
		listing, err := reader.List()
		return listing.Devices, RDMAListing{
			Present: listing.Present, Devices: len(listing.Devices), Excluded: listing.Excluded,
		}, err
	})
}
