package collector

import (
	"strconv"
	"strings"

	"gdr_exporter/rdma/netdev"
)

// configNote tells how fresh a configured value is.
const configNote = " Read every 10 minutes, and when the carrier comes or goes."

// Families of the network interface of an Ethernet (RoCE, iWARP) port with
// fixed names. Those of its ethtool statistics come from netdev.Meanings.
var (
	netdevMTU = gauge("gdr_rdma_port_netdev_mtu_bytes",
		"MTU of the port's network interface (mtu). RDMA's own is the largest of 256 to 4096 bytes that fits into it."+slowNote)
	netdevHidden = gauge("gdr_rdma_port_netdev_hidden",
		"1 if the port's network interface is not in the network namespace of the exporter (hostNetwork in Kubernetes), so that ethtool and DCB cannot be asked. Absent otherwise.")
	netdevEthtool = gauge("gdr_rdma_port_ethtool_supported",
		"1 if the driver of the port's network interface has ethtool statistics, 0 if not, as for bonds.")
	netdevDCB = gauge("gdr_rdma_port_dcb_supported",
		"1 if the driver of the port's network interface answers DCB netlink (PFC, trust), 0 if not."+configNote)
	netdevTrust = gauge("gdr_rdma_port_trust_info",
		"What the port takes a packet's priority from, value 1: trust is pcp (VLAN tag), dscp (IP header) or unknown. From qos/trust, DCB's trust table or mlx5's DSCP entries."+configNote)
	netdevPFCCount = gauge("gdr_rdma_port_pfc_enabled_priorities",
		"Number of priorities with priority flow control, from DCB (ieee_pfc) or the names of mlx5's statistics."+configNote)
	netdevPFC = gauge("gdr_rdma_port_pfc_enabled",
		"1 for a priority with priority flow control; the others have no series, see gdr_rdma_port_pfc_enabled_priorities."+configNote)
	netdevECNNotificationCount = gauge("gdr_rdma_port_ecn_notification_priorities",
		"Number of priorities for which the port answers ECN marks with congestion notifications (ecn/roce_np/enable, NVIDIA's out-of-tree driver only)."+configNote)
	netdevECNReactionCount = gauge("gdr_rdma_port_ecn_reaction_priorities",
		"Number of priorities for which the port slows down on congestion notifications (ecn/roce_rp/enable, NVIDIA's out-of-tree driver only)."+configNote)
	netdevECNNotification = gauge("gdr_rdma_port_ecn_notification_enabled",
		"1 if the port answers ECN marks with congestion notifications at that priority (ecn/roce_np/enable). Of PFC-enabled priorities only."+configNote)
	netdevECNReaction = gauge("gdr_rdma_port_ecn_reaction_enabled",
		"1 if the port slows down on congestion notifications at that priority (ecn/roce_rp/enable). Of PFC-enabled priorities only."+configNote)
)

// netdevStats are the families of ethtool statistics.
var netdevStats = func() map[*netdev.Meaning]*family {
	families := map[*netdev.Meaning]*family{}
	for _, m := range netdev.Meanings() {
		families[m] = netdevFamily(m)
	}
	return families
}()

// netdevFamily names a statistic. Its help has the drivers' names, by which
// people search, with N for a number.
func netdevFamily(m *netdev.Meaning) *family {
	name := "gdr_rdma_port_" + m.Name
	made := ""
	switch m.Unit {
	case netdev.UnitBytes:
		name = strings.TrimSuffix(name, "_bytes") + "_bytes"
	case netdev.UnitSeconds:
		name += "_seconds"
	case netdev.UnitMicroseconds:
		name, made = name+"_seconds", ", microseconds made seconds"
	case netdev.UnitPercent:
		name, made = name+"_ratio", ", per cent made a ratio"
	}
	vendors := strings.ReplaceAll(strings.Join(m.Vendors(), ", "), "%", "N")
	help := upperFirst(m.Help) + " (ethtool: " + vendors + made + ")." + slowNote
	if m.Rare {
		help += " No series while it is 0."
	}
	if m.Extra {
		help += " With --rdma.ethtool-all only."
	}
	if m.Gauge {
		return gauge(name, help)
	}
	return counter(name+"_total", help)
}

// showNetdev shows the network interface of an Ethernet port, whose labels must
// come from the cache.
func showNetdev(p *page, cache *labelCache, port labels, r *netdev.Reading) {
	if r.Name == "" {
		return
	}
	if r.MTU.Known {
		p.add(netdevMTU, float64(r.MTU.Value), port)
	}
	showNetdevStatus(p, port, r)
	showNetdevConfig(p, cache, port, r)
	for i := range r.Stats {
		s := &r.Stats[i]
		at := port
		if s.Meaning.Label != "" {
			at = cache.with(port, s.Meaning.Label, s.Label)
		}
		p.add(netdevStats[s.Meaning], s.Value, at)
	}
}

// showNetdevStatus shows which sources answer. One that failed shows nothing:
// its failure is counted elsewhere.
func showNetdevStatus(p *page, port labels, r *netdev.Reading) {
	if r.EthtoolStatus == netdev.StatusHidden {
		p.add(netdevHidden, 1, port)
	}
	for _, source := range []struct {
		family *family
		status netdev.Status
	}{{netdevEthtool, r.EthtoolStatus}, {netdevDCB, r.DCBStatus}} {
		if source.status == netdev.StatusRead || source.status == netdev.StatusUnsupported {
			p.addBool(source.family, source.status == netdev.StatusRead, port)
		}
	}
}

func showNetdevConfig(p *page, cache *labelCache, port labels, r *netdev.Reading) {
	trust := "unknown"
	if r.Trust != netdev.TrustUnknown {
		trust = string(r.Trust)
	}
	p.add(netdevTrust, 1, cache.with(port, "trust", trust))
	if r.PFC.Known {
		p.add(netdevPFCCount, float64(r.PFC.Value.Count()), port)
	}
	if r.ECNNotification.Known {
		p.add(netdevECNNotificationCount, float64(r.ECNNotification.Value.Count()), port)
	}
	if r.ECNReaction.Known {
		p.add(netdevECNReactionCount, float64(r.ECNReaction.Value.Count()), port)
	}
	for priority := range netdev.Priorities {
		if !r.PFC.Value.Has(priority) {
			continue
		}
		at := cache.with(port, "priority", strconv.Itoa(priority))
		p.add(netdevPFC, 1, at)
		if r.ECNNotification.Known {
			p.addBool(netdevECNNotification, r.ECNNotification.Value.Has(priority), at)
		}
		if r.ECNReaction.Known {
			p.addBool(netdevECNReaction, r.ECNReaction.Value.Has(priority), at)
		}
	}
}
