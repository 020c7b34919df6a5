package nccllog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// whyStaged says what the log has on why connections are staged, and what to do.
func (p *parser) whyStaged(r *Report) {
	before := len(r.Findings)
	incapable, capable := r.capability()
	refused := slices.DeleteFunc(slices.Clone(r.Refusals), func(f Refusal) bool { return !f.concerns(r.Rails) })
	switch {
	case len(incapable) > 0:
		hint := "load nvidia-peermem (modprobe nvidia-peermem), or use dma-buf: NCCL 2.13 and Linux 5.12 or later with the open NVIDIA driver"
		if !r.verbs() {
			hint = "whether these NICs have it depends on the type of machine: see the plugin's documentation"
		} else if r.olderThanMarker() {
			hint += "; NCCL before 2.23.4 does not see nvidia-peermem where /sys/kernel/mm/memory_peers is missing: update NCCL"
		}
		if r.verbs() && len(r.Plugins) > 0 {
			hint += "; the network plugin looks for it by itself and may be older than NCCL"
		}
		r.find(SeverityWarning, "no way to register GPU memory with "+some(incapable)+": NCCL says that GPU Direct RDMA is disabled there", hint)
	case len(refused) > 0:
		r.refused(refused)
	case len(capable) > 0 && !r.onlySends():
		r.find(SeverityWarning, "the NICs could use GPUDirect RDMA, but NCCL chose not to: usually GPU and NIC are farther apart than NCCL_NET_GDR_LEVEL allows (PXB, a common PCIe switch, unless set)",
			"compare gdr_exporter topo on that node; a virtual machine may hide the distance (NCCL_TOPO_FILE); try NCCL_NET_GDR_LEVEL=SYS and measure with gdr_exporter probe")
	}
	if r.onlySends() {
		r.find(SeverityWarning, "only sends are staged: the NIC writes GPU memory, but is not let to read it",
			"NCCL does so with NCCL_NET_GDR_READ=0, and with GPUs older than Ampere without NVLink")
	}
	if len(r.Findings) == before {
		r.find(SeverityWarning, "the log does not say why: it lacks the lines \"GPU Direct RDMA Enabled|Disabled for HCA\"",
			"run with NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV; gdr_exporter probe on the nodes measures what they can do")
	}
}

// refused reports pairs that are too far apart.
func (r *Report) refused(refused []Refusal) {
	var names []string
	for _, refusal := range refused {
		names = append(names, fmt.Sprintf("GPU %s and NIC %s on %s (%s)", refusal.GPU, refusal.Device, refusal.Host, refusal.Distance))
	}
	r.find(SeverityWarning, "NCCL finds these too far apart: "+some(names),
		"see gdr_exporter topo: bind the rank to a GPU next to its NIC, or allow the distance with NCCL_NET_GDR_LEVEL (PHB, SYS) and measure with gdr_exporter probe")
}

// capability lists the NICs that cannot register GPU memory, and those that can, of
// those that staged connections use; of all where none is known by name.
func (r *Report) capability() (incapable, capable []string) {
	used := set{}
	for i := range r.Rails {
		if r.Rails[i].Staged > 0 {
			used[r.Rails[i].Host+" "+r.Rails[i].Device] = true
		}
	}
	for i := range r.Devices {
		device := &r.Devices[i]
		switch {
		case device.Capable == nil || len(used) > 0 && !used[device.Host+" "+device.Name]:
		case *device.Capable:
			capable = append(capable, device.String())
		default:
			incapable = append(incapable, device.String())
		}
	}
	return incapable, capable
}

// String names a NIC.
func (d *Device) String() string {
	text := d.Name
	if d.Host != "" {
		text += " on " + d.Host
	}
	if d.NoModule {
		text += " (no module)"
	}
	return text
}

// onlySends says whether receives are all direct, and sends are not.
func (r *Report) onlySends() bool {
	sends, receives := false, false
	for i := range r.Rails {
		rail := &r.Rails[i]
		switch {
		case rail.Staged > 0 && rail.Direction != "send":
			return false
		case rail.Staged > 0:
			sends = true
		case rail.Direction == "receive" && rail.Direct > 0:
			receives = true
		}
	}
	return sends && receives
}

// some lists the first few of names.
func some(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// olderThanMarker says whether a version of NCCL is before 2.23.4, the first that
// takes /sys/module/nvidia_peermem as proof.
func (r *Report) olderThanMarker() bool {
	return slices.ContainsFunc(r.NCCLVersions, func(t Tally) bool {
		var major, minor, patch int
		if n, _ := fmt.Sscanf(t.Value, "%d.%d.%d", &major, &minor, &patch); n < 2 {
			return false
		}
		return major < 2 || major == 2 && (minor < 23 || minor == 23 && patch < 4)
	})
}

// whySocket says what the log has on why TCP is used.
func (p *parser) whySocket(r *Report) {
	severity := SeverityWarning
	if len(r.Devices) > 0 && r.Connections.Direct == 0 {
		severity = SeverityCritical
	}
	switch {
	case len(r.Devices) > 0:
		var names []string
		for i := range r.Devices {
			names = append(names, r.Devices[i].String())
		}
		r.find(severity, "TCP is used although NCCL sees RDMA devices: "+some(names), "look for NCCL_NET, NCCL_IB_DISABLE and a plugin that failed to start, in the lines before \"Using network Socket\"")
	case p.noVerbs:
		r.find(severity, "libibverbs could not be opened", "install rdma-core's libibverbs in the job's image")
	case p.noIB:
		r.find(severity, "NCCL finds no InfiniBand or RoCE device", "in a container: give it /dev/infiniband; else look for ports that are down (rdma link), and at NCCL_IB_HCA")
	default:
		r.find(severity, "the log does not say why TCP is used", "run with NCCL_DEBUG_SUBSYS=INIT,NET,ENV")
	}
}

// failures reports errors, once by kind and code.
func (r *Report) failures() {
	seen := set{}
	userBuffers := slices.ContainsFunc(r.Failures, func(f Failure) bool { return f.Kind == FailureUserBuffer })
	for i := range r.Failures {
		f := &r.Failures[i]
		key := string(f.Kind) + f.Code
		if seen[key] {
			continue
		}
		seen[key] = true
		severity := SeverityWarning
		// Where a user's buffer fails to register NCCL goes on without; other failures
		// of these kinds end the job.
		if f.Kind == FailureCompletion && !f.consequence || f.Kind == FailureRegistration && !userBuffers {
			severity = SeverityCritical
		}
		r.find(severity, f.String()+": "+f.Meaning, f.Hint)
	}
}

// String says what failed where.
func (f *Failure) String() string {
	what := map[FailureKind]string{
		FailureCompletion: "completion with error", FailureRegistration: "registration failed", FailureUserBuffer: "user buffer not registered",
		FailureVerb: "call failed", FailureTimeout: "timeout",
	}[f.Kind]
	for _, part := range []string{f.Code, f.Subject} {
		if part != "" {
			what += " " + part
		}
	}
	if f.Vendor != "" {
		what += " (vendor error " + f.Vendor + ")"
	}
	if f.Host != "" {
		what += " on " + f.Host
	}
	return what
}

// settings reports variables that do nothing or too much.
func (r *Report) settings() {
	for i := range r.Settings {
		s := &r.Settings[i]
		switch s.Effect {
		case EffectNothing:
			r.find(SeverityWarning, fmt.Sprintf("%s=%s does nothing: %s", s.Name, s.Value, s.Note), "")
		case EffectDisables:
			r.find(SeverityWarning, fmt.Sprintf("%s=%s: %s", s.Name, s.Value, s.Note), "")
		case EffectChanges:
			severity := SeverityInfo
			if r.Verdict == VerdictStaged && (strings.Contains(s.Name, "GDR") || strings.Contains(s.Name, "DMABUF")) {
				severity = SeverityWarning
			}
			r.find(severity, fmt.Sprintf("%s=%s: %s", s.Name, s.Value, s.Note), "")
		}
	}
}

func (r *Report) versions() {
	if len(r.NCCLVersions) > 1 {
		var names []string
		for _, version := range r.NCCLVersions {
			names = append(names, version.Value)
		}
		r.find(SeverityWarning, "several versions of NCCL: "+some(names), "all ranks of a job must load the same libnccl.so: images differ, or the log has several jobs")
	}
	if len(r.DriverVersions) > 1 {
		r.find(SeverityInfo, "the nodes have several versions of the CUDA driver", "")
	}
}

// completeness reports what the log lacks.
func (r *Report) completeness() {
	s := &r.Summary
	if s.Begun > 0 && s.Completed < s.Begun {
		r.find(SeverityInfo, fmt.Sprintf("%d of %d ranks did not finish joining their communicator (Init COMPLETE)", s.Begun-s.Completed, s.Begun), "the log ends early, or the job hangs at its start")
	}
	if r.Input.Damage != "" {
		r.find(SeverityInfo, "the file could not be read to its end: "+r.Input.Damage, "what came before is judged")
	}
	if r.Connections.Unclear > 0 && r.Verdict != VerdictUnknown {
		r.find(SeverityInfo, fmt.Sprintf("%d connections are not judged: their lines are cut off, or there were too many", r.Connections.Unclear), "NCCL_DEBUG_FILE=nccl.%h.%p gives each process a file of its own")
	}
	for _, name := range slices.Sorted(maps.Keys(r.LeftOut)) {
		r.find(SeverityInfo, fmt.Sprintf("%s: %d entries left out, too many for the table", name, r.LeftOut[name]), "")
	}
}
