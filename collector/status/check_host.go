package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/host"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
)

// tree is the PCIe tree, nil if it is not known; why says why.
func (n *checkNode) tree() (listing *affinity.Listing, why string) {
	switch part := n.s.Affinity; {
	case part == nil:
		return nil, n.notRead(snapshot.CollectorAffinity, false)
	case part.Err != nil:
		return nil, "the PCIe tree cannot be listed: " + part.Err.Error()
	default:
		return &part.Listing, ""
	}
}

// near are the pairs of each GPU with its nearest devices.
func (n *checkNode) near() []*affinity.Pair {
	listing, _ := n.tree()
	if listing == nil {
		return nil
	}
	var pairs []*affinity.Pair
	for i := range listing.Pairs {
		if pair := &listing.Pairs[i]; pair.Nearest {
			pairs = append(pairs, pair)
		}
	}
	return pairs
}

// checkNoPair is said of what concerns pairs where there are none.
const checkNoPair = "no RDMA device is known to be near to a GPU"

func (n *checkNode) seeDistances() (string, bool) {
	listing, why := n.tree()
	if listing == nil {
		return why, false
	}
	near := n.near()
	if len(near) == 0 {
		return checkNoPair, true
	}
	var distances []string
	direct := 0
	for _, pair := range near {
		distances = append(distances, pair.Distance.String())
		if pair.Distance.Direct() {
			direct++
		}
	}
	return fmt.Sprintf("nearest pairs: %s; libraries use GPUDirect RDMA by default on %d of them", checkTally(distances), direct) +
		n.expected(profile.FieldDirectPairs, n.d.Expected.DirectPairs), true
}

// ofPaths is what see says of the paths of nearest pairs, tallied.
func (n *checkNode) ofPaths(see func(*affinity.Pair, affinity.Path) (string, bool)) (string, bool) {
	if listing, why := n.tree(); listing == nil {
		return why, false
	}
	near := n.near()
	if len(near) == 0 {
		return checkNoPair, true
	}
	functions := snapshot.Functions(n.s.Affinity)
	var texts []string
	known := false
	for _, pair := range near {
		text, is := see(pair, affinity.PathOf(pair, functions))
		known = known || is
		texts = append(texts, text)
	}
	return checkTally(texts), known
}

func (n *checkNode) seeACS() (string, bool) {
	return n.ofPaths(func(pair *affinity.Pair, path affinity.Path) (string, bool) {
		switch {
		case path.Redirected.Known && path.Redirected.Value:
			return "redirected to the root complex", true
		case path.Redirected.Known:
			return "not redirected", true
		case pair.Common == "":
			return "through a host bridge anyway", true
		default:
			return "not known: reading it needs CAP_SYS_ADMIN on the host", false
		}
	})
}

func (n *checkNode) seeIOMMU() (string, bool) {
	listing, why := n.tree()
	if listing == nil {
		return why, false
	}
	if listing.IOMMU.Known && len(listing.IOMMU.Value) == 0 {
		return "none, or off", true
	}
	if len(n.near()) == 0 && listing.IOMMU.Known {
		return checkSome(listing.IOMMU.Value, 4), true
	}
	return n.ofPaths(func(_ *affinity.Pair, path affinity.Path) (string, bool) {
		return string(path.IOMMU), path.IOMMU != "unknown"
	})
}

// seeLinks tells the narrowest link of each nearest pair's path.
func (n *checkNode) seeLinks() (string, bool) {
	return n.ofPaths(func(_ *affinity.Pair, path affinity.Path) (string, bool) {
		if !path.BytesPerSecond.Known || !path.PossibleBytesPerSecond.Known {
			return "not known", false
		}
		now, possible := path.BytesPerSecond.Value, path.PossibleBytesPerSecond.Value
		if now < possible {
			return fmt.Sprintf("at %s of %s possible", gigabytes(&now), gigabytes(&possible)), true
		}
		return fmt.Sprintf("at %s, all that is possible", gigabytes(&now)), true
	})
}

func (n *checkNode) seePCIeErrors() (string, bool) {
	listing, why := n.tree()
	if listing == nil {
		return why, false
	}
	var correctable, uncorrectable uint64
	counted, fallen := 0, 0
	for _, f := range snapshot.Functions(n.s.Affinity) {
		if f.Answers.Known && !f.Answers.Value {
			fallen++
		}
		if f.AER == nil {
			continue
		}
		counted++
		correctable += f.AER.Correctable.Total.Value
		uncorrectable += f.AER.NonFatal.Total.Value + f.AER.Fatal.Total.Value
	}
	seen := fmt.Sprintf("%d correctable and %d uncorrectable since boot in %s", correctable, uncorrectable, checkPlural(counted, "function"))
	if counted == 0 {
		seen = "the kernel counts none (no AER)"
	}
	if fallen > 0 {
		seen += fmt.Sprintf("; %s off the bus", checkPlural(fallen, "function"))
	}
	return seen, true
}

func (n *checkNode) seeNVLinks() (string, bool) {
	seen, known := n.ofGPUs(func(g *gpu.GPU) (string, bool) {
		if !g.NVLink.Count.Known {
			return "no NVLink", true
		}
		if !g.NVLink.Active.Known {
			return fmt.Sprintf("? of %d active", g.NVLink.Count.Value), true
		}
		return fmt.Sprintf("%d of %d active", g.NVLink.Active.Value, g.NVLink.Count.Value), true
	})
	return seen + n.expected(profile.FieldNVLinks, n.d.Expected.NVLinks), known
}

// checkFabricStates are nvmlGpuFabricState_t.
var checkFabricStates = []string{"no fabric", "registration not started", "registration in progress", "registered"}

func (n *checkNode) seeFabric() (string, bool) {
	return n.ofGPUs(func(g *gpu.GPU) (string, bool) {
		if !g.Fabric.State.Known {
			return "no fabric", true
		}
		text := checkName(g.Fabric.State.Value, checkFabricStates)
		if g.Fabric.Status.Known && g.Fabric.Status.Value != 0 {
			text += fmt.Sprintf(" with error %d", g.Fabric.Status.Value)
		}
		return text, true
	})
}

// seeContext says from where all this was seen, which decides what can be.
func (n *checkNode) seeContext() (string, bool) {
	if n.host == nil {
		return n.notRead(snapshot.CollectorPath, n.s.Host != nil), false
	}
	c := &n.host.Context
	var parts []string
	for _, part := range []struct {
		is      sysread.Maybe[bool]
		yes, no string
	}{
		{c.Root, "root", "not root"}, {c.Container, "a container", "the host"},
		{c.HostPID, "the host's processes", "processes of its own namespace"}, {c.HostNetwork, "the host's network", "a network of its own"},
	} {
		if part.is.Known {
			parts = append(parts, checkYes(part.is.Value, part.yes, part.no))
		}
	}
	if product := strings.TrimSpace(n.host.Platform.Vendor.Value + " " + n.host.Platform.Product.Value); product != "" {
		parts = append(parts, product)
	}
	if len(parts) == 0 {
		return "not known", false
	}
	return strings.Join(parts, ", "), true
}

func (n *checkNode) seeNodes() (string, bool) {
	if n.host == nil {
		return n.notRead(snapshot.CollectorPath, n.s.Host != nil), false
	}
	var missing, closed []string
	usable := 0
	for i := range n.host.Nodes {
		node := &n.host.Nodes[i]
		switch {
		case !node.Present:
			missing = append(missing, node.Name)
		case node.Usable.Known && !node.Usable.Value:
			closed = append(closed, node.Name)
		default:
			usable++
		}
	}
	parts := []string{checkPlural(usable, "file") + " of use to this process"}
	if usable == 0 {
		parts[0] = "no file of use to this process"
	} else if usable <= 4 {
		parts[0] += ": " + checkSome(n.nodeNames(), 4)
	}
	if len(missing) > 0 {
		parts = append(parts, "missing: "+checkSome(missing, 6))
	}
	if len(closed) > 0 {
		parts = append(parts, "not open to it: "+checkSome(closed, 6))
	}
	return strings.Join(parts, "; "), n.host.NodesKnown
}

func (n *checkNode) nodeNames() []string {
	var names []string
	for i := range n.host.Nodes {
		if node := &n.host.Nodes[i]; node.Present && (!node.Usable.Known || node.Usable.Value) {
			names = append(names, node.Name)
		}
	}
	return names
}

func (n *checkNode) seeMemlock() (string, bool) {
	if n.host == nil {
		return n.notRead(snapshot.CollectorPath, n.s.Host != nil), false
	}
	var parts []string
	if own := n.host.Context.Memlock; own.Known {
		parts = append(parts, "this process: "+checkBytes(own.Value))
	}
	if n.host.Daemons.Known {
		var daemons []string
		for _, daemon := range n.host.Daemons.Value {
			limit := "not known"
			if daemon.Soft.Known {
				limit = checkBytes(daemon.Soft.Value)
			}
			daemons = append(daemons, daemon.Name+" "+limit)
		}
		parts = append(parts, "jobs inherit from "+cmp.Or(checkSome(checkUnique(daemons), 6), "no known daemon"))
	} else {
		parts = append(parts, "what jobs inherit is not seen: it needs the host's processes")
	}
	return strings.Join(parts, "; "), n.host.Daemons.Known || n.host.Context.Memlock.Known
}

func checkUnique(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

func (n *checkNode) seeInterfaces() (string, bool) {
	if n.host == nil {
		return n.notRead(snapshot.CollectorPath, n.s.Host != nil), false
	}
	if !n.host.Interfaces.Known {
		return "network interfaces of RDMA ports cannot be read", false
	}
	var with, without []string
	for _, i := range n.host.Interfaces.Value {
		kind := "RoCE"
		if i.Type == host.TypeInfiniBand {
			kind = "IPoIB"
		}
		text := fmt.Sprintf("%s (%s)", i.Name, kind)
		if i.IPv4+i.IPv6 > 0 {
			with = append(with, text)
		} else {
			without = append(without, text)
		}
	}
	if len(with)+len(without) == 0 {
		return "no IPoIB or RoCE interface in this network namespace", true
	}
	parts := []string{fmt.Sprintf("%d of %s have an address", len(with), checkPlural(len(with)+len(without), "interface"))}
	if len(without) > 0 {
		parts = append(parts, "without: "+checkSome(without, 4))
	}
	return strings.Join(parts, "; "), true
}

func (n *checkNode) seeRefusals() (string, bool) {
	var named []string
	for i := range n.d.Findings {
		if f := &n.d.Findings[i]; f.Rule == "library_refuses" {
			named = append(named, printable(f.Seen))
		}
	}
	if len(named) > 0 {
		return checkSome(named, 2), true
	}
	return "by --libraries and what running jobs have loaded: none", true
}

// libraryLines is a line for each generation of a library's rules.
func (n *checkNode) libraryLines() []CheckLine {
	var lines []CheckLine
	for i := range diagnosis.Generations {
		g := &diagnosis.Generations[i]
		line := CheckLine{
			ID: "library/" + g.Library + "/" + g.Rule, Title: strings.ToUpper(g.Library) + " " + g.Versions, Status: CheckInfo, Rules: []CheckRule{},
		}
		uses, asked := 0, 0
		var reasons []string
		for j := range n.d.Choices {
			choice := &n.d.Choices[j]
			if choice.Library != g.Library || choice.Rule != g.Rule {
				continue
			}
			asked++
			if choice.Uses {
				uses++
			} else {
				reasons = append(reasons, choice.Reason)
			}
		}
		switch {
		case !slices.ContainsFunc(n.d.Paths, func(p diagnosis.Path) bool { return p.Expected }):
			line.Seen = "there is no expected pair"
		case asked == 0:
			line.Seen, line.Status = "whether it would use GPUDirect RDMA is not known of any expected pair", CheckNotJudged
		default:
			line.Seen = fmt.Sprintf("would use GPUDirect RDMA on %d of %s", uses, checkPlural(asked, "expected pair"))
			if len(reasons) > 0 {
				line.Seen += "; else: " + checkTally(reasons)
			}
		}
		lines = append(lines, line)
	}
	return lines
}

func (n *checkNode) seeJobs() (string, bool) {
	reading := n.s.ProcessState()
	switch {
	case n.s.Process == nil:
		return "their variables and limits are not read (--collector.process reads them)", false
	case reading == nil || !reading.Visible.Value || !reading.Joined:
		return "which processes use GPUs and RDMA devices is not seen", false
	case len(reading.Jobs) == 0:
		return "no process uses a GPU and an RDMA device", true
	}
	var loaded []string
	for i := range reading.Jobs {
		job := &reading.Jobs[i]
		text := "with a library that is not known"
		if job.NCCL.Known && job.NCCL.Value != "" {
			text = "with NCCL " + job.NCCL.Value
		} else if job.UCX.Value {
			text = "with UCX"
		}
		loaded = append(loaded, text)
	}
	return fmt.Sprintf("processes that use a GPU and an RDMA device: %d, %s", len(reading.Jobs)+reading.Omitted, checkTally(loaded)), true
}

// checkLiveTexts say what was seen of a NIC's use.
var checkLiveTexts = map[diagnosis.Live]string{
	diagnosis.LiveInUse: "in use with GPUDirect RDMA", diagnosis.LiveSuspect: "in use, it seems through host memory",
	diagnosis.LiveIdle: "without a GPU job", diagnosis.LiveCannotTell: "cannot be told",
}

func (n *checkNode) seeLive() (string, bool) {
	if len(n.d.Live) == 0 {
		return "no compute device to look at", true
	}
	var texts []string
	known := false
	why := ""
	for i := range n.d.Live {
		live := &n.d.Live[i]
		texts = append(texts, checkLiveTexts[live.Live])
		if live.Live != diagnosis.LiveCannotTell {
			known = true
		} else if why == "" && len(live.Reasons) > 0 {
			why = live.Reasons[0]
		}
	}
	seen := "compute devices: " + checkTally(texts)
	if why != "" {
		seen += " (" + why + ")"
	}
	return seen, known
}
