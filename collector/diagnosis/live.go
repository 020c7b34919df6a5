package diagnosis

import (
	"fmt"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma"
)

// mostHostRegions is what a process that uses GPUs may have registered without
// looking like a job: less than any buffer that data is staged through.
const mostHostRegions = 1 << 20

// LiveUses says of each compute device whether GPUDirect RDMA is being used
// through it now, in the order of the devices. history is what earlier calls
// remember, and is changed; nil remembers nothing, so that no flow is known.
//
// What is registered is seen, not what moves through it: in_use says that GPU
// memory is registered with the NIC by a job. The same Snapshot given again changes
// nothing.
func LiveUses(s *snapshot.Snapshot, history *LiveHistory) []LiveUse {
	if s.RDMA == nil || s.Affinity == nil {
		return nil
	}
	if history == nil {
		history = &LiveHistory{}
	}
	if history.devices == nil {
		history.devices = map[string]*liveDevice{}
	}
	look := newLiveLook(s, history.at)
	look.suspectAfter, look.flow = history.suspectAfter(), history.flow()
	uses := make([]LiveUse, 0, len(s.RDMA.Units))
	for i := range s.RDMA.Units {
		unit := &s.RDMA.Units[i]
		if s.Affinity.Listing.Roles[unit.Name] != "compute" || unit.Data != nil && unit.Data.Plane() {
			continue
		}
		uses = append(uses, look.use(unit.Name, unit.Data, history.device(unit.Name)))
	}
	history.forget(uses)
	history.at = s.Taken
	return uses
}

// use is what is seen of one device; device is nil if it does not answer.
func (l *liveLook) use(name string, device *rdma.Device, d *liveDevice) LiveUse {
	if l.again && d.said.Live != "" {
		return d.said
	}
	if device == nil {
		d.restart(liveSample{})
		d.said = LiveUse{Device: name, Live: LiveCannotTell, Reasons: []string{"the device does not answer"}}
		return d.said
	}
	now, known := sample(device, l.now, l.own(name))
	d.move(now, known && l.ownKnown, l.flow)
	if why := l.held(name, d); why != "" {
		if d.said.Live == "" {
			return LiveUse{Device: name, Live: LiveCannotTell, Reasons: []string{why}}
		}
		return d.said
	}
	verdict := l.judge(device, d)
	d.said = LiveUse{Device: name, Live: verdict.live, Reasons: verdict.reasons}
	return d.said
}

// held says why what is registered now may be the exporter's own, "" if it is not.
// That does not last: a pair that is tried again and again holds nothing up.
func (l *liveLook) held(name string, d *liveDevice) (why string) {
	switch {
	case l.s.Prober == nil:
	case l.s.Prober.Running != nil:
		why = "the exporter is measuring: what is registered may be its own"
	case l.measured(name):
		why = "the exporter has measured this device a moment ago: what is listed as registered may be its own"
	}
	switch {
	case why == "" || l.now.Before(d.held):
		d.held = time.Time{}
	case d.held.IsZero():
		d.held = l.now
	case l.now.Sub(d.held) > mostHeld:
		return ""
	}
	return why
}

// measured reports whether a device was measured so lately that the list of
// dma-bufs, which is read once a minute, may be of that time.
func (l *liveLook) measured(name string) bool {
	for i := range l.s.Prober.Pairs {
		pair := &l.s.Prober.Pairs[i]
		age := l.now.Sub(pair.LastAttempt)
		if pair.Device == name && age >= 0 && age < holdAfter {
			return true
		}
	}
	return false
}

// liveVerdict is a LiveUse without its device.
type liveVerdict struct {
	live    Live
	reasons []string
}

func liveSays(live Live, reasons ...string) liveVerdict { return liveVerdict{live, reasons} }

// judge goes from what is proven to what is only likely.
func (l *liveLook) judge(device *rdma.Device, d *liveDevice) liveVerdict {
	job := l.jobOf(device)
	if evidence := l.registered(device, &job); evidence != "" {
		d.since = time.Time{}
		return liveSays(LiveInUse, evidence)
	}
	if verdict, idle := l.idle(&job, d); idle {
		d.since = time.Time{}
		return verdict
	}
	verdict := l.staging(device, &job, d)
	if verdict.live != LiveSuspect {
		d.since = time.Time{}
		return verdict
	}
	if d.since.IsZero() {
		d.since = l.now
	}
	if lasted := l.now.Sub(d.since); lasted < l.suspectAfter {
		return liveSays(LiveCannotTell, append([]string{
			fmt.Sprintf("it looks like a job that stages, for %s: that counts after %s", lasted.Round(time.Second), l.suspectAfter),
		}, verdict.reasons...)...)
	}
	return verdict
}

// idle says that nobody uses the device together with a GPU.
func (l *liveLook) idle(job *liveJob, d *liveDevice) (liveVerdict, bool) {
	switch {
	case job.empty:
		return liveSays(LiveIdle, "no process has it open or memory registered with it"), true
	case job.none:
		// The kernel's storage over RDMA, or a process without a GPU.
		return liveSays(LiveIdle, "no process that uses a GPU has it open or memory registered with it"), true
	case job.known && d.flows.Known && !d.flows.Value:
		return liveSays(LiveIdle, job.text()+", and nothing moves"), true
	}
	return liveVerdict{}, false
}

// staging says suspect if all signs are there, else what is missing or speaks
// against it.
func (l *liveLook) staging(device *rdma.Device, job *liveJob, d *liveDevice) liveVerdict {
	var missing []string
	if !job.known {
		missing = append(missing, job.missing)
	}
	if !d.flows.Known {
		missing = append(missing, l.flowMissing(device))
	}
	missing = append(missing, l.evidence.missing...)
	switch {
	case len(missing) > 0:
		return liveSays(LiveCannotTell, missing...)
	case job.bytes <= mostHostRegions:
		return liveSays(LiveCannotTell, fmt.Sprintf("%s and %s move: memory registered through DEVX is not shown by the kernel, and the kernel's own traffic is not told apart", job.text(), rate(d.rate)))
	case !l.near[device.Name]:
		return liveSays(LiveCannotTell, "no GPU is near enough for libraries to use GPUDirect RDMA through it by default: that nothing of GPU memory is registered is by design")
	case l.c2c:
		return liveSays(LiveCannotTell, "GPUs are connected to the processor over NVLink-C2C: their memory can be registered as the host's, which leaves no trace: "+job.text())
	case l.evidence.elsewhere != "":
		return liveSays(LiveCannotTell, l.evidence.elsewhere+": "+job.text()+", which may be host memory")
	}
	return liveSays(LiveSuspect, fmt.Sprintf("%s and %s move, less the exporter's own", job.text(), rate(d.rate)),
		"on the whole host no memory region is registered through peer memory, and no dma-buf of GPU memory exists")
}

func (l *liveLook) flowMissing(device *rdma.Device) string {
	if !l.ownKnown {
		return "what measurements have moved cannot be read (probe.json)"
	}
	if _, known := sample(device, l.now, 0); !known {
		return "no port counts its bytes"
	}
	return fmt.Sprintf("whether bytes flow is not known before %s of looks less than %s apart", liveWindow, liveGap)
}
