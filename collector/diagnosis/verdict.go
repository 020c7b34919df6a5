package diagnosis

import (
	"fmt"
	"slices"

	"gdr_exporter/gpu/affinity"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// decide gives a pair its state, the first that matches: see DESIGN.md, Verdict.
func (n *node) decide(p *way) {
	c := p.standing
	outcome := loopback.Outcome("")
	if c != nil {
		outcome = c.Judgement.Outcome
	}
	if outcome == loopback.Corrupt {
		p.set(StateDegraded, evidenceOf(c), c.Judgement.Reasons...)
		return
	}
	if why := n.unsupported(p, outcome); why != "" {
		p.set(StateUnsupported, evidenceOf(c), why)
		return
	}
	if outcome == loopback.Failed {
		p.set(StateStaged, evidenceOf(c), c.Judgement.Reasons...)
		return
	}
	if gone := n.gone(p); gone != nil {
		p.set(StateStaged, EvidenceInferred, gone...)
		return
	}
	n.decideByRate(p, c, outcome)
}

// decideByRate is decide for a pair of which nothing says that it cannot work.
func (n *node) decideByRate(p *way, c *prober.Completed, outcome loopback.Outcome) {
	switch control := n.controlBad(p); {
	case c == nil && n.liveOf(p.Device) == LiveInUse:
		p.set(StateDirect, EvidenceInferred)
	case c == nil:
		p.set(StateUnknown, EvidenceNone, n.whyUnknown(p)...)
	case control != "":
		p.set(StateUnknown, EvidenceNone, "the control is not sane: "+control)
	case outcome == loopback.Slow:
		p.set(StateDegraded, EvidenceMeasured, c.Judgement.Reasons...)
	case outcome == loopback.Fine && c.Depth == prober.DepthFull:
		p.set(StateDirect, EvidenceMeasured)
	case outcome == loopback.Fine:
		p.set(StateDirect, EvidenceRegistered)
	default: // no result that says anything stands
		p.set(StateUnknown, EvidenceNone, append(slices.Clone(c.Judgement.Reasons), n.whyUnknown(p)...)...)
	}
}

func (p *way) set(state State, evidence Evidence, reasons ...string) {
	p.State, p.Evidence, p.Reasons = state, evidence, reasons
	if len(reasons) == 0 && state != StateDirect {
		p.Reasons = []string{"no reason was told"}
	}
}

// evidenceOf is what a result is worth, inferred where there is none.
func evidenceOf(c *prober.Completed) Evidence {
	switch {
	case c == nil:
		return EvidenceInferred
	case c.Depth == prober.DepthFull:
		return EvidenceMeasured
	}
	return EvidenceRegistered
}

// driverEFA is the RDMA driver whose devices have no reliable connections.
const driverEFA = "efa"

// unsupported says why a pair cannot do GPUDirect RDMA as it is measured, "" if it
// may. One that ever was direct is none of these, whatever is said now.
func (n *node) unsupported(p *way, outcome loopback.Outcome) string {
	if outcome == loopback.Fine || outcome == loopback.Slow || n.history.wasDirect(p) {
		return ""
	}
	if d := n.devices[p.Device]; d != nil && (d.Driver == driverEFA || d.Protocol == "usnic") {
		return fmt.Sprintf("%s has no reliable connections (driver %s): it cannot be measured", p.Device, d.Driver)
	}
	if g := n.gpu(p.GPU); g != nil && g.Virtualization == "vgpu" {
		return "the GPU is a virtual one (vGPU)"
	}
	if outcome == loopback.Unsupported {
		return joined(p.standing.Judgement.Reasons)
	}
	if attributes, known := n.attributes(p.GPU); known && !attributes.GPUDirectRDMA {
		return "the GPU does not claim GPUDirect RDMA (attribute 116 is 0)"
	}
	return ""
}

// The host path is not sane below this share of what port and PCIe link can do.
// Healthy NICs do 0.73 and more of their port's rate to themselves.
const saneControl = 0.5

// controlBad says that the host path of the standing full run is far below what
// NIC and link can do, "" if it is not, or if that cannot be told.
func (n *node) controlBad(p *way) string {
	c := p.standing
	if c == nil || c.Depth != prober.DepthFull || !c.Idle {
		return ""
	}
	host, known := pathRate(c, loopback.PathHost)
	if !known {
		return ""
	}
	least, of := n.leastControl(p)
	if least == 0 || host >= least {
		return ""
	}
	return fmt.Sprintf("path host moves %s, less than %s (%s)", rate(host), rate(least), of)
}

// leastControl is the rate that the host path should reach in bytes per second,
// and what that comes of; 0 if it is not known. Software devices promise nothing.
func (n *node) leastControl(p *way) (float64, string) {
	d := n.devices[p.Device]
	if d == nil || d.PCIAddress == "" {
		return 0, ""
	}
	if n.Expected.Loopback.Known {
		return n.Expected.Loopback.Value, "profile"
	}
	least, of := 0.0, ""
	for i := range d.Ports {
		if port := &d.Ports[i]; port.Number == p.Port && port.State.Known && port.State.Value == portActive && port.Rate.Known {
			least, of = saneControl*float64(port.Rate.Value.BytesPerSecond), "half of the port's rate"
		}
	}
	if f := n.functions[d.PCIAddress]; f != nil && least > 0 {
		if link := linkBytes(&f.Link); link > 0 && saneControl*link < least {
			least, of = saneControl*link, "half of what its PCIe link can do"
		}
	}
	return least, of
}

// linkBytes is what a PCIe link can do in bytes per second and direction, 0 if that
// is not known.
func linkBytes(l *affinity.Link) float64 {
	if !l.PossibleSpeed.Known || !l.PossibleWidth.Known {
		return 0
	}
	coding := 128.0 / 130
	if l.PossibleSpeed.Value < 8 {
		coding = 8.0 / 10
	}
	return l.PossibleSpeed.Value * 1e9 / 8 * float64(l.PossibleWidth.Value) * coding
}

// skipTexts say why a due pair is not measured.
var skipTexts = map[prober.Reason]string{
	prober.ReasonPort:         "its port is not ACTIVE",
	prober.ReasonNICBusy:      "its NIC is busy",
	prober.ReasonGPUBusy:      "its GPU is busy",
	prober.ReasonLoadUnknown:  "its load cannot be read",
	prober.ReasonMemory:       "too little GPU memory is free",
	prober.ReasonComputeMode:  "the GPU's compute mode keeps others out",
	prober.ReasonMIG:          "the GPU is split (MIG)",
	prober.ReasonMPS:          "an MPS server has the GPU",
	prober.ReasonPersistence:  "persistence mode is off and nobody uses the GPU",
	prober.ReasonConfidential: "confidential computing is on",
	prober.ReasonGPU:          "the GPU is lost, waits for a reset, or NVML does not answer for it",
	prober.ReasonLibrary:      "libcuda or libibverbs is not there",
	prober.ReasonDeviceNode:   "the device file in /dev/infiniband is not there, or not for this process",
	prober.ReasonMemlock:      "the exporter's own limit of locked memory is too small",
	prober.ReasonQuiesced:     "measuring is quiesced",
	prober.ReasonLocked:       "another measurement holds the lock",
	prober.ReasonLock:         "the lock cannot be had",
	prober.ReasonBudget:       "this hour's budget is used up",
	prober.ReasonHung:         "a measurement of this GPU or NIC hangs",
	prober.ReasonNewProcess:   "a process came while it was measured",
	prober.ReasonStopped:      "the exporter was ended",
}

// withdrawnTexts say why results do not stand any more.
var withdrawnTexts = map[string]string{
	prober.WithdrawnFailed: "runs since could not be carried through", prober.WithdrawnAged: "the last result is too old",
	prober.WithdrawnDriver: "the driver changed since", prober.WithdrawnPeermem: "the peer memory module changed since",
	prober.WithdrawnFirmware: "the NIC's firmware changed since", prober.WithdrawnKernel: "the kernel changed since",
	prober.WithdrawnReboot: "the host was booted since", prober.WithdrawnGPU: "the GPU is another one now",
	prober.WithdrawnNIC: "the NIC is another one now", prober.WithdrawnGPULost: "the GPU is lost or waits for a reset",
	prober.WithdrawnGPUGone: "the GPU is gone", prober.WithdrawnNICGone: "the NIC is gone", prober.WithdrawnPort: "the port went down since",
}

// whyUnknown says why nothing is known of a pair.
func (n *node) whyUnknown(p *way) []string {
	var why []string
	if n.unloaded() {
		why = append(why, driverAbsent)
	}
	if p.status == nil {
		return append(why, "it is not measured: no prober runs")
	}
	if !p.status.Hung.IsZero() {
		why = append(why, fmt.Sprintf("a measurement hangs since %s (%s)", stamp(p.status.Hung), p.status.HungStage))
	}
	if text := skipTexts[p.status.Skip]; text != "" {
		why = append(why, "not measured: "+text)
	}
	if text := withdrawnTexts[p.status.Withdrawn]; text != "" {
		why = append(why, text)
	}
	if u := p.status.Unconfirmed; u != nil {
		why = append(why, "a result waits to be repeated: "+joined(append([]string{string(u.Judgement.Outcome)}, u.Judgement.Reasons...)))
	}
	if len(why) > 0 {
		return why
	}
	switch {
	case n.s.Prober.Interval == 0:
		return []string{"not measured: no measurements are scheduled (--probe.interval=0)"}
	case p.status.LastAttempt.IsZero():
		return []string{"not measured yet"}
	}
	return []string{"no measurement could be carried through"}
}
