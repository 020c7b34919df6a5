package status

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu/affinity"
)

// Topology is how GPUs and RDMA devices are connected, in the form of the
// command topo and its JSON. What is not known is null, an empty text or the
// class "unknown".
type Topology struct {
	// IOMMU are the units in /sys/class/iommu; none: no IOMMU.
	IOMMU []string `json:"iommu"`
	// ConfigReadable: the whole PCI configuration space could be read. Without
	// CAP_SYS_ADMIN it could not, and ACS is not known.
	ConfigReadable bool               `json:"config_readable"`
	GPUs           []TopologyFunction `json:"gpus"`
	NICs           []TopologyFunction `json:"nics"`
	Bridges        []TopologyFunction `json:"bridges"`
	Pairs          []TopologyPair     `json:"pairs"`

	roles map[string]string
}

// TopologyFunction is a PCI function.
type TopologyFunction struct {
	Address  string   `json:"address"`           // as sysfs writes it
	Driver   string   `json:"driver"`            // "" unbound
	NUMANode *int     `json:"numa_node"`         // null where the kernel does not know
	CPUs     string   `json:"cpus"`              // local_cpulist
	Upstream string   `json:"upstream"`          // bridge above, "" below a host bridge
	Root     string   `json:"root"`              // host bridge, pci0000:3a
	RDMA     []string `json:"rdma,omitempty"`    // devices of a NIC
	Role     string   `json:"role,omitempty"`    // of a NIC
	Group    string   `json:"iommu_group"`       // "" without an IOMMU
	Type     string   `json:"iommu_type"`        // identity, DMA, DMA-FQ, ...
	Power    string   `json:"power_state"`       // D0 ... D3cold
	Speed    *float64 `json:"link_gts"`          // current link speed, GT/s
	Width    *int     `json:"link_width"`        // lanes
	MaxSpeed *float64 `json:"link_possible_gts"` // what both ends can do
	MaxWidth *int     `json:"link_possible_width"`
	// ACS are the control bits that are set, "none" if all are clear or there
	// is no ACS, "unknown" without the privilege.
	ACS string `json:"acs"`
}

// TopologyPair is the path between a GPU and an RDMA device.
type TopologyPair struct {
	GPU      string `json:"gpu"`      // PCI address
	Device   string `json:"device"`   // RDMA device
	NIC      string `json:"nic"`      // PCI address, "" where the device has none
	Distance string `json:"distance"` // PIX, PXB, P2C, PHB, NODE, SYS, unknown
	Nearest  bool   `json:"nearest"`  // no other RDMA device is nearer to the GPU
	Role     string `json:"role"`     // of the device
	Common   string `json:"common_bridge"`
	// GPUSide and NICSide are the bridges below the common one, from below.
	GPUSide []string `json:"gpu_side"`
	NICSide []string `json:"nic_side"`
	// BytesPerSecond is the narrowest link's rate now, Possible at full speed and width.
	BytesPerSecond *float64 `json:"bytes_per_second"`
	Possible       *float64 `json:"possible_bytes_per_second"`
	// Redirected: ACS sends requests or completions up to the root complex.
	Redirected *bool `json:"redirected"`
}

// NewTopology takes what the PCIe tree's part of a Snapshot says.
func NewTopology(part *snapshot.AffinityPart) (Topology, error) {
	if part.Err != nil {
		return Topology{}, fmt.Errorf("the PCIe tree could not be read: %w", part.Err)
	}
	listing := &part.Listing
	t := Topology{
		IOMMU: nonNil(listing.IOMMU.Value), GPUs: []TopologyFunction{}, NICs: []TopologyFunction{}, Bridges: []TopologyFunction{}, Pairs: []TopologyPair{},
		roles: listing.Roles,
	}
	functions := snapshot.Functions(part)
	for i := range listing.Functions {
		node := &listing.Functions[i]
		f := topologyFunction(node, functions[node.Address])
		switch node.Kind {
		case affinity.KindGPU:
			t.GPUs = append(t.GPUs, f)
		case affinity.KindNIC:
			t.NICs = append(t.NICs, f)
		default:
			t.Bridges = append(t.Bridges, f)
		}
	}
	for _, function := range functions {
		t.ConfigReadable = t.ConfigReadable || function.ConfigReadable.Value
	}
	for i := range listing.Pairs {
		t.Pairs = append(t.Pairs, t.pair(&listing.Pairs[i], functions))
	}
	return t, nil
}

func topologyFunction(node *affinity.Node, f *affinity.Function) TopologyFunction {
	t := TopologyFunction{
		Address: node.Address, Driver: node.Driver, NUMANode: pointer(node.NUMANode.Known, node.NUMANode.Value), CPUs: node.LocalCPUs,
		Upstream: node.Upstream, Root: node.HostBridge, RDMA: node.RDMA, Role: node.Role, Group: node.IOMMUGroup, Type: node.IOMMUType, ACS: "unknown",
	}
	if f == nil {
		return t
	}
	t.Power = f.Power.Value
	t.Speed, t.Width = pointer(f.Link.Speed.Known, f.Link.Speed.Value), pointer(f.Link.Width.Known, f.Link.Width.Value)
	t.MaxSpeed, t.MaxWidth = pointer(f.Link.PossibleSpeed.Known, f.Link.PossibleSpeed.Value), pointer(f.Link.PossibleWidth.Known, f.Link.PossibleWidth.Value)
	t.ACS = f.Config.ACSText()
	return t
}

func (t *Topology) pair(p *affinity.Pair, functions map[string]*affinity.Function) TopologyPair {
	path := affinity.PathOf(p, functions)
	return TopologyPair{
		GPU: p.GPU, Device: p.Device, NIC: p.NIC, Distance: p.Distance.String(), Nearest: p.Nearest, Role: cmp.Or(t.roles[p.Device], "unknown"),
		Common: p.Common, GPUSide: nonNil(p.GPUSide), NICSide: nonNil(p.NICSide),
		BytesPerSecond: pointer(path.BytesPerSecond.Known, path.BytesPerSecond.Value),
		Possible:       pointer(path.PossibleBytesPerSecond.Known, path.PossibleBytesPerSecond.Value),
		Redirected:     pointer(path.Redirected.Known, path.Redirected.Value),
	}
}

func pointer[T any](known bool, value T) *T {
	if !known {
		return nil
	}
	return &value
}

func nonNil(names []string) []string {
	if names == nil {
		return []string{}
	}
	return names
}

// WriteJSON writes the topology as JSON.
func (t Topology) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(t)
}

// WriteTable writes the topology for a terminal.
func (t Topology) WriteTable(w io.Writer) error {
	var b strings.Builder
	switch {
	case len(t.GPUs) == 0 && len(t.devices()) == 0:
		b.WriteString("No NVIDIA GPU on the PCI bus and no RDMA device on this host.\n")
	case len(t.GPUs) == 0:
		b.WriteString("No NVIDIA GPU on the PCI bus of this host.\n")
		t.nicTable(&b)
	case len(t.devices()) == 0:
		b.WriteString("No RDMA device on this host.\n")
		t.gpuTable(&b)
	default:
		t.matrix(&b)
		t.pathTable(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// devices are the RDMA devices, by name.
func (t *Topology) devices() []string {
	names := map[string]bool{}
	for _, nic := range t.NICs {
		for _, name := range nic.RDMA {
			names[name] = true
		}
	}
	for _, pair := range t.Pairs {
		names[pair.Device] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// matrix writes the distances: a row per GPU, a column per device.
func (t *Topology) matrix(w *strings.Builder) {
	devices := t.devices()
	header := []any{"GPU"}
	for _, device := range devices {
		header = append(header, printable(device))
	}
	out := newTable(w, append(header, "NUMA", "CPUs")...)
	for _, gpu := range t.GPUs {
		row := table.Row{gpu.Address}
		for _, device := range devices {
			row = append(row, t.cell(gpu.Address, device))
		}
		out.AppendRow(append(row, orDash(gpu.NUMANode), cmp.Or(gpu.CPUs, "-")))
	}
	out.Render()
	w.WriteString("\n* nearest.  PIX: at most one PCIe bridge.  PXB: several, but no host bridge.  PHB: one host bridge.\n" +
		"NODE: host bridges of one NUMA node.  SYS: across NUMA nodes.  Libraries use GPUDirect RDMA up to PXB by default.\n")
}

func (t *Topology) cell(gpu, device string) string {
	for _, pair := range t.Pairs {
		if pair.GPU == gpu && pair.Device == device {
			if pair.Nearest {
				return pair.Distance + "*"
			}
			return pair.Distance
		}
	}
	return "-"
}

// pathTable writes the nearest pairs' paths.
func (t *Topology) pathTable(w *strings.Builder) {
	w.WriteString("\n")
	out := newTable(w, "GPU", "device", "role", "path", "link now", "possible", "ACS redirect", "IOMMU")
	rows := 0
	for _, pair := range t.Pairs {
		if !pair.Nearest {
			continue
		}
		rows++
		out.AppendRow(table.Row{
			pair.GPU, printable(pair.Device), pair.Role, pair.route(), gigabytes(pair.BytesPerSecond), gigabytes(pair.Possible),
			pair.redirect(), cmp.Or(t.iommuOf(pair.GPU), "none"),
		})
	}
	if rows == 0 {
		w.WriteString("No RDMA device is known to be near to a GPU: they have no PCI function (soft-RoCE), or the PCIe tree is hidden, as in many virtual machines.\n")
		return
	}
	out.Render()
	if !t.ConfigReadable {
		w.WriteString("\nACS is not known: reading it needs CAP_SYS_ADMIN, run this as root on the host.\n")
	}
}

// route is the way from the GPU to the NIC.
func (p *TopologyPair) route() string {
	up := append([]string{}, p.GPUSide...)
	if p.Common != "" {
		up = append(up, p.Common)
	} else if p.NIC != "" {
		up = append(up, "host bridge")
	}
	for _, bridge := range slices.Backward(p.NICSide) {
		up = append(up, bridge)
	}
	return strings.Join(append(up, p.NIC), " ")
}

func (t *Topology) iommuOf(address string) string {
	for _, gpu := range t.GPUs {
		if gpu.Address == address && gpu.Group != "" {
			return strings.TrimSpace(gpu.Type + " group " + gpu.Group)
		}
	}
	return ""
}

func (t *Topology) gpuTable(w *strings.Builder) { functionTable(w, "GPU", t.GPUs) }

func (t *Topology) nicTable(w *strings.Builder) { functionTable(w, "NIC", t.NICs) }

func functionTable(w *strings.Builder, kind string, functions []TopologyFunction) {
	w.WriteString("\n")
	out := newTable(w, kind, "devices", "driver", "NUMA", "CPUs", "link now", "possible")
	for _, f := range functions {
		out.AppendRow(table.Row{
			f.Address, cmp.Or(printable(strings.Join(f.RDMA, " ")), "-"), cmp.Or(f.Driver, "none"), orDash(f.NUMANode), cmp.Or(f.CPUs, "-"),
			link(f.Speed, f.Width), link(f.MaxSpeed, f.MaxWidth),
		})
	}
	out.Render()
}

func link(speed *float64, width *int) string {
	if speed == nil || width == nil {
		return "unknown"
	}
	return fmt.Sprintf("%g GT/s x%d", *speed, *width)
}

func orDash[T any](value *T) string {
	if value == nil {
		return "-"
	}
	return fmt.Sprint(*value)
}

func gigabytes(rate *float64) string {
	if rate == nil {
		return "unknown"
	}
	if *rate < 10e9 {
		return fmt.Sprintf("%.2f GB/s", *rate/1e9)
	}
	return fmt.Sprintf("%.1f GB/s", *rate/1e9)
}

// redirect says whether ACS sends the pair's traffic up to the root complex,
// where it goes without a common bridge anyway.
func (p *TopologyPair) redirect() string {
	switch {
	case p.Redirected != nil && *p.Redirected:
		return "yes"
	case p.Redirected != nil:
		return "no"
	case p.Common == "":
		return "-"
	default:
		return "unknown"
	}
}
