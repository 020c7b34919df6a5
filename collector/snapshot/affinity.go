package snapshot

import "gdr_exporter/gpu/affinity"

// Collectors that the PCIe tree serves. Its errors are counted under affinity.
const (
	CollectorAffinity = "affinity"
	CollectorPCIe     = "pcie"
)

// AffinityPart is the PCIe tree's share of a Snapshot: a unit per PCI function,
// since reading one may hang.
type AffinityPart = Part[affinity.Function, affinity.Listing]

type affinitySource = source[*affinity.FunctionReader, affinity.Function, affinity.Listing]

func newAffinitySource(options *Options, ledger *Ledger, reader *affinity.Reader) *affinitySource {
	return newSource(CollectorAffinity, options, ledger, func() ([]*affinity.FunctionReader, affinity.Listing, error) {
		listing, functions, err := reader.List()
		ledger.add(CollectorAffinity, listing.Failed)
		return functions, listing, err
	})
}

// Functions returns the PCI functions that answered, by address.
func Functions(part *AffinityPart) map[string]*affinity.Function {
	functions := make(map[string]*affinity.Function, len(part.Units))
	for _, unit := range part.Units {
		if unit.Data != nil {
			functions[unit.Name] = unit.Data
		}
	}
	return functions
}

// joinC2C puts in what only NVML knows of the tree: which GPUs reach their CPU
// over NVLink-C2C.
func (s *Snapshot) joinC2C() {
	nvml := s.NVML()
	if nvml == nil || s.Affinity == nil {
		return
	}
	c2c := map[string]bool{}
	for i := range nvml.GPUs {
		if gpu := &nvml.GPUs[i]; gpu.C2CLinks.Value > 0 {
			c2c[gpu.Address] = true
		}
	}
	if len(c2c) > 0 {
		s.Affinity.Listing = s.Affinity.Listing.WithC2C(func(gpu string) bool { return c2c[gpu] })
	}
}
