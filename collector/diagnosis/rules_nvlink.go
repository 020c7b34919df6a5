package diagnosis

import (
	"strings"
	"time"

	"gdr_exporter/collector/profile"
	"gdr_exporter/gpu"
)

// Rules about NVLink and its fabric.
const (
	idNVLinks       = "nvlink_missing"
	idFabricIdle    = "fabric_not_started"
	idFabricPending = "fabric_in_progress"
	idFabricFailed  = "fabric_failed"
	idFabricHealth  = "fabric_unhealthy"
	idP2PLost       = "gpu_p2p_lost"
)

// fabricPatience is how long registration with the fabric may take.
const fabricPatience = 10 * time.Minute

var nvlinkRules = []rule{
	{Rule: Rule{idNVLinks, SeverityWarning, "a GPU has fewer NVLinks than it should",
		"Fewer than the profile expects, or than all the others of this node have. Look for Xid 74 and 144 to 150; reset the GPUs together, or reseat them."},
		needs: []need{needNVML}, hold: flapping, judge: judgeNVLinks},
	{Rule: Rule{idFabricIdle, SeverityWarning, "a GPU's registration with the NVLink fabric has not started",
		"Start nvidia-fabricmanager of the driver's version: until then CUDA fails with error 802, system not yet initialized."},
		needs: []need{needNVML}, after: fabricPatience, judge: judgeFabricState(1)},
	{Rule: Rule{idFabricPending, SeverityWarning, "a GPU's registration with the NVLink fabric does not end",
		"Restart nvidia-fabricmanager, or on rack systems look at the switch trays' NMX controller; then reset the GPU."},
		needs: []need{needNVML}, after: fabricPatience, judge: judgeFabricState(2)},
	{Rule: Rule{idFabricFailed, SeverityWarning, "a GPU's registration with the NVLink fabric failed",
		"The fabric is not what it should be, though its state says completed: fabric manager's log, the partition that the GPU is in, its NVLinks."},
		needs: []need{needNVML}, judge: judgeFabricFailed},
	{Rule: Rule{idFabricHealth, SeverityWarning, "the NVLink fabric is not healthy for a GPU",
		"See the health bits: bandwidth degraded, route unhealthy or a wrong configuration (partition, location, firmware). nvidia-smi -q, section Fabric."},
		needs: []need{needNVML}, hold: flapping, judge: judgeFabricHealth},
	{Rule: Rule{idP2PLost, SeverityWarning, "GPUs of one NVLink fabric cannot reach each other",
		"Peer copies go through host memory, ten times slower. Restart nvidia-fabricmanager, then reset all GPUs of the node together."},
		needs: []need{needNVML}, hold: flapping, judge: judgeP2P},
}

// answering calls f for the GPUs that NVML answers for.
func (n *node) answering(f func(g *gpu.GPU)) {
	if n.nvml == nil {
		return
	}
	for i := range n.nvml.GPUs {
		if g := &n.nvml.GPUs[i]; !g.Lost {
			f(g)
		}
	}
}

// judgeNVLinks never takes the number of links that a GPU could have for what it
// should have: boards are made with fewer.
func judgeNVLinks(n *node, j *judging) {
	n.answering(func(g *gpu.GPU) {
		active := g.NVLink.Active
		if !active.Known {
			return
		}
		if n.Expected.NVLinks.Known {
			if active.Value < n.Expected.NVLinks.Value {
				j.find(Subject{GPU: g.Address}, "%d NVLinks are active, %d are expected (%s)", active.Value, n.Expected.NVLinks.Value, n.source(profile.FieldNVLinks))
			}
			return
		}
		if others, agree := n.siblings(g); agree && active.Value < others {
			j.find(Subject{GPU: g.Address}, "%d NVLinks are active, all other GPUs have %d", active.Value, others)
		}
	})
}

// leastSiblings is how many other GPUs must agree to say what one should have.
const leastSiblings = 3

// siblings is the number of active NVLinks that all other GPUs of a GPU's model
// have, if they agree.
func (n *node) siblings(of *gpu.GPU) (links int, agree bool) {
	count, differ := 0, false
	n.answering(func(g *gpu.GPU) {
		if g.Address == of.Address || g.Name != of.Name || !g.NVLink.Active.Known {
			return
		}
		differ = differ || count > 0 && g.NVLink.Active.Value != links
		links = g.NVLink.Active.Value
		count++
	})
	return links, count >= leastSiblings && !differ
}

// judgeFabricState minds GPUs that stay in a state of registration. State 0, not
// supported, is what GPUs without a fabric say.
func judgeFabricState(state int) func(*node, *judging) {
	return func(n *node, j *judging) {
		n.answering(func(g *gpu.GPU) {
			if g.Fabric.State.Known && g.Fabric.State.Value == state {
				j.find(Subject{GPU: g.Address}, "fabric state %d for more than %v", state, fabricPatience)
			}
		})
	}
}

// fabricCompleted is the state at which the fabric's other values mean something.
const fabricCompleted = 3

func judgeFabricFailed(n *node, j *judging) {
	clustered := false
	n.answering(func(g *gpu.GPU) { clustered = clustered || inCluster(g) })
	n.answering(func(g *gpu.GPU) {
		switch f := &g.Fabric; {
		case !f.State.Known || f.State.Value != fabricCompleted:
		case f.Status.Value != 0:
			j.find(Subject{GPU: g.Address}, "registration completed with status %d", f.Status.Value)
		case clustered && !inCluster(g):
			j.find(Subject{GPU: g.Address}, "registration completed without a cluster UUID, which other GPUs have")
		}
	})
}

func inCluster(g *gpu.GPU) bool {
	return g.Fabric.State.Value == fabricCompleted && strings.Trim(g.Fabric.ClusterUUID, "0-") != ""
}

// Values of the fabric's health: Summary 2 is unhealthy, IncorrectConfiguration 1 none.
const (
	summaryUnhealthy   = 2
	configurationRight = 1
)

func judgeFabricHealth(n *node, j *judging) {
	n.answering(func(g *gpu.GPU) {
		h := &g.Fabric.Health
		var seen []string
		if h.DegradedBandwidth.Value {
			seen = append(seen, "bandwidth degraded")
		}
		if h.RouteUnhealthy.Value {
			seen = append(seen, "route unhealthy")
		}
		if h.IncorrectConfiguration.Value > configurationRight {
			seen = append(seen, "incorrect configuration")
		}
		if h.Summary.Value == summaryUnhealthy {
			seen = append(seen, "unhealthy")
		}
		if len(seen) > 0 {
			j.find(Subject{GPU: g.Address}, "%s", strings.Join(seen, ", "))
		}
	})
}

// judgeP2P minds pairs that the fabric should join. Without one, whether two GPUs
// reach each other is a matter of the board.
func judgeP2P(n *node, j *judging) {
	if n.nvml == nil {
		return
	}
	joins := map[string]bool{}
	n.answering(func(g *gpu.GPU) {
		joins[g.Address] = g.Fabric.State.Value == fabricCompleted && g.NVLink.Active.Value > 0
	})
	dead := map[string]int{}
	for i := range n.nvml.Pairs {
		pair := &n.nvml.Pairs[i]
		status := pair.P2P[gpu.P2PRead]
		if joins[pair.A] && joins[pair.B] && status.Known && status.Value != 0 {
			dead[pair.A]++
			dead[pair.B]++
		}
	}
	n.answering(func(g *gpu.GPU) {
		if count := dead[g.Address]; count > 0 {
			j.find(Subject{GPU: g.Address}, "no peer access to %d GPUs, with %d NVLinks active and the fabric completed", count, g.NVLink.Active.Value)
		}
	})
}
