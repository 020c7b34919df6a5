package diagnosis

// Rules about communication libraries.
const idLibraryRefuses = "library_refuses"

var libraryRules = []rule{
	{Rule: Rule{idLibraryRefuses, SeverityWarning, "a library that jobs use would not use GPUDirect RDMA",
		"The path works and jobs stage all the same: use a library that knows the markers of this node (NCCL 2.23.4 or later knows nvidia_peermem without memory_peers), or change what its reason names."},
		judge: judgeLibraries},
}

type generation struct{ library, rule string }

// used are the generations of libraries that the site names, or that running jobs
// have loaded.
func (n *node) used() map[generation]string {
	used := map[generation]string{}
	for _, text := range n.Libraries {
		if library, rule, err := ParseLibrary(text); err == nil {
			used[generation{library, rule}] = "--libraries"
		}
	}
	if n.processes == nil {
		return used
	}
	for i := range n.processes.Jobs {
		version := n.processes.Jobs[i].NCCL.Value
		if rule, known := RuleOf(LibraryNCCL, version); version != "" && known {
			used[generation{LibraryNCCL, rule}] = "running, NCCL " + version
		}
	}
	return used
}

// judgeLibraries minds refusals where GPUDirect RDMA works: elsewhere other rules
// say why it does not. Of one generation the first pair stands for all.
func judgeLibraries(n *node, j *judging) {
	used := n.used()
	if len(used) == 0 || len(n.choices) == 0 {
		return
	}
	direct := map[pairKey]bool{}
	n.expected(func(p *way) { direct[p.key()] = p.State == StateDirect || p.State == StateDegraded })
	told := map[generation]bool{}
	for i := range n.choices {
		c := &n.choices[i]
		g := generation{c.Library, c.Rule}
		if source, is := used[g]; is && !c.Uses && !told[g] && direct[pairKey{c.GPU, c.Device}] {
			told[g] = true
			j.find(Subject{GPU: c.GPU, Device: c.Device, Other: c.Library + " " + c.Rule}, "%s %s (%s): %s", c.Library, c.Rule, source, c.Reason)
		}
	}
}
