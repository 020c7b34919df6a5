package nccllog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// report judges what was found.
func (p *parser) report(options Options) *Report {
	r := &Report{
		NCCLVersions: p.nccl.list(), CUDAVersions: p.cuda.list(), DriverVersions: p.driver.list(), Plugins: p.plugins.list(), Networks: p.networks.list(),
		Warnings: p.warnings.list(), Summary: p.summary, Input: p.input, Findings: []Finding{}, Benchmarks: []Benchmark{}, NodeFindings: []string{},
		Devices: rows(p.devices), Refusals: rows(p.refusals), Settings: rows(p.settings), Failures: rows(p.errors), Rails: rows(p.rails),
	}
	r.Input.Hosts, r.Input.Processes = len(p.hosts.rows), len(p.processes.rows)
	r.Summary.DMABUF = uint64(len(p.dmabuf.rows))
	pairs := p.nodePairs()
	r.Pairs = rows(pairs)
	for i := range r.Rails {
		r.Connections.add(&r.Rails[i])
	}
	// What found no place in the table of rails is not judged either.
	r.Connections.Unclear = p.unclear + p.rails.leftOut
	r.Connections.Local = p.local.list()
	for i := range p.benchmarks.list {
		b := p.benchmarks.list[i]
		b.Meaning = b.explain()
		r.Benchmarks = append(r.Benchmarks, b)
	}
	for _, finding := range options.Findings {
		r.NodeFindings = append(r.NodeFindings, clean(finding))
	}
	r.LeftOut = p.leftOut(pairs.leftOut)
	for i := range r.Devices {
		if r.Devices[i].Methods == nil {
			r.Devices[i].Methods = []string{}
		}
	}
	r.sort()
	p.judge(r)
	return r
}

func rows[K comparable, V any](b *bounded[K, V]) []V {
	list := make([]V, 0, len(b.rows))
	for _, row := range b.rows {
		list = append(list, *row)
	}
	return list
}

func (c *Connections) add(r *Rail) {
	c.Direct += r.Direct
	c.Staged += r.Staged
	c.Socket += r.Socket
	c.PXN += r.PXN
}

// leftOut are the tables that were too small.
func (p *parser) leftOut(pairs uint64) map[string]uint64 {
	found := map[string]uint64{}
	for name, count := range map[string]uint64{
		"hosts": p.hosts.leftOut, "processes": p.processes.leftOut, "ranks": p.ranks.leftOut, "devices": p.devices.leftOut, "rails": p.rails.leftOut,
		"node_pairs": p.pairs.leftOut + pairs, "refusals": p.refusals.leftOut, "settings": p.settings.leftOut, "failures": p.errors.leftOut,
		"warnings": p.warnings.leftOut, "plugins": p.plugins.leftOut, "benchmarks": p.benchmarks.leftOut, "dmabuf_gpus": p.dmabuf.leftOut,
		"nccl_versions": p.nccl.leftOut, "networks": p.networks.leftOut,
	} {
		if count > 0 {
			found[name] = count
		}
	}
	return found
}

// sort puts what matters first, and the rest in an order that does not change from
// run to run.
func (r *Report) sort() {
	slices.SortFunc(r.Rails, func(a, b Rail) int {
		return cmp.Or(cmp.Compare(min(b.Staged, 1), min(a.Staged, 1)), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Device, b.Device), cmp.Compare(a.Network, b.Network), cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.GPU, b.GPU))
	})
	slices.SortFunc(r.Pairs, func(a, b Pair) int {
		return cmp.Or(cmp.Compare(b.SendStaged+b.ReceiveStaged, a.SendStaged+a.ReceiveStaged), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	slices.SortFunc(r.Devices, func(a, b Device) int { return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Name, b.Name)) })
	slices.SortFunc(r.Refusals, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Device, b.Device))
	})
	slices.SortFunc(r.Settings, func(a, b Setting) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value)) })
	slices.SortFunc(r.Failures, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Vendor, b.Vendor))
	})
}

// judge sets verdict, headline, severity and findings.
func (p *parser) judge(r *Report) {
	severity := p.verdict(r)
	for i := range r.Benchmarks {
		if b := &r.Benchmarks[i]; b.corrupt() {
			r.find(SeverityCritical, fmt.Sprintf("data arrived wrong: %s counts %d wrong values, out of bounds: %s", cmp.Or(b.Collective, "nccl-tests"), b.WrongValues, cmp.Or(b.OutOfBounds, "not said")),
				"take the nodes out of service and run the same test on halves of them; look at Xid, ECC and AER errors, and at ACS")
		}
	}
	if p.benchmarks.spill.corrupt() {
		r.find(SeverityCritical, "data arrived wrong in a table of nccl-tests that is not shown", "run the tests one by one")
	}
	if len(r.Findings) > 0 {
		r.Headline = "DATA ARRIVED WRONG in nccl-tests. " + r.Headline
	}
	if slices.ContainsFunc(r.Failures, func(f Failure) bool { return f.Kind == FailureCompletion }) {
		r.Headline += " The job met errors on the network."
	}
	if r.Verdict == VerdictStaged {
		p.whyStaged(r)
	}
	if r.Verdict == VerdictSocket {
		p.whySocket(r)
	}
	r.failures()
	r.settings()
	r.versions()
	r.completeness()
	rank := []Severity{SeverityCritical, SeverityWarning, SeverityInfo}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Compare(slices.Index(rank, a.Severity), slices.Index(rank, b.Severity))
	})
	r.Severity = severity
	for _, finding := range r.Findings {
		switch {
		case finding.Severity == SeverityCritical:
			r.Severity = SeverityCritical
		case finding.Severity == SeverityWarning && r.Severity == SeverityFine:
			r.Severity = SeverityWarning
		}
	}
}

func (r *Report) find(severity Severity, seen, hint string) {
	r.Findings = append(r.Findings, Finding{severity, seen, hint})
}

// verdict says how the job's data goes, and how bad that is by itself.
func (p *parser) verdict(r *Report) Severity {
	c := &r.Connections
	over := r.overNetworks()
	switch {
	case c.Staged > 0 && c.Staged <= p.tails && c.Direct > 0:
		return r.unknown(fmt.Sprintf("The log's lines are cut: %d connections look staged, and as many lines begin with the missing end of a direct one.", c.Staged))
	case c.Staged > 0 && c.Direct > 0:
		r.Verdict = VerdictStaged
		r.Headline = fmt.Sprintf("GPUDirect RDMA is used on some connections only: %d of %d over %s are staged through host memory%s.", c.Staged, c.Staged+c.Direct, over, r.where())
		return SeverityWarning
	case c.Staged > 0:
		r.Verdict = VerdictStaged
		r.Headline = fmt.Sprintf("GPUDirect RDMA is NOT used: all %d connections over %s are staged through host memory.", c.Staged, over)
		if r.verbs() {
			return SeverityCritical
		}
		return SeverityWarning
	case c.Socket > 0 && c.Direct > 0:
		r.Verdict = VerdictSocket
		r.Headline = fmt.Sprintf("%d of %d connections between nodes go over TCP; the others use GPUDirect RDMA.", c.Socket, c.Socket+c.Direct)
		return SeverityWarning
	case c.Socket > 0:
		r.Verdict = VerdictSocket
		r.Headline = fmt.Sprintf("GPUDirect RDMA is NOT used: all %d connections between nodes go over TCP (NET/Socket).", c.Socket)
		if len(r.Devices) > 0 {
			return SeverityCritical
		}
		return SeverityWarning
	case c.Direct > 0:
		r.Verdict = VerdictDirect
		r.Headline = fmt.Sprintf("GPUDirect RDMA is used: all %d connections over %s are direct.", c.Direct, over)
		return SeverityFine
	default:
		return r.bySummary()
	}
}

// bySummary judges a log without any line about a connection between nodes.
func (r *Report) bySummary() Severity {
	s := &r.Summary
	switch {
	case s.RingsStaged > 0:
		r.Verdict = VerdictStaged
		r.Headline = fmt.Sprintf("GPUDirect RDMA is not used by all rings: NCCL says so %d times (GDR 0); the connections themselves are not in the log.", s.RingsStaged)
		return SeverityWarning
	case s.RingsDirect > 0 && s.MostNodes > 1:
		r.Verdict = VerdictDirect
		r.Headline = fmt.Sprintf("GPUDirect RDMA is used by all rings, as NCCL says %d times (GDR 1); the connections themselves are not in the log.", s.RingsDirect)
		return SeverityFine
	case r.Connections.Unclear > 0:
		return r.unknown("Not judged: the lines about connections are cut off before they say how the data goes.")
	case r.Input.NCCLLines == 0:
		return r.unknown("Not judged: this has no output of NCCL_DEBUG=INFO. Run the job with NCCL_DEBUG=INFO.")
	case len(r.Connections.Local) > 0:
		return r.unknown("Not judged: all connections in this log are within a node, which needs no GPUDirect RDMA.")
	default:
		return r.unknown("Not judged: the log ends before any connection is made, or NCCL_DEBUG_SUBSYS leaves out INIT and NET.")
	}
}

func (r *Report) unknown(headline string) Severity {
	r.Verdict, r.Headline = VerdictUnknown, headline
	return SeverityNotJudged
}

// overNetworks names the networks that connections use, TCP aside.
func (r *Report) overNetworks() string {
	names := map[string]bool{}
	for i := range r.Rails {
		if !isSocket(r.Rails[i].Network) {
			names[r.Rails[i].Network] = true
		}
	}
	sorted := slices.Sorted(maps.Keys(names))
	if len(sorted) > 4 {
		sorted = append(sorted[:4], "others")
	}
	return strings.Join(sorted, ", ")
}

// verbs says whether staged connections use InfiniBand or RoCE, where GPUDirect
// RDMA is to be expected. Other fabrics have NICs that never had it.
func (r *Report) verbs() bool {
	return slices.ContainsFunc(r.Rails, func(rail Rail) bool {
		return rail.Staged > 0 && (strings.Contains(rail.Network, "IB") || strings.Contains(rail.Network, "RDMA") || strings.Contains(rail.Network, "UCX") || strings.HasPrefix(rail.Network, "CollNet"))
	})
}

// where says what the staged connections have in common that the direct ones have
// not, or how far they are spread.
func (r *Report) where() string {
	var staged, direct scope
	for i := range r.Rails {
		if r.Rails[i].Staged > 0 {
			staged.add(&r.Rails[i])
		}
		if r.Rails[i].Direct > 0 {
			direct.add(&r.Rails[i])
		}
	}
	host, device := staged.hosts.only(), staged.devices.only()
	switch {
	case len(staged.rails) == 1 && !direct.rails[host+" "+device]:
		return fmt.Sprintf(", all of them through %s on %s (one bad rail)", device, cmp.Or(host, "an unnamed host"))
	case device != "" && !direct.devices[device]:
		return fmt.Sprintf(", all of them through %s, on %d nodes (one bad rail)", device, len(staged.hosts))
	case host != "" && !direct.hosts[host]:
		return fmt.Sprintf(", all of them on %s (one bad node)", host)
	case staged.directions.only() != "" && !direct.directions[staged.directions.only()]:
		return fmt.Sprintf(", all of them in the direction %s", staged.directions.only())
	default:
		return fmt.Sprintf(", through %d NICs on %d nodes", len(staged.rails), len(staged.hosts))
	}
}

// set is a set of names.
type set map[string]bool

// only is the one name of a set, "" if there are several.
func (s set) only() string {
	if len(s) != 1 {
		return ""
	}
	for name := range s {
		return name
	}
	return ""
}

// scope is where connections are.
type scope struct{ hosts, devices, rails, directions set }

func (s *scope) add(r *Rail) {
	if s.hosts == nil {
		s.hosts, s.devices, s.rails, s.directions = set{}, set{}, set{}, set{}
	}
	s.hosts[r.Host], s.devices[r.Device], s.rails[r.Host+" "+r.Device], s.directions[r.Direction] = true, true, true, true
}
