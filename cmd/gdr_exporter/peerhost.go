package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/peer/session"
)

// peerHost is this host as measurements between nodes see it: through the eyes of the
// prober.
type peerHost struct {
	*proberHost
	// off says why nothing is to be measured now, "" if it may be.
	off        func() string
	networks   string // sysfs class/net
	interfaces func() ([]net.Interface, error)

	looking sync.Mutex // held while the load is looked at
	loads   map[session.Port]*peerLoad
	last    *snapshot.Snapshot
}

// peerLoad is what was seen of a port's load.
type peerLoad struct {
	at   time.Time
	busy prober.Reason
}

// Times of looking at the load. A slot for a measurement of bandwidth is shorter than
// what the prober looks at before its runs, which take longer and move more.
const (
	peerLoadWindow = time.Second
	peerLoadAge    = 15 * time.Second
)

func newPeerHost(h *proberHost) *peerHost {
	never := func() string { return "" }
	return &peerHost{
		proberHost: h, off: never, networks: filepath.Join(h.config.sysfs, "class/net"), interfaces: net.Interfaces,
		loads: map[session.Port]*peerLoad{},
	}
}

// look is a Snapshot that is not older than a few seconds.
func (h *peerHost) look(ctx context.Context) *snapshot.Snapshot {
	ctx, cancel := context.WithTimeout(ctx, h.config.deadline)
	defer cancel()
	s := h.taker.Take(ctx, func(name string) bool { return slices.Contains(probeCollectors, name) })
	h.looking.Lock()
	defer h.looking.Unlock()
	h.last = s
	return s
}

// Rails are the ACTIVE ports that take part, each with the GPUs that are measured with
// it, in the order of the PCIe tree.
func (h *peerHost) Rails(ctx context.Context) []session.Rail {
	s := h.look(ctx)
	if s.RDMA == nil {
		return nil
	}
	gpus := h.gpusOf(s)
	var all []session.Rail
	at := map[string]string{}
	for _, unit := range s.RDMA.Units {
		if unit.Data == nil || !h.takesPart(s, unit.Name) {
			continue
		}
		at[unit.Name] = unit.Data.PCIAddress
		for i := range unit.Data.Ports {
			if p := &unit.Data.Ports[i]; p.State.Known && p.State.Value == portActive && p.Number > 0 {
				all = append(all, railOf(unit.Name, p, gpus[session.Port{Device: unit.Name, Port: p.Number}]))
			}
		}
	}
	slices.SortFunc(all, func(a, b session.Rail) int {
		return cmp.Or(strings.Compare(at[a.Device], at[b.Device]), len(a.Device)-len(b.Device), strings.Compare(a.Device, b.Device), a.Port.Port-b.Port.Port)
	})
	for i := range all {
		all[i].Order = i
	}
	h.address(all, s)
	return all
}

func railOf(device string, p *rdma.Port, gpus []string) session.Rail {
	r := session.Rail{Port: session.Port{Device: device, Port: p.Number}, LinkLayer: p.LinkLayer, State: p.State.Value, GPUs: gpus}
	if p.Rate.Known {
		r.Rate = float64(p.Rate.Value.BytesPerSecond)
	}
	return r
}

// takesPart decides by --peer.device; without it by role, unless no device has the
// role compute.
func (h *peerHost) takesPart(s *snapshot.Snapshot, device string) bool {
	if pattern := h.config.peer.devices; pattern != nil {
		return pattern.MatchString(device)
	}
	if s.Affinity == nil {
		return true
	}
	roles, compute := s.Affinity.Listing.Roles, false
	for _, role := range roles {
		compute = compute || role == "compute"
	}
	return !compute || roles[device] == "compute"
}

// gpusOf are the GPUs that the prober measures with each port.
func (h *peerHost) gpusOf(s *snapshot.Snapshot) map[session.Port][]string {
	gpus := map[session.Port][]string{}
	for _, c := range h.sighting(s).Pairs.Value {
		at := session.Port{Device: c.Device, Port: c.Port}
		gpus[at] = append(gpus[at], c.GPU)
	}
	return gpus
}

// address adds the ports' IP addresses.
func (h *peerHost) address(all []session.Rail, s *snapshot.Snapshot) {
	addresses := h.addresses(s)
	for i := range all {
		if address, has := addresses[all[i].Port]; has {
			all[i].IP = address.String()
		}
	}
}

// Addresses are the IP addresses of the ports' network interfaces: of IPoIB, or of the
// interface that RoCE goes through.
func (h *peerHost) Addresses(ctx context.Context) map[session.Port]netip.Addr {
	return h.addresses(h.look(ctx))
}

func (h *peerHost) addresses(s *snapshot.Snapshot) map[session.Port]netip.Addr {
	found := map[session.Port]netip.Addr{}
	if s.RDMA == nil {
		return found
	}
	interfaces, err := h.interfaces()
	if err != nil {
		return found // they are not known, and so are not tried
	}
	for _, unit := range s.RDMA.Units {
		if unit.Data == nil {
			continue
		}
		for i := range unit.Data.Ports {
			p := &unit.Data.Ports[i]
			name := p.Netdev
			if name == "" {
				name = h.ipoib(interfaces, unit.Data.PCIAddress, p.Number)
			}
			if address, has := h.addressOf(interfaces, name); has {
				found[session.Port{Device: unit.Name, Port: p.Number}] = address
			}
		}
	}
	return found
}

// ipoib is the interface of IP over InfiniBand of a port, "" if there is none: one of
// the same PCI function, whose dev_port is the port's number less one.
func (h *peerHost) ipoib(interfaces []net.Interface, function string, port int) string {
	const infiniband = "32" // ARPHRD_INFINIBAND
	if function == "" {
		return ""
	}
	for i := range interfaces {
		dir := filepath.Join(h.networks, interfaces[i].Name)
		if smallFile(filepath.Join(dir, "type")) != infiniband {
			continue
		}
		device, err := filepath.EvalSymlinks(filepath.Join(dir, "device"))
		if err == nil && filepath.Base(device) == function && smallFile(filepath.Join(dir, "dev_port")) == fmt.Sprint(port-1) {
			return interfaces[i].Name
		}
	}
	return ""
}

// smallFile is the first line of a file of sysfs, "" if it cannot be read.
func smallFile(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// addressOf is the address of an interface, or of the bond that it is a member of:
// one that is routed, IPv4 before IPv6.
func (h *peerHost) addressOf(interfaces []net.Interface, name string) (netip.Addr, bool) {
	i := slices.IndexFunc(interfaces, func(i net.Interface) bool { return i.Name == name })
	if i < 0 {
		return netip.Addr{}, false
	}
	addresses, err := interfaces[i].Addrs()
	if err != nil {
		return netip.Addr{}, false
	}
	var best netip.Addr
	for _, text := range addresses {
		prefix, err := netip.ParsePrefix(text.String())
		if err != nil || !prefix.Addr().IsGlobalUnicast() {
			continue
		}
		if address := prefix.Addr().Unmap(); !best.IsValid() || address.Is4() && !best.Is4() {
			best = address
		}
	}
	if best.IsValid() {
		return best, true
	}
	if master, err := os.Readlink(filepath.Join(h.networks, name, "master")); err == nil {
		if bond := filepath.Base(master); bond != name {
			return h.addressOf(slices.DeleteFunc(slices.Clone(interfaces), func(i net.Interface) bool { return i.Name == name }), bond)
		}
	}
	return netip.Addr{}, false
}

// Busy says what keeps this host from a session now.
func (h *peerHost) Busy(ctx context.Context, kind session.Kind, rail session.Port, gpu string) error {
	if why := h.off(); why != "" {
		return gated(why)
	}
	if kind == session.Ping {
		return nil // it is no load, and has to be made under load above all
	}
	if busy := h.busyPort(ctx, rail); busy != prober.ReasonNone {
		return gated("the port is not idle: " + string(busy))
	}
	if gpu == "" {
		return nil
	}
	return h.busyGPU(ctx, rail, gpu)
}

func gated(why string) error {
	return session.Fail(session.ReasonGate, session.StageAdmit, fmt.Errorf("%s: %w", why, syscall.EBUSY))
}

// busyPort looks at all ports at once, so that the sessions of one meeting wait for it
// together, and before they move data themselves.
func (h *peerHost) busyPort(ctx context.Context, rail session.Port) prober.Reason {
	h.looking.Lock()
	defer h.looking.Unlock()
	if seen := h.loads[rail]; seen != nil && time.Since(seen.at) < peerLoadAge {
		return seen.busy
	}
	ports := []session.Port{rail}
	if h.last != nil && h.last.RDMA != nil {
		for _, unit := range h.last.RDMA.Units {
			if unit.Data == nil || !h.takesPart(h.last, unit.Name) {
				continue
			}
			for i := range unit.Data.Ports {
				if at := (session.Port{Device: unit.Name, Port: unit.Data.Ports[i].Number}); at != rail && unit.Data.Ports[i].State.Value == portActive {
					ports = append(ports, at)
				}
			}
		}
	}
	busy := make([]prober.Reason, len(ports))
	var wg sync.WaitGroup
	for i, port := range ports {
		wg.Go(func() {
			busy[i] = prober.BusyPort(ctx, h.proberHost, prober.Pair{Device: port.Device, Port: port.Port}, peerLoadWindow)
		})
	}
	wg.Wait()
	for i, port := range ports {
		h.loads[port] = &peerLoad{time.Now(), busy[i]}
	}
	return h.loads[rail].busy
}

// busyGPU looks at the GPU's own use: another process on it is not in the way as long
// as it does nothing.
func (h *peerHost) busyGPU(ctx context.Context, rail session.Port, gpu string) error {
	pair := prober.Pair{GPU: gpu, Device: rail.Device, Port: rail.Port}
	if reason, err := h.Blocked(pair, uint64(h.config.schedule.buffer)); reason != prober.ReasonNone {
		return gated(fmt.Sprintf("%s: %v", reason, err))
	}
	if h.nvml == nil {
		if len(h.config.gpuStandIns) > 0 {
			return nil
		}
		return gated(errNoNVML.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, h.config.deadline)
	defer cancel()
	used, err := h.nvml.Utilization(ctx, gpu)
	switch {
	case err != nil:
		return gated("whether the GPU is idle is not known: " + err.Error())
	case used > prober.IdleGPU:
		return gated(fmt.Sprintf("the GPU is used: %.0f%%", 100*used))
	}
	return nil
}

// Lock takes the lock that all measurements on this host share.
func (h *peerHost) Lock(context.Context) (release func(), err error) {
	lock, err := loopback.TryLock(h.config.schedule.lock)
	if err != nil {
		reason := session.ReasonOther
		if errors.Is(err, loopback.ErrLocked) {
			reason = session.ReasonLocked
		}
		return nil, session.Fail(reason, session.StageAdmit, err)
	}
	return func() { _ = lock.Unlock() }, nil // it ends with the file, whatever closing says
}
