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
