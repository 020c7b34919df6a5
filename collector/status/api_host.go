package status

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/host"
	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/process"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/driver"
)

// driver is the state of the driver, nil if it was not read and NVML was not asked.
func (b *builder) driver() *DocDriver {
	reading := b.s.DriverState()
	if reading == nil && b.s.GPU == nil {
		return nil
	}
	d := &DocDriver{Peermem: []DocModule{}, Clients: []DocClient{}, Attributes: []DocAttribute{}}
	if reading != nil {
		d.addFiles(reading)
	}
	if nvml := b.s.NVML(); nvml != nil {
		d.NVML, d.NVMLError = some(string(nvml.State)), message(nvml.Err)
	}
	if stuck, call := b.s.NVMLStuck(); stuck > 0 {
		d.NVMLStuck = &DocStuck{Call: call.Name, GPU: some(call.GPUAddress), Seconds: stuck.Seconds()}
	}
	if ledger := b.s.ProbeLedger(); ledger != nil {
		for _, address := range slices.Sorted(maps.Keys(ledger.GPUs)) {
			g := ledger.GPUs[address]
			d.Attributes = append(d.Attributes, DocAttribute{GPU: address, GPUDirectRDMA: g.GPUDirectRDMA, DMABuf: g.DMABuf})
		}
	}
	return d
}

// addFiles adds what the driver's files say.
func (d *DocDriver) addFiles(r *driver.Reading) {
	d.Kernel, d.Loaded, d.Version, d.Flavor = known(r.Kernel), known(r.Loaded), known(r.Version), some(string(r.Flavor))
	d.Lockdown, d.Mismatch = known(r.Lockdown), known(r.LibraryMismatch())
	if r.Library.Known {
		d.LibraryVersion, d.LibraryPath = some(r.Library.Value.Version), some(r.Library.Value.Path)
	}
	if r.RDMACore.Known {
		d.RDMAStack = some(string(r.RDMACore.Value.Origin))
	}
	d.TopologyAny = pointer(r.TopologyOverride.Known, r.TopologyOverride.Value != 0)
	for i := range r.Peermem {
		m := &r.Peermem[i]
		d.Peermem = append(d.Peermem, DocModule{
			Name: m.Name, Loaded: known(m.Loaded()), Version: known(m.Version), OnDisk: known(m.OnDisk), Hooked: known(m.Hooked), References: known(m.References),
		})
	}
	for i := range r.MemoryPeers.Clients {
		c := &r.MemoryPeers.Clients[i]
		d.Clients = append(d.Clients, DocClient{Name: c.Name, Version: known(c.Version), Regions: known(c.LiveMRs())})
	}
	d.DMABufsRead, d.DMABufsError = moment(r.DMABufsRead), message(r.DMABufsErr)
	if r.DMABufs.Known {
		bytes := uint64(0)
		for i := range r.DMABufs.Value {
			bytes += r.DMABufs.Value[i].Bytes
		}
		d.DMABufs, d.DMABufBytes = pointer(true, len(r.DMABufs.Value)), &bytes
	}
}

// host is how the host is wired, nil if it was not read.
func (b *builder) host() *DocHost {
	h := b.s.HostState()
	if h == nil {
		return nil
	}
	doc := &DocHost{Vendor: known(h.Platform.Vendor), Product: known(h.Platform.Product), SharedRDMA: known(h.Context.SharedRDMA), Nodes: []DocNode{}}
	if b.s.Affinity != nil && b.s.Affinity.Listing.IOMMU.Known {
		doc.IOMMU = list(b.s.Affinity.Listing.IOMMU.Value)
	}
	for i := range h.Nodes {
		n := &h.Nodes[i]
		doc.Nodes = append(doc.Nodes, DocNode{Name: n.Name, Device: some(n.Device), Present: n.Present, Usable: known(n.Usable)})
	}
	if h.Daemons.Known {
		doc.Daemons = []DocDaemon{}
		for i := range h.Daemons.Value {
			d := &h.Daemons.Value[i]
			doc.Daemons = append(doc.Daemons, DocDaemon{Name: d.Name, PID: d.PID, Memlock: memlock(d.Soft)})
		}
	}
	if h.Interfaces.Known {
		doc.Interfaces = []DocInterface{}
		for i := range h.Interfaces.Value {
			n := &h.Interfaces.Value[i]
			doc.Interfaces = append(doc.Interfaces, DocInterface{Name: n.Name, Up: known(n.Up), IPv4: n.IPv4, IPv6: n.IPv6})
		}
	}
	return doc
}

// memlock is a limit of locked memory in words, nil if it is not known.
func memlock(limit sysread.Maybe[uint64]) *string {
	switch {
	case !limit.Known:
		return nil
	case limit.Value == math.MaxUint64:
		return pointer(true, "unlimited")
	}
	return pointer(true, sizeText(limit.Value))
}

// sizeText is a number of bytes as people write it.
func sizeText(bytes uint64) string {
	const kilo, mega, giga = 1 << 10, 1 << 20, 1 << 30
	switch {
	case bytes >= giga:
		return fmt.Sprintf("%.1f GiB", float64(bytes)/giga)
	case bytes >= mega:
		return fmt.Sprintf("%.1f MiB", float64(bytes)/mega)
	case bytes >= kilo:
		return fmt.Sprintf("%.1f KiB", float64(bytes)/kilo)
	}
	return fmt.Sprintf("%d B", bytes)
}

// processes are the processes that use GPUs and RDMA devices, nil if they were not
// read.
func (b *builder) processes() *DocProcesses {
	if b.s.Process == nil {
		return nil
	}
	doc := &DocProcesses{Error: message(b.s.Process.Err), Jobs: []DocJob{}}
	reading := b.s.ProcessState()
	if reading == nil {
		return doc
	}
	doc.Visible, doc.Joined, doc.Omitted = known(reading.Visible), reading.Joined, reading.Omitted
	for i := range reading.Jobs {
		doc.Jobs = append(doc.Jobs, b.job(&reading.Jobs[i]))
	}
	return doc
}

func (b *builder) job(j *process.Job) DocJob {
	job := DocJob{PID: j.PID, GPUs: list(j.GPUs), Devices: list(j.Devices), NCCL: known(j.NCCL), UCX: known(j.UCX), Memlock: memlock(j.Memlock), Notes: []DocJobNote{}}
	if j.Variables.Known {
		job.Variables = []DocVariable{}
		for _, name := range slices.Sorted(maps.Keys(j.Variables.Value)) {
			value := j.Variables.Value[name]
			job.Variables = append(job.Variables, DocVariable{Name: name, Value: pointer(value != process.Withheld, value)})
		}
		for _, name := range j.Others {
			job.Variables = append(job.Variables, DocVariable{Name: name})
		}
	}
	for _, note := range diagnosis.JobOf(b.s, j) {
		job.Notes = append(job.Notes, DocJobNote{Variable: note.Variable, Effect: note.Effect, Text: note.Text})
	}
	return job
}

// kernelLog is what the kernel's log says, nil if it was not read.
func (b *builder) kernelLog() *DocKernelLog {
	r := b.s.KernelLogState()
	if r == nil {
		return nil
	}
	doc := &DocKernelLog{Error: message(r.Err), Since: moment(r.Since), Oldest: moment(r.Oldest), Lost: known(r.Lost), Counts: []DocPattern{}, Recent: []DocEvent{}}
	for i := range kmsg.Rows {
		row := &kmsg.Rows[i]
		last, seen := r.Last[row.Pattern]
		if count := r.Counts[row.Pattern]; count > 0 || seen {
			doc.Counts = append(doc.Counts, DocPattern{Pattern: string(row.Pattern), Means: row.Means, Count: count, Last: moment(last.Time)})
		}
	}
	for _, e := range slices.Backward(r.Recent) {
		doc.Recent = append(doc.Recent, DocEvent{Time: e.Time.UTC(), Pattern: string(e.Pattern), Address: some(e.Address), Code: pointer(e.Code != 0, e.Code), Text: e.Text})
	}
	return doc
}

// capabilityNames are the capabilities that matter here, by their bits
// (linux/capability.h).
var capabilityNames = []struct {
	bit  uint
	name string
}{
	{12, "CAP_NET_ADMIN"}, {14, "CAP_IPC_LOCK"}, {19, "CAP_SYS_PTRACE"}, {21, "CAP_SYS_ADMIN"}, {34, "CAP_SYSLOG"},
}

// context is where the exporter runs, and what is missing there.
func (b *builder) context() DocContext {
	doc := DocContext{Capabilities: []string{}, Missing: b.missing()}
	h := b.s.HostState()
	if h == nil {
		doc.Sentence = "Where the exporter runs is not known."
		return doc
	}
	c := &h.Context
	doc.Root, doc.Container, doc.HostPID, doc.HostNetwork, doc.Memlock = known(c.Root), known(c.Container), known(c.HostPID), known(c.HostNetwork), memlock(c.Memlock)
	for _, capability := range capabilityNames {
		if c.Capabilities.Known && c.Capabilities.Value>>capability.bit&1 == 1 {
			doc.Capabilities = append(doc.Capabilities, capability.name)
		}
	}
	doc.Sentence = contextSentence(c)
	return doc
}

// contextSentence says where the exporter runs.
func contextSentence(c *host.Context) string {
	where := "Measured on the host itself or in a container that shares its files"
	switch {
	case c.Container.Known && c.Container.Value:
		where = "Measured in a container"
	case c.Container.Known:
		where = "Measured on the host itself"
	}
	const sysAdmin = 21
	switch admin := c.Capabilities.Known && c.Capabilities.Value>>sysAdmin&1 == 1; {
	case c.Root.Value && admin:
		where += ", as root with CAP_SYS_ADMIN (privileged)"
	case c.Root.Value && c.Capabilities.Known:
		where += ", as root without CAP_SYS_ADMIN (not privileged)"
	case c.Root.Value:
		where += ", as root"
	case c.Root.Known:
		where += ", as a user other than root"
	}
	var apart []string
	if c.HostPID.Known && !c.HostPID.Value {
		apart = append(apart, "PID")
	}
	if c.HostNetwork.Known && !c.HostNetwork.Value {
		apart = append(apart, "network")
	}
	if len(apart) > 0 {
		where += ", without the host's " + strings.Join(apart, " and ") + " namespace"
	}
	return where + "."
}

// missing is evidence that could not be had, each kind once.
func (b *builder) missing() []DocMissing {
	missing := []DocMissing{}
	add := func(what, rule string) {
		at := slices.IndexFunc(missing, func(m DocMissing) bool { return m.What == what })
		if at < 0 {
			at, missing = len(missing), append(missing, DocMissing{What: what, Rules: []string{}})
		}
		if rule != "" && !slices.Contains(missing[at].Rules, rule) {
			missing[at].Rules = append(missing[at].Rules, rule)
		}
	}
	for i := range b.d.Rules {
		for _, what := range b.d.Rules[i].Missing {
			add(what, b.d.Rules[i].Rule)
		}
	}
	if d := b.doc.Driver; d != nil && d.DMABufsError != nil {
		add(fmt.Sprintf("dma-bufs of GPU memory are not seen (%s): it needs root and debugfs", *d.DMABufsError), "")
	}
	return missing
}

// expectations are what the node should have.
func (b *builder) expectations() DocExpectations {
	e := &b.d.Expected
	doc := DocExpectations{Profile: some(e.Name), Source: e.Source, Fields: []DocExpected{}}
	if doc.Source == "" {
		doc.Source = "none"
	}
	values := b.expectedValues()
	for _, field := range slices.Sorted(maps.Keys(e.From)) {
		doc.Fields = append(doc.Fields, DocExpected{Field: field, Source: e.From[field], Value: values[string(field)]})
	}
	return doc
}

// expectedValues are the fields of the expectation in words.
func (b *builder) expectedValues() map[string]string {
	e := &b.d.Expected
	values := map[string]string{}
	set := func(field string, known bool, text string) {
		if known {
			values[field] = text
		}
	}
	set("gpus", e.GPUs.Known, plural(e.GPUs.Value, "GPU"))
	set("devices", e.Devices.Known, plural(e.Devices.Value, "compute device"))
	set("nvlinks", e.NVLinks.Known, fmt.Sprintf("%d active links of each GPU", e.NVLinks.Value))
	set("direct_pairs", e.DirectPairs.Known, plural(e.DirectPairs.Value, "pair")+" as near as PIX, PXB or P2C")
	set("port_rate", e.PortRate.Known, gigabits(float64(e.PortRate.Value))+" of every compute port")
	set("loopback", e.Loopback.Known, fmt.Sprintf("at least %s on path host", gigabytes(&e.Loopback.Value)))
	var ports []string
	for port, rate := range e.Ports {
		text := fmt.Sprintf("%s/%d", port.Device, port.Number)
		if rate.Known {
			text += " at " + gigabits(float64(rate.Value))
		}
		ports = append(ports, text)
	}
	slices.SortFunc(ports, natural)
	set("ports", len(ports) > 0, plural(len(ports), "port")+" ACTIVE: "+strings.Join(ports, ", "))
	return values
}

// gigabits is a rate as ports are sold by.
func gigabits(bytesPerSecond float64) string { return fmt.Sprintf("%g Gb/s", bytesPerSecond*8/1e9) }
