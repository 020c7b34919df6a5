package main

import "math"

const (
	// maxNodes bounds --nodes: each is a QEMU with memory and CPUs of its own.
	maxNodes = 8
	// maxRails bounds --rails: the networks are 10.99.K.0/24.
	maxRails = 8
	// defaultMTU allows RDMA packets of 4096 bytes, mostMTU is the largest.
	defaultMTU, leastMTU, mostMTU = 9000, 1280, 9000
)

// checkNodes checks how many VMs there are to be and what joins them.
func (r *rawFlags) checkNodes(opts *options) error {
	switch {
	case r.nodes < 1 || r.nodes > maxNodes:
		return usagef("--nodes %d: must be between 1 and %d", r.nodes, maxNodes)
	case r.rails < 1 || r.rails > maxRails:
		return usagef("--rails %d: must be between 1 and %d", r.rails, maxRails)
	case r.mtu < leastMTU || r.mtu > mostMTU:
		return usagef("--mtu %d: must be between %d and %d", r.mtu, leastMTU, mostMTU)
	case r.nodes == 1 && (r.railsSet || r.mtuSet):
		return usagef("--rails and --mtu are of the networks of --nodes")
	}
	opts.nodes = r.nodes
	if r.nodes == 1 {
		return nil
	}
	opts.rails, opts.mtu = r.rails, r.mtu
	if !r.devicesSet {
		opts.devices = r.rails
	}
	return nil
}

// checkForwards checks that there is a port on this machine for each of the nodes.
func (o *options) checkForwards() error {
	for i, f := range o.forwards {
		if f.host != 0 && int(f.host)+o.nodes-1 > math.MaxUint16 {
			return usagef("--forward %d:%d: there are no %d ports from %d on", f.host, f.guest, o.nodes, f.host)
		}
		for _, other := range o.forwards[:i] {
			if f.host != 0 && other.host != 0 && o.nodes > 1 && max(f.host, other.host)-min(f.host, other.host) < uint16(o.nodes) {
				return usagef("--forward %d:%d: %d nodes have ports from %d on already", f.host, f.guest, o.nodes, other.host)
			}
		}
	}
	return nil
}
