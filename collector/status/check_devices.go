package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
)

// What is said where a part of the Snapshot is missing.
const (
	checkNoAnswer  = "NVML does not answer"
	checkNoGPU     = "no NVIDIA GPU"
	checkNoDevices = "no RDMA device"
)

func (n *checkNode) seeGPUs() (string, bool) {
	if n.s.GPU == nil && n.s.Affinity == nil {
		return n.notRead(snapshot.CollectorGPU, false), false
	}
	if n.s.GPU == nil && n.s.Affinity.Err != nil {
		return "the PCI bus cannot be listed: " + n.s.Affinity.Err.Error(), false
	}
	seen := strings.TrimSuffix(strings.Join(strings.Fields(GPUSentence(n.s)), " "), ".")
	if models := n.models(); models != "" {
		seen += "; " + models
	}
	return seen + n.expected(profile.FieldGPUs, n.d.Expected.GPUs), true
}

// models names the GPUs' models.
func (n *checkNode) models() string {
	var names []string
	for _, g := range n.gpus.All {
		if g.NVML != nil && g.NVML.Name != "" {
			names = append(names, g.NVML.Name)
		}
	}
	return checkTally(names)
}

// expected says how many there should be, "" if nobody says.
func (n *checkNode) expected(field profile.Field, want sysread.Maybe[int]) string {
	if !want.Known {
		return ""
	}
	return fmt.Sprintf("; expected: %d (%s)", want.Value, cmp.Or(n.d.Expected.From[field], n.d.Expected.Source))
}

// answering are the GPUs that NVML answers for.
func (n *checkNode) answering() []*gpu.GPU {
	var all []*gpu.GPU
	for _, g := range n.gpus.All {
		if g.NVML != nil && !g.NVML.Lost {
			all = append(all, g.NVML)
		}
	}
	return all
}

// ofGPUs is what see says of each answering GPU, tallied.
func (n *checkNode) ofGPUs(see func(*gpu.GPU) (string, bool)) (string, bool) {
	gpus := n.answering()
	if len(gpus) == 0 {
		if len(n.gpus.All) == 0 {
			return checkNoGPU, true
		}
		return checkNoAnswer, false
	}
	texts := []string{}
	for _, g := range gpus {
		text, known := see(g)
		if !known {
			text = "not known"
		}
		texts = append(texts, text)
	}
	all := len(slices.Compact(slices.Clone(texts))) == 1
	if all {
		return texts[0] + fmt.Sprintf(" (%s)", checkPlural(len(gpus), "GPU")), texts[0] != "not known"
	}
	return checkTally(texts), true
}

// checkComputeModes are nvmlComputeMode_t.
var checkComputeModes = []string{"default", "exclusive thread", "prohibited", "exclusive process"}

func (n *checkNode) seeModes() (string, bool) {
	return n.ofGPUs(func(g *gpu.GPU) (string, bool) {
		var parts []string
		if mode := g.Modes.Compute; mode.Known {
			parts = append(parts, "compute mode "+checkName(mode.Value, checkComputeModes))
		}
		for _, mode := range []struct {
			name string
			on   sysread.Maybe[bool]
		}{{"MIG", g.Modes.MIG}, {"persistence", g.Modes.Persistence}} {
			if mode.on.Known {
				parts = append(parts, mode.name+" "+checkOnOff(mode.on.Value))
			}
		}
		return strings.Join(parts, ", "), len(parts) > 0
	})
}

func checkOnOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// seeBAR1 tells the window through which a NIC reaches GPU memory: with one that is
// smaller than the memory large registrations fail.
func (n *checkNode) seeBAR1() (string, bool) {
	return n.ofGPUs(func(g *gpu.GPU) (string, bool) {
		if !g.BAR1.Total.Known {
			return "", false
		}
		text := checkBytes(g.BAR1.Total.Value)
		if g.FB.Total.Known {
			text += " for " + checkBytes(g.FB.Total.Value) + " of memory"
			if g.BAR1.Total.Value < g.FB.Total.Value/2 {
				text += ": registrations of more than the window fail"
			}
		}
		return text, true
	})
}

// checkBytes is a size in the unit that fits.
func checkBytes(bytes uint64) string {
	switch {
	case bytes == 1<<64-1:
		return "unlimited"
	case bytes >= 1<<30:
		return fmt.Sprintf("%.4g GiB", float64(bytes)/(1<<30))
	case bytes >= 1<<20:
		return fmt.Sprintf("%.4g MiB", float64(bytes)/(1<<20))
	default:
		return fmt.Sprintf("%d KiB", bytes>>10)
	}
}

// devices are the RDMA devices that answered, by name.
func (n *checkNode) devices() []*rdma.Device {
	var all []*rdma.Device
	if n.s.RDMA != nil {
		for i := range n.s.RDMA.Units {
			if data := n.s.RDMA.Units[i].Data; data != nil {
				all = append(all, data)
			}
		}
	}
	return all
}

func (n *checkNode) seeNICs() (string, bool) {
	part := n.s.RDMA
	switch {
	case part == nil:
		return n.notRead(snapshot.CollectorRDMA, false), false
	case part.Err != nil:
		return "the RDMA devices cannot be listed: " + part.Err.Error(), false
	case len(part.Units) == 0:
		return checkNoDevices + n.expected(profile.FieldDevices, n.d.Expected.Devices), true
	}
	var kinds, stuck []string
	for i := range part.Units {
		unit := &part.Units[i]
		if unit.Data == nil {
			stuck = append(stuck, unit.Name)
			continue
		}
		kind := strings.TrimSpace(unit.Data.Driver + " " + unit.Data.HCAType)
		if unit.Data.Firmware != "" {
			kind += " firmware " + unit.Data.Firmware
		}
		kinds = append(kinds, cmp.Or(kind, "of an unnamed driver"))
	}
	seen := checkPlural(len(part.Units), "device") + ": " + cmp.Or(checkTally(kinds), "none answers")
	if len(stuck) > 0 {
		seen += "; no answer from " + checkSome(stuck, 8)
	}
	compute := 0
	for _, role := range n.roles() {
		if role == checkCompute {
			compute++
		}
	}
	return seen + fmt.Sprintf("; %d of role compute", compute) + n.expected(profile.FieldDevices, n.d.Expected.Devices), true
}

// checkCompute is the role of devices that jobs use together with GPUs.
const checkCompute = "compute"

// roles are the roles of the RDMA devices; empty if they are not known.
func (n *checkNode) roles() map[string]string {
	if n.s.Affinity == nil || n.s.Affinity.Err != nil {
		return nil
	}
	return n.s.Affinity.Listing.Roles
}

func (n *checkNode) seeProfile() (string, bool) {
	e := &n.d.Expected
	var parts []string
	for _, part := range []struct {
		text  string
		field profile.Field
		want  sysread.Maybe[int]
	}{{"GPUs", profile.FieldGPUs, e.GPUs}, {"compute devices", profile.FieldDevices, e.Devices}, {"near pairs", profile.FieldDirectPairs, e.DirectPairs}, {"NVLinks a GPU", profile.FieldNVLinks, e.NVLinks}} {
		if part.want.Known {
			parts = append(parts, fmt.Sprintf("%d %s", part.want.Value, part.text))
		}
	}
	if e.PortRate.Known {
		parts = append(parts, "ports of "+checkBits(float64(e.PortRate.Value)))
	}
	if len(e.Ports) > 0 {
		parts = append(parts, fmt.Sprintf("%s ACTIVE", checkPlural(len(e.Ports), "named port")))
	}
	if len(parts) == 0 {
		return "nothing is expected of this node: no profile fits it, and none was given or learned (--profile)", true
	}
	from := cmp.Or(e.Name, string(e.Source))
	if e.Name != "" {
		from = fmt.Sprintf("%s (%s)", e.Name, e.Source)
	}
	return strings.Join(parts, ", ") + ", by " + from, true
}

func (n *checkNode) seeDriver() (string, bool) {
	if n.driver == nil {
		return n.notRead(snapshot.CollectorDriver, n.s.Driver != nil), false
	}
	if !n.driver.Loaded.Known {
		return "whether it is loaded cannot be read", false
	}
	if !n.driver.Loaded.Value {
		return "not loaded", true
	}
	seen := "loaded, version " + cmp.Or(n.driver.Version.Value, "not known")
	if n.driver.Flavor != driver.FlavorUnknown {
		seen += ", " + string(n.driver.Flavor) + " kernel modules"
	}
	if n.driver.Library.Known {
		seen += "; libraries " + n.driver.Library.Value.Version
	} else {
		seen += "; no libraries found"
	}
	if reading := n.s.NVML(); reading != nil {
		seen += "; NVML " + string(reading.State)
	}
	return seen, true
}

func (n *checkNode) seePeermem() (string, bool) {
	if n.driver == nil {
		return n.notRead(snapshot.CollectorDriver, n.s.Driver != nil), false
	}
	var parts []string
	known := true
	for i := range n.driver.Peermem {
		m := &n.driver.Peermem[i]
		loaded := m.Loaded()
		known = known && loaded.Known
		text := m.Name + " " + cmp.Or(string(m.State), "of unknown state")
		if loaded.Value {
			text = m.Name + " loaded"
			if m.Version.Known {
				text += ", version " + m.Version.Value
			}
			if m.References.Known {
				text += fmt.Sprintf(", %d references", m.References.Value)
			}
		} else if m.State == driver.StateAbsent {
			text = m.Name + " not loaded" + checkOnDisk(m.OnDisk)
		}
		parts = append(parts, text)
	}
	peers := &n.driver.MemoryPeers
	if peers.Present.Known && peers.Present.Value {
		var clients []string
		for i := range peers.Clients {
			clients = append(clients, peers.Clients[i].Name)
		}
		parts = append(parts, "memory_peers: "+cmp.Or(checkSome(clients, 4), "no client"))
	} else if peers.Present.Known {
		parts = append(parts, "this RDMA stack has no memory_peers")
	}
	return strings.Join(parts, "; "), known
}

func checkOnDisk(on sysread.Maybe[bool]) string {
	switch {
	case !on.Known:
		return ""
	case on.Value:
		return " (installed)"
	default:
		return " (not installed for this kernel)"
	}
}

// seeDMABuf tells both sides of dma-buf, as far as measurements found them.
func (n *checkNode) seeDMABuf() (string, bool) {
	if len(n.gpus.All) == 0 {
		return checkNoGPU, true
	}
	var parts []string
	var exports, gpus, registers, nics int
	if ledger := n.s.ProbeLedger(); ledger != nil {
		for _, g := range n.gpus.All {
			if attributes, found := ledger.GPUs[g.Address]; found {
				gpus++
				exports += checkOne(attributes.DMABuf)
			}
		}
	}
	for _, result := range n.results() {
		if test := result.Result.NICDMABuf; test.Known {
			nics++
			registers += checkOne(test.Value)
		}
	}
	if gpus > 0 {
		parts = append(parts, fmt.Sprintf("%d of %s export it", exports, checkPlural(gpus, "GPU")))
	}
	if nics > 0 {
		parts = append(parts, fmt.Sprintf("NICs register it in %d of %s", registers, checkPlural(nics, "measured pair")))
	}
	if n.driver != nil && n.driver.DMABufs.Known {
		parts = append(parts, checkPlural(len(n.driver.DMABufs.Value), "buffer")+" exported now")
	}
	if n.driver != nil && n.driver.Flavor == driver.FlavorProprietary {
		parts = append(parts, "the proprietary kernel modules do not export it in practice")
	}
	if len(parts) == 0 {
		return "not known before a measurement has tried it (--probe)", false
	}
	return strings.Join(parts, "; "), true
}

func checkOne(is bool) int {
	if is {
		return 1
	}
	return 0
}

func checkYes(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}

func (n *checkNode) seeCore() (string, bool) {
	if n.driver == nil {
		return n.notRead(snapshot.CollectorDriver, n.s.Driver != nil), false
	}
	if !n.driver.RDMACore.Known {
		return "ib_core is not loaded, or cannot be read", len(n.devices()) == 0
	}
	core := &n.driver.RDMACore.Value
	seen := "ib_core of origin " + string(core.Origin)
	if core.Version.Known {
		seen += ", version " + core.Version.Value
	}
	return seen, true
}

func (n *checkNode) seeKernel() (string, bool) {
	if n.driver == nil || !n.driver.Kernel.Known {
		return "its release cannot be read", false
	}
	seen := n.driver.Kernel.Value
	if n.driver.Lockdown.Known {
		seen += ", lockdown " + n.driver.Lockdown.Value
	}
	return seen, true
}

// seeKernelLog says what the kernel's log has of interconnects.
func (n *checkNode) seeKernelLog() (string, bool) {
	log := n.s.KernelLogState()
	switch {
	case log == nil:
		return n.notRead(snapshot.CollectorKernelLog, n.s.KernelLog != nil), false
	case log.Err != nil:
		return fmt.Sprintf("cannot be read (%v): it needs /dev/kmsg and CAP_SYSLOG", log.Err), false
	case len(log.Last) == 0:
		return "nothing of interconnects since " + checkTime(log.Oldest), true
	}
	events := make([]kmsg.Event, 0, len(log.Last))
	for _, event := range log.Last {
		events = append(events, event)
	}
	slices.SortFunc(events, func(a, b kmsg.Event) int {
		return cmp.Or(b.Time.Compare(a.Time), cmp.Compare(a.Pattern, b.Pattern))
	})
	newest := &events[0]
	return fmt.Sprintf("lines of %s; the newest, %s ago: %s", checkPlural(len(events), "kind"), span(n.s.Taken.Sub(newest.Time)), printable(newest.Text)), true
}

func checkTime(at time.Time) string {
	if at.IsZero() {
		return "boot"
	}
	return at.UTC().Format("2006-01-02 15:04 UTC")
}

// checkPortStates are enum ib_port_state.
var checkPortStates = []string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}

const checkPortActive = 4

// seePorts counts the states of all ports.
func (n *checkNode) seePorts() (string, bool) {
	if n.s.RDMA == nil || n.s.RDMA.Err != nil {
		return n.notRead(snapshot.CollectorRDMA, n.s.RDMA != nil), false
	}
	var states []string
	for _, d := range n.devices() {
		for i := range d.Ports {
			states = append(states, checkState(&d.Ports[i]))
		}
	}
	if len(states) == 0 {
		return "no port", true
	}
	return checkTally(states), true
}

func checkState(p *rdma.Port) string {
	if !p.State.Known {
		return "of unknown state"
	}
	state := checkName(p.State.Value, checkPortStates)
	if state == "INIT" && p.LinkLayer == "InfiniBand" {
		state += " (link up, no subnet manager)"
	}
	return state
}

// checkMostPorts bounds the lines about ports.
const checkMostPorts = 64

// portLines is a line for each port of a compute device, or that a finding is about;
// of all where no device is known to be of that role.
func (n *checkNode) portLines() []CheckLine {
	roles := n.roles()
	anyCompute := slices.Contains(checkValues(roles), checkCompute)
	var lines []CheckLine
	for _, d := range n.devices() {
		for i := range d.Ports {
			p := &d.Ports[i]
			line := n.portLine(d, p)
			wanted := !anyCompute || roles[d.Name] == checkCompute || line.Status == CheckWarning || line.Status == CheckCritical
			if wanted && !d.Plane() && len(lines) < checkMostPorts {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

func checkValues(m map[string]string) []string {
	var all []string
	for _, value := range m {
		all = append(all, value)
	}
	return all
}

func (n *checkNode) portLine(d *rdma.Device, p *rdma.Port) CheckLine {
	line := CheckLine{
		ID: fmt.Sprintf("port/%s/%d", printable(d.Name), p.Number), Title: fmt.Sprintf("%s port %d", printable(d.Name), p.Number),
		Status: CheckInfo, Rules: []CheckRule{}, Seen: checkPort(p),
	}
	switch {
	case !p.State.Known:
		line.Status = CheckNotJudged
	case p.State.Value == checkPortActive:
		line.Status = CheckOK
	}
	n.mark(&line, func(f *diagnosis.Finding) bool {
		return f.Subject.Device == d.Name && f.Subject.GPU == "" && (f.Subject.Port == 0 || f.Subject.Port == p.Number)
	})
	return line
}

func checkPort(p *rdma.Port) string {
	parts := []string{checkState(p)}
	if p.LinkLayer != "" {
		parts = append(parts, p.LinkLayer)
	}
	if p.Rate.Known && p.State.Value == checkPortActive {
		rate := checkBits(float64(p.Rate.Value.BytesPerSecond))
		if p.Rate.Value.Lanes > 0 {
			rate += fmt.Sprintf(" (%dX %s)", p.Rate.Value.Lanes, p.Rate.Value.Speed)
		}
		parts = append(parts, rate)
	}
	if p.LinkLayer == "InfiniBand" && p.LID.Known {
		parts = append(parts, fmt.Sprintf("LID %d", p.LID.Value))
	}
	if p.Netdev != "" {
		parts = append(parts, p.Netdev)
	}
	return strings.Join(parts, ", ")
}

// checkBits is a rate in bytes per second as networks name it.
func checkBits(bytesPerSecond float64) string { return fmt.Sprintf("%.4g Gb/s", bytesPerSecond*8/1e9) }
