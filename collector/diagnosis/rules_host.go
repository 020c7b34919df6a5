package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu"
)

// Rules about the GPUs, their driver and the host.
const (
	idDriverUnloaded = "driver_unloaded"
	idDriverMismatch = "driver_mismatch"
	idNVMLFailed     = "nvml_failed"
	idNVMLStuck      = "nvml_stuck"
	idGPULost        = "gpu_lost"
	idGPUReset       = "gpu_needs_reset"
	idGPUMissing     = "gpu_missing"
	idXid            = "gpu_xid"
	idXidAll         = "gpu_xid_everywhere"
	idQuiesced       = "quiesced"
	idDaemonMemlock  = "memlock_daemon"
)

var hostRules = []rule{
	{Rule: Rule{idGPULost, SeverityWarning, "a GPU is lost",
		"It has fallen off the bus or the driver lost it: kernel log (Xid 79), power and cooling; a reboot brings it back, or it is to be replaced."},
		needs: []need{needTree}, hold: flapping, judge: judgeGPULost},
	{Rule: Rule{idGPUMissing, SeverityWarning, "the node has fewer GPUs than it should",
		"lspci -d 10de: for what is on the bus; a cold boot, then reseat or replace."},
		needs: []need{needTree, needNVML}, hold: flapping, judge: judgeGPUMissing},
	{Rule: Rule{idGPUReset, SeverityWarning, "a GPU has to be reset",
		"Drain the node and reset the GPU (nvidia-smi --gpu-reset), or reboot if the driver asks for that."},
		needs: []need{needNVML}, judge: judgeGPUReset},
	{Rule: Rule{idDriverUnloaded, SeverityWarning, "the NVIDIA driver was unloaded",
		"It was loaded since the exporter started: load it again (modprobe nvidia), or wait for the upgrade that is under way."},
		needs: []need{needDriver}, after: time.Minute, judge: judgeDriverUnloaded},
	{Rule: Rule{idDriverMismatch, SeverityWarning, "driver and user-space libraries are of different versions",
		"An upgrade replaced the libraries under the loaded driver: NVML and new CUDA programs fail until it is loaded again. Drain the node and reload the driver, or reboot."},
		needs: []need{needDriver}, judge: judgeDriverMismatch},
	{Rule: Rule{idNVMLFailed, SeverityWarning, "NVML does not work although there are GPUs",
		"nvidia-smi tells the same: check driver, library and the permissions of /dev/nvidia*."},
		needs: []need{needTree}, after: time.Minute, judge: judgeNVMLFailed},
	{Rule: Rule{idNVMLStuck, SeverityWarning, "a call of NVML does not return",
		"The driver hangs in the kernel: look for Xids (119, 120, 79). No further call is made until it returns; usually only a reboot helps."},
		hold: flapping, judge: judgeNVMLStuck},
	{Rule: Rule{idXidAll, SeverityWarning, "all GPUs report the same Xid at once",
		"It is the fabric, a switch or the host rather than one GPU: fabric manager's log, NVSwitch SXids, power."},
		judge: judgeXidEverywhere},
	{Rule: Rule{idXid, SeverityWarning, "a GPU reports an error of its interconnect",
		"Xid 74 and 144 to 150 are NVLink's, 79 a GPU off the bus, 119 and 120 its firmware's: see NVIDIA's Xid catalog for the action."},
		judge: judgeXid},
	{Rule: Rule{idDaemonMemlock, SeverityWarning, "jobs inherit a small limit of locked memory",
		"Set LimitMEMLOCK=infinity in the daemon's unit and restart it: RDMA registration in containers and jobs without CAP_IPC_LOCK fails with ENOMEM."},
		needs: []need{needHost}, judge: judgeDaemons},
	{Rule: Rule{idQuiesced, SeverityInfo, "measuring is quiesced",
		"By command, so that the driver can be unloaded: it ends by itself, or with gdr_exporter ctl resume."},
		judge: judgeQuiesced},
}

func judgeGPULost(n *node, j *judging) {
	for _, g := range n.gpus.All {
		if lost(g) {
			why := "on the PCI bus, and not with the driver"
			if g.PCI == nil {
				why = "not on the PCI bus any more"
			}
			j.find(Subject{GPU: g.Address}, "%s", why)
		}
	}
}

// judgeGPUMissing counts what is there in whatever state: a GPU that is given to a
// virtual machine is no fault, and one that is lost is told of by its own rule.
func judgeGPUMissing(n *node, j *judging) {
	want, have := n.Expected.GPUs, n.facts.GPUs
	switch {
	case !want.Known:
	case !have.Known:
		j.lack(notCounted)
	case have.Value+n.gpus.Count(lost) < want.Value:
		j.find(Subject{}, "%d GPUs, %d are expected (%s)", have.Value, want.Value, n.source(profile.FieldGPUs))
	}
}

func lost(g *snapshot.GPU) bool { return g.Presence == snapshot.PresenceLost }

// recoveryActions are the values of NVML's field 230.
var recoveryActions = []string{"none", "reset the GPU", "reboot the node", "drain peer-to-peer traffic", "drain and reset"}

func judgeGPUReset(n *node, j *judging) {
	n.answering(func(g *gpu.GPU) {
		switch action := g.RecoveryAction.Value; {
		case action > 0 && action < uint64(len(recoveryActions)):
			j.find(Subject{GPU: g.Address}, "the driver asks to %s", recoveryActions[action])
		case action > 0:
			j.find(Subject{GPU: g.Address}, "the driver asks for recovery action %d", action)
		case g.ResetRequired:
			j.find(Subject{GPU: g.Address}, "NVML says that a reset is required")
		}
	})
}

func judgeDriverUnloaded(n *node, j *judging) {
	if n.history.loaded && n.unloaded() {
		j.find(Subject{}, "module nvidia is not loaded any more")
	}
}

func judgeDriverMismatch(n *node, j *judging) {
	if mismatch := n.driver.LibraryMismatch(); mismatch.Value {
		j.find(Subject{}, "driver %s, libraries %s", n.driver.Version.Value, n.driver.Library.Value.Version)
	}
}

// judgeNVMLFailed: that there is no driver or no library is usual on hosts whose
// GPUs belong to others; that both are there and do not work is not.
func judgeNVMLFailed(n *node, j *judging) {
	reading := n.s.NVML()
	if reading == nil || !n.hasGPU() {
		return
	}
	switch reading.State {
	case gpu.StateNoPermission, gpu.StateVersionMismatch, gpu.StateFailed:
		j.find(Subject{}, "%s: %v", reading.State, reading.Err)
	default:
	}
}

func judgeNVMLStuck(n *node, j *judging) {
	if stuck, call := n.s.NVMLStuck(); stuck >= stuckFor {
		where := ""
		if call.Name != "" {
			where = " in " + call.Name
		}
		j.find(Subject{}, "a read hangs%s", where)
	}
}

// interconnectXids are those about a GPU's links, its place on the bus and the
// firmware that answers for both. Others are about jobs and memory.
var interconnectXids = []uint64{74, 79, 119, 120, 144, 145, 146, 147, 148, 149, 150, 154}

// xidFor is how long it is told of an Xid.
const xidFor = time.Hour

func judgeXid(n *node, j *judging) {
	n.answering(func(g *gpu.GPU) {
		var seen []string
		for i := range g.Xids {
			if x := &g.Xids[i]; slices.Contains(interconnectXids, x.Code) && n.recent(x.Last, xidFor) {
				seen = append(seen, fmt.Sprintf("Xid %d at %s", x.Code, stamp(x.Last)))
			}
		}
		if len(seen) > 0 {
			j.find(Subject{GPU: g.Address}, "%s", strings.Join(seen, ", "))
		}
	})
}

// judgeXidEverywhere finds codes that all of several GPUs reported within a minute.
func judgeXidEverywhere(n *node, j *judging) {
	if n.nvml == nil || len(n.nvml.GPUs) < leastSiblings {
		return
	}
	type spread struct {
		first, last time.Time
		gpus        int
	}
	codes := map[uint64]spread{}
	for i := range n.nvml.GPUs {
		for _, x := range n.nvml.GPUs[i].Xids {
			if x.Code == 0 || !n.recent(x.Last, xidFor) {
				continue
			}
			s := codes[x.Code]
			if s.gpus == 0 || x.Last.Before(s.first) {
				s.first = x.Last
			}
			if x.Last.After(s.last) {
				s.last = x.Last
			}
			s.gpus++
			codes[x.Code] = s
		}
	}
	var seen []string
	for code, s := range codes {
		if s.gpus == len(n.nvml.GPUs) && s.last.Sub(s.first) <= time.Minute {
			seen = append(seen, fmt.Sprintf("Xid %d at %s", code, stamp(s.last)))
		}
	}
	if len(seen) > 0 {
		slices.Sort(seen)
		j.find(Subject{}, "%s on all %d GPUs", strings.Join(seen, ", "), len(n.nvml.GPUs))
	}
}

// leastMemlock is the limit of locked memory below which registration fails in
// practice. Defaults are 64 KiB and 8 MiB.
const leastMemlock = 64 << 20

// starters are the daemons whose limit jobs inherit. kubelet starts none itself.
var starters = []string{"containerd", "dockerd", "crio", "slurmd", "slurmstepd"}

func judgeDaemons(n *node, j *judging) {
	if !n.host.Daemons.Known {
		j.lack("limits of container runtimes and schedulers: it needs the host's PID namespace")
		return
	}
	if n.nearNothing() {
		return
	}
	for i := range n.host.Daemons.Value {
		d := &n.host.Daemons.Value[i]
		if !slices.Contains(starters, d.Name) {
			continue
		}
		if least := cmp.Or(d.Soft, d.Hard); least.Known && least.Value < leastMemlock {
			j.find(Subject{Other: d.Name}, "%s (pid %d) has a limit of %s", d.Name, d.PID, size(least.Value))
		}
	}
}

// nearNothing reports whether the node has no expected pair, so that no job
// registers GPU memory.
func (n *node) nearNothing() bool {
	none := true
	n.expected(func(*way) { none = false })
	return none
}

func judgeQuiesced(n *node, j *judging) {
	if n.s.Prober != nil && !n.s.Prober.QuiescedUntil.IsZero() {
		j.find(Subject{}, "until %s", stamp(n.s.Prober.QuiescedUntil))
	}
}
