package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/snapshot"
)

// sections are the parts of the page below the matrix, without those that have
// nothing to show.
func sections(doc *Document, s *snapshot.Snapshot) []pageSection {
	all := []pageSection{
		pairSection(doc), peerSection(s), liveSection(doc), librarySection(doc), portSection(doc), gpuSection(doc), driverSection(doc), hostSection(doc),
		processSection(doc), kernelLogSection(doc), expectationSection(doc), notJudgedSection(doc), readErrorSection(doc), partSection(doc),
	}
	return slices.DeleteFunc(all, func(s pageSection) bool { return s.empty() })
}

// portSection shows the RDMA devices and their ports.
func portSection(doc *Document) pageSection {
	s := pageSection{ID: "ports", Title: "RDMA ports"}
	g := &grid{ID: "port-table", Caption: "RDMA devices and their ports", Columns: []string{"Device", "Port", "State", "Physical state", "Rate", "Link layer", "Netdev", "Role", "Driver", "Firmware", "PCI address", "Note"}}
	for i := range doc.Devices {
		d := &doc.Devices[i]
		if len(d.Ports) == 0 {
			g.add(append([]cell{textCell(d.Name), {}, {}, {}, {}, {}, {}}, optional(d.Role), optional(d.Driver), optional(d.Firmware), optional(d.Address), portless(d))...)
		}
		for j := range d.Ports {
			g.add(portRow(d, &d.Ports[j])...)
		}
	}
	s.put(g)
	if len(g.Rows) > 0 {
		s.Outro = []string{"ACTIVE: the port can carry traffic. INIT, ARMED: the link is up, but no subnet manager has configured the port. DOWN: no link, as it should be for a port that is not in use."}
	}
	return s
}

// portless says why a device has no port.
func portless(d *DocDevice) cell {
	var c cell
	switch {
	case !d.Answers:
		c = lookCell(lookBad, silence(seconds(*d.StuckSeconds)))
	case d.Parent != nil:
		c = lookCell(lookPlain, "a plane of "+*d.Parent+", which has its traffic")
	default:
		c = lookCell(lookBad, "no port could be read")
	}
	c.Long = true
	return c
}

func portRow(d *DocDevice, p *DocPort) []cell {
	state := lookCell(lookOpen, "not readable")
	if p.State != nil {
		state = textCell(*p.State)
		switch missing := p.Expected != nil && *p.Expected; {
		case *p.State == stateNames[stateActive]:
			state.Look = lookGood
		case missing:
			state.Look = lookBad
		}
	}
	physical := textCell("not readable")
	if p.PhysicalState != nil {
		physical = textCell(*p.PhysicalState)
	}
	rate := cell{}
	if p.BytesPerSecond != nil {
		rate = textCell(gigabits(*p.BytesPerSecond))
	}
	return []cell{
		textCell(d.Name), textCell(p.Port), state, physical, rate, optional(p.LinkLayer), optional(p.Netdev), optional(d.Role),
		optional(d.Driver), optional(d.Firmware), optional(d.Address), longCell(strings.Join(portNotes(d, p), "; ")),
	}
}

// portNotes tell what keeps a port's counters from being read.
func portNotes(d *DocDevice, p *DocPort) []string {
	var all []string
	if p.Expected != nil && *p.Expected && (p.State == nil || *p.State != stateNames[stateActive]) {
		all = append(all, "should be ACTIVE")
	}
	if d.Hidden {
		all = append(all, "counters hidden: this sysfs belongs to another network namespace")
	}
	for _, source := range p.Restricted {
		all = append(all, "the driver refuses every file of "+source+"/")
	}
	return all
}

// fabricStates are the states of registration with the NVLink fabric.
var fabricStates = []string{"not supported", "not started", "in progress", "completed"}

// gpuSection shows the GPUs and their NVLinks.
func gpuSection(doc *Document) pageSection {
	s := pageSection{ID: "gpus", Title: "GPUs and NVLink"}
	g := &grid{ID: "gpu-table", Caption: "GPUs, as NVML and the PCI bus know them", Columns: []string{"GPU", "Index", "Name", "State", "NVLinks active", "Fabric", "PCIe", "NUMA node", "Processes", "UUID"}}
	for i := range doc.GPUs {
		gpu := &doc.GPUs[i]
		g.add(textCell(gpu.Address), number(gpu.Index), optional(gpu.Name), presenceCell(gpu), nvlinkCell(gpu), fabricCell(gpu), pcieCell(gpu), number(gpu.NUMANode), number(gpu.Processes), optional(gpu.UUID))
	}
	s.put(g)
	return s
}

func number(n *int) cell {
	if n == nil {
		return cell{}
	}
	return textCell(fmt.Sprint(*n))
}

func presenceCell(g *DocGPU) cell {
	c := textCell(string(g.Presence))
	for _, p := range presences {
		if p.value == g.Presence {
			c.Text = p.text
		}
	}
	switch {
	case g.ResetRequired:
		c.Text, c.Look = c.Text+", waits for a reset", lookBad
	case g.Presence == snapshot.PresenceNVML:
		c.Look = lookGood
	case g.Presence == snapshot.PresenceLost:
		c.Look = lookBad
	case g.Presence == snapshot.PresenceUnseen:
		c.Look = lookOpen
	}
	if g.MIG != nil && *g.MIG {
		c.Text += ", MIG"
	}
	return c
}

// nvlinkCell counts the active links. Fewer than all may be by design: whether it is
// a fault the findings say.
func nvlinkCell(g *DocGPU) cell {
	if g.NVLinks == nil || *g.NVLinks == 0 {
		return cell{}
	}
	if g.NVLinksActive == nil {
		return textCell(fmt.Sprintf("not known, of %d", *g.NVLinks))
	}
	c := textCell(fmt.Sprintf("%d of %d", *g.NVLinksActive, *g.NVLinks))
	switch {
	case *g.NVLinksActive >= *g.NVLinks:
		c.Look = lookGood
	case len(g.NVLinksDown) > 0:
		c.Text += fmt.Sprintf(" (inactive: %s)", strings.Trim(fmt.Sprint(g.NVLinksDown), "[]"))
	}
	return c
}

func fabricCell(g *DocGPU) cell {
	if g.FabricState == nil {
		return cell{}
	}
	if n := *g.FabricState; n >= 0 && n < len(fabricStates) {
		return textCell(fabricStates[n])
	}
	return textCell(fmt.Sprintf("unknown (%d)", *g.FabricState))
}

func pcieCell(g *DocGPU) cell {
	if g.PCIeGeneration == nil || g.PCIeWidth == nil {
		return cell{}
	}
	text := fmt.Sprintf("Gen%d x%d", *g.PCIeGeneration, *g.PCIeWidth)
	if g.PCIeGenerationMax != nil && g.PCIeWidthMax != nil {
		text += fmt.Sprintf(" of Gen%d x%d", *g.PCIeGenerationMax, *g.PCIeWidthMax)
	}
	return textCell(text)
}

// processSection shows the processes that use GPUs and RDMA devices.
func processSection(doc *Document) pageSection {
	s := pageSection{ID: "processes", Title: "Processes that use GPUs and RDMA devices"}
	p := doc.Processes
	if p == nil {
		return s
	}
	switch {
	case p.Error != nil:
		s.Intro = []string{"They cannot be listed: " + *p.Error + "."}
	case p.Visible != nil && !*p.Visible:
		s.Intro = []string{"They are not seen: the exporter needs the host's PID namespace."}
	case !p.Joined:
		s.Intro = []string{"Which processes use both is not known: it needs RDMA netlink and NVML."}
	case len(p.Jobs) == 0:
		s.Intro = []string{"None."}
	}
	g := &grid{ID: "process-table", Caption: "Processes with both, and what their variables do", Columns: []string{"Process", "GPUs", "NICs", "NCCL", "Locked memory", "Variables", "What they do"}, More: p.Omitted}
	for i := range p.Jobs {
		g.add(jobRow(&p.Jobs[i])...)
	}
	s.put(g)
	return s
}

func jobRow(j *DocJob) []cell {
	variables := lookCell(lookOpen, "not known")
	if j.Variables != nil {
		texts := make([]string, len(j.Variables))
		for i, v := range j.Variables {
			texts[i] = v.Name + "=…"
			if v.Value != nil {
				texts[i] = v.Name + "=" + *v.Value
			}
		}
		variables = longCell(strings.Join(texts, " "))
	}
	notes, l := make([]string, len(j.Notes)), look{}
	for i, note := range j.Notes {
		notes[i] = note.Variable + ": " + note.Text
		if note.Effect == diagnosis.EffectStages {
			l = lookBad
		}
	}
	does := longCell(strings.Join(notes, "; "))
	if len(notes) > 0 {
		does.Look = l
	}
	return []cell{
		textCell(fmt.Sprintf("pid %d", j.PID)), longCell(strings.Join(j.GPUs, " ")), longCell(strings.Join(j.Devices, " ")), optional(j.NCCL), optional(j.Memlock), variables, does,
	}
}

// kernelLogSection shows the newest lines of the kernel's log.
func kernelLogSection(doc *Document) pageSection {
	s := pageSection{ID: "log", Title: "Kernel log"}
	k := doc.KernelLog
	if k == nil {
		return s
	}
	switch {
	case k.Error != nil:
		s.Intro = []string{"It cannot be read (" + *k.Error + "): it needs /dev/kmsg and CAP_SYSLOG."}
	case k.Since != nil:
		s.Intro = []string{fmt.Sprintf("Lines about interconnects are counted since %s.", when(*k.Since))}
	}
	if k.Lost != nil && *k.Lost > 0 {
		s.Intro = append(s.Intro, fmt.Sprintf("%d lines were overwritten before they were read.", *k.Lost))
	}
	if k.Error == nil && len(k.Counts) == 0 {
		s.Intro = append(s.Intro, "There is none.")
	}
	counts := &grid{ID: "log-counts", Caption: "Lines by what they are about", Columns: []string{"Pattern", "What it means", "Lines", "Newest"}}
	for i := range k.Counts {
		c := &k.Counts[i]
		last := cell{}
		if c.Last != nil {
			last = textCell(age(doc.Taken.Sub(*c.Last)) + " ago")
		}
		counts.add(textCell(c.Pattern), longCell(c.Means), textCell(fmt.Sprint(c.Count)), last)
	}
	events := &grid{ID: "log-events", Caption: "The newest lines", Columns: []string{"Time", "Pattern", "PCI function", "Line"}}
	for i := range k.Recent {
		e := &k.Recent[i]
		events.add(textCell(when(e.Time)), textCell(e.Pattern), optional(e.Address), longCell(e.Text))
	}
	s.put(counts)
	s.put(events)
	return s
}

// expectationSection shows what the node should have.
func expectationSection(doc *Document) pageSection {
	s := pageSection{ID: "expectations", Title: "What this node should have"}
	e := &doc.Expectations
	if len(e.Fields) == 0 {
		return s
	}
	sources := map[string]string{"file": "the profile's file", "embedded": "the profile of the platform", "learned": "what was seen here"}
	if e.Profile != nil {
		s.Intro = []string{fmt.Sprintf("Profile %s.", *e.Profile)}
	}
	g := &grid{ID: "expectation-table", Caption: "Expectations, and where each comes from", Columns: []string{"Of", "Expected", "By"}}
	for i := range e.Fields {
		f := &e.Fields[i]
		g.add(textCell(strings.ReplaceAll(string(f.Field), "_", " ")), longCell(f.Value), textCell(cmp.Or(sources[string(f.Source)], string(f.Source))))
	}
	s.put(g)
	return s
}

// notJudgedSection shows the rules that could not be judged.
func notJudgedSection(doc *Document) pageSection {
	s := pageSection{ID: "not-judged", Title: "Not judged"}
	g := &grid{ID: "not-judged-table", Caption: "What is missing, and the rules that could not be judged for want of it", Columns: []string{"Missing", "Rules"}}
	for _, missing := range doc.Context.Missing {
		if len(missing.Rules) > 0 {
			g.add(longCell(missing.What), longCell(strings.Join(missing.Rules, ", ")))
		}
	}
	s.put(g)
	return s
}

// readErrorSection shows what could not be read.
func readErrorSection(doc *Document) pageSection {
	s := pageSection{ID: "unread", Title: "What could not be read since the exporter started"}
	g := &grid{ID: "unread-table", Caption: "Read errors. Each is counted in gdr_read_errors_total", Columns: []string{"Device", "Port", "Collector", "File or call", "Error", "Times"}, More: doc.ReadErrorsOmitted}
	for i := range doc.ReadErrors {
		if i == mostShownErrors {
			g.More += len(doc.ReadErrors) - i
			break
		}
		e := &doc.ReadErrors[i]
		device := optional(e.Device)
		device.Text = cmp.Or(device.Text, "–")
		g.add(device, optional(e.Port), textCell(e.Collector), longCell(e.Source), textCell(e.Errno), textCell(fmt.Sprint(e.Count)))
	}
	s.put(g)
	if len(g.Rows) > 0 {
		s.Intro = []string{"These values were missing from the metrics at the time; all others are served."}
	}
	return s
}

// partSection shows how old each part of the page is.
func partSection(doc *Document) pageSection {
	s := pageSection{ID: "parts", Title: "Age of what is shown"}
	g := &grid{ID: "part-table", Caption: "The parts of the host that were read", Columns: []string{"Part", "Age", "Read in", "State"}}
	for i := range doc.Parts {
		p := &doc.Parts[i]
		state := lookCell(lookGood, "read")
		switch {
		case p.Error != nil:
			state = lookCell(lookBad, *p.Error)
		case len(p.Stuck) > 0:
			state = lookCell(lookBad, "does not answer: "+strings.Join(p.Stuck, " "))
		}
		state.Long = true
		g.add(textCell(p.Collector), textCell(age(seconds(p.AgeSeconds))), textCell(seconds(p.DurationSeconds).Round(10*time.Microsecond).String()), state)
	}
	s.put(g)
	return s
}
