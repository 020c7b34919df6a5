package affinity

import "gdr_exporter/collector/sysread"

// Path is what the functions on a pair's path say together.
type Path struct {
	// BytesPerSecond is what the narrowest link carries as it is now, Possible at
	// the full speed and width of both its ends. Unknown if any link's is.
	BytesPerSecond, PossibleBytesPerSecond sysread.Maybe[float64]
	// Redirected: ACS redirects requests or completions in a port below the
	// common bridge. Unknown where nothing is in common but a host bridge: then
	// all goes through the root complex anyway; and where the tree is hidden.
	Redirected sysread.Maybe[bool]
	// IOMMU is what happens to the addresses of either end.
	IOMMU IOMMU
}

// IOMMU is how the addresses of a pair's functions are treated.
type IOMMU string

// Treatments.
const (
	IOMMUNone        IOMMU = "none"        // there is no IOMMU, or it is off
	IOMMUPassthrough IOMMU = "passthrough" // both domains are identity
	IOMMUTranslated  IOMMU = "translated"  // either domain is DMA or DMA-FQ
	IOMMUUnknown     IOMMU = "unknown"
)

// PathOf puts a pair's path together from what was read of the functions, by
// address. One that did not answer leaves unknown what depends on it.
func PathOf(pair *Pair, functions map[string]*Function) Path {
	gpu, nic := functions[pair.GPU], functions[pair.NIC]
	path := Path{IOMMU: translation(gpu, nic)}
	if pair.Distance == Unknown {
		return path
	}
	path.BytesPerSecond, path.PossibleBytesPerSecond = narrowest(pair, functions)
	path.Redirected = redirected(pair, functions)
	return path
}

// narrowest goes over the lower ends of all links of the path.
func narrowest(pair *Pair, functions map[string]*Function) (now, possible sysread.Maybe[float64]) {
	ends := append([]string{pair.GPU, pair.NIC}, pair.GPUSide...)
	first := true
	for _, address := range append(ends, pair.NICSide...) {
		f := functions[address]
		if f == nil {
			return sysread.Maybe[float64]{}, sysread.Maybe[float64]{}
		}
		if !f.Link.Lower {
			continue
		}
		carries, could := bytesPerSecond(f.Link.Speed, f.Link.Width), bytesPerSecond(f.Link.PossibleSpeed, f.Link.PossibleWidth)
		if first {
			now, possible, first = carries, could, false
			continue
		}
		now, possible = lesser(now, carries), lesser(possible, could)
	}
	return now, possible
}

// redirected is known if it is of all ports below the common bridge, or true of one.
func redirected(pair *Pair, functions map[string]*Function) sysread.Maybe[bool] {
	if pair.Common == "" || pair.Hidden || len(pair.GPUSide)+len(pair.NICSide) == 0 {
		return sysread.Maybe[bool]{}
	}
	all := true
	for _, side := range [][]string{pair.GPUSide, pair.NICSide} {
		for _, address := range side {
			redirects := sysread.Maybe[bool]{}
			if f := functions[address]; f != nil {
				redirects = f.Config.Redirects()
			}
			if redirects.Value {
				return redirects
			}
			all = all && redirects.Known
		}
	}
	return sysread.Maybe[bool]{Known: all}
}

func translation(gpu, nic *Function) IOMMU {
	if gpu == nil || nic == nil {
		return IOMMUUnknown
	}
	a, b := domain(&gpu.Node), domain(&nic.Node)
	switch {
	case a == IOMMUTranslated || b == IOMMUTranslated:
		return IOMMUTranslated
	case a == IOMMUUnknown || b == IOMMUUnknown:
		return IOMMUUnknown
	case a == IOMMUNone && b == IOMMUNone:
		return IOMMUNone
	}
	return IOMMUPassthrough
}

// domain tells how a function's addresses are treated: not at all without a group.
func domain(node *Node) IOMMU {
	switch {
	case node.IOMMUUnknown:
		return IOMMUUnknown
	case node.IOMMUGroup == "":
		return IOMMUNone
	case node.IOMMUType == "identity":
		return IOMMUPassthrough
	case node.IOMMUType == "DMA", node.IOMMUType == "DMA-FQ":
		return IOMMUTranslated
	}
	return IOMMUUnknown
}
