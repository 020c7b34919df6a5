package diagnosis

import (
	"fmt"

	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// clientGPU is the client of the RDMA stack that is GPU memory.
const clientGPU = "nv_mem"

// gone says why neither method can register GPU memory now, nil if one may: what
// both of them need is not there. What is not known is not gone, and a standing
// run that registered by a method says more than any file.
func (n *node) gone(p *way) []string {
	c := p.standing
	if c == nil && p.status != nil {
		c = p.status.Registration
	}
	if worked(c, loopback.MethodPeermem) || worked(c, loopback.MethodDMABuf) {
		return nil
	}
	// One that never was loaded is none that jobs have lost: nobody can say then.
	if n.unloaded() && (n.history.loaded || n.history.wasDirect(p)) {
		return []string{driverAbsent}
	}
	peermem := n.peermemGone()
	if peermem == "" {
		return nil
	}
	if dmabuf := n.dmabufGone(p); dmabuf != "" {
		return []string{peermem, dmabuf}
	}
	return nil
}

const driverAbsent = "the NVIDIA driver is not loaded"

// unloaded reports whether the driver is known not to be loaded.
func (n *node) unloaded() bool {
	return n.driver != nil && n.driver.Loaded.Known && !n.driver.Loaded.Value
}

func worked(c *prober.Completed, method loopback.Method) bool {
	r := registration(c, method)
	return r != nil && r.Err == nil
}

// peermemGone says why nothing can be registered through peer memory, "" if
// something may.
func (n *node) peermemGone() string {
	if n.driver == nil || len(n.driver.Peermem) == 0 {
		return ""
	}
	var loaded *driver.PeerModule
	for i := range n.driver.Peermem {
		m := &n.driver.Peermem[i]
		switch at := m.Loaded(); {
		case !at.Known:
			return ""
		case at.Value:
			loaded = m
		}
	}
	if loaded == nil {
		return "peermem: neither nvidia_peermem nor nv_peer_mem is loaded"
	}
	return n.unregistered(loaded)
}

// unregistered says that the RDMA stack does not know a loaded module, "" if it
// does or if that cannot be told. Of two signs that say the opposite, the client
// is what counts.
func (n *node) unregistered(m *driver.PeerModule) string {
	peers := &n.driver.MemoryPeers
	switch {
	case peers.Present.Value && hasClient(peers, clientGPU):
		return ""
	case peers.Present.Value && peers.Omitted == 0:
		return fmt.Sprintf("peermem: %s is loaded and not registered with the RDMA stack (no memory_peers/%s)", m.Name, clientGPU)
	case m.Hooked.Known && !m.Hooked.Value:
		return fmt.Sprintf("peermem: %s is loaded and does not use the RDMA stack that is running", m.Name)
	}
	return ""
}

func hasClient(peers *driver.MemoryPeers, name string) bool {
	for i := range peers.Clients {
		if peers.Clients[i].Name == name {
			return true
		}
	}
	return false
}

// dmabufGone says why no dma-buf of the GPU can be registered with the NIC, "" if
// one may be. It is known from runs, whose results stand for the same driver,
// kernel and firmware only.
func (n *node) dmabufGone(p *way) string {
	if attributes, known := n.attributes(p.GPU); known && !attributes.DMABuf {
		return "dma-buf: the GPU's driver does not export its memory (attribute 124 is 0)"
	}
	// What a run found of the pair itself says more than the test of the NIC.
	if tried, known := n.history.pairDMABuf(n, p); known {
		if tried != "" {
			return "dma-buf: registering it failed (" + tried + ")"
		}
		return ""
	}
	if supports, known := n.history.nicDMABuf(n, p.Device); known && !supports {
		return "dma-buf: NIC, its driver or the kernel cannot register one (test with no dma-buf)"
	}
	return ""
}

// attributes are what libcuda said of a GPU under the driver that is loaded.
func (n *node) attributes(gpu string) (loopback.LedgerGPU, bool) {
	if n.ledger == nil {
		return loopback.LedgerGPU{}, false
	}
	attributes, known := n.ledger.GPUs[gpu]
	if !known || n.driver == nil || !n.driver.Version.Known || n.driver.Version.Value != attributes.DriverVersion {
		return loopback.LedgerGPU{}, false
	}
	return attributes, true
}
