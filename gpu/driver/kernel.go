package driver

import (
	"strings"

	"gdr_exporter/collector/sysread"
)

// kernelRelease reads the running kernel's release, as uname -r prints it.
func (p *pass) kernelRelease() sysread.Maybe[string] {
	const source = "sys/kernel/osrelease"
	release, _ := p.version(deviceName, source, p.options.Procfs+"/"+source, dottedVersion)
	return release
}

// lockdown reads the lockdown mode; unknown where securityfs is not mounted or
// the kernel has no lockdown.
func (p *pass) lockdown() sysread.Maybe[string] {
	const source = "kernel/security/lockdown"
	text, o := p.text(deviceName, source, p.options.Sysfs+"/"+source)
	if o != found {
		return sysread.Maybe[string]{}
	}
	mode, is := parseLockdown(text)
	if !is {
		p.fail(deviceName, source, sysread.Invalid(text))
	}
	return sysread.Maybe[string]{Value: mode, Known: is}
}

// parseLockdown finds the mode in effect in "none [integrity] confidentiality".
func parseLockdown(text string) (mode string, is bool) {
	_, after, _ := strings.Cut(text, "[")
	mode, _, is = strings.Cut(after, "]")
	const letters = "abcdefghijklmnopqrstuvwxyz"
	if !is || mode == "" || len(mode) > 32 || strings.Trim(mode, letters) != "" {
		return "", false
	}
	return mode, true
}

// Origin is where a running RDMA stack comes from.
type Origin string

// Origins of the RDMA stack. Only some have the peer memory API: those of NVIDIA
// (MLNX_OFED, DOCA-OFED), and the inbox ones of Ubuntu and NVIDIA kernels.
const (
	OriginUnknown Origin = "unknown"
	OriginOFED    Origin = "ofed"  // built out of the kernel's tree
	OriginInbox   Origin = "inbox" // the kernel's own
)

// RDMACore is what the kernel says of ib_core.
type RDMACore struct {
	Origin     Origin
	Version    sysread.Maybe[string] // version: out-of-tree stacks only
	SrcVersion sysread.Maybe[string] // srcversion
}

// rdmaCore reads where ib_core comes from. Any sign of a build out of the tree
// is one: a version (the kernel's own ib_core declares none), the taint O, or
// the compatibility module of NVIDIA's stacks beside it.
func (p *pass) rdmaCore() sysread.Maybe[RDMACore] {
	if _, o := p.inode(moduleCore); o != found {
		return sysread.Maybe[RDMACore]{}
	}
	var core RDMACore
	var version outcome
	core.Version, version = p.version(moduleCore, "version", p.moduleFile(moduleCore, "version"), dottedVersion)
	core.SrcVersion, _ = p.version(moduleCore, "srcversion", p.moduleFile(moduleCore, "srcversion"), sourceVersion)
	text, taint := p.text(moduleCore, "taint", p.moduleFile(moduleCore, "taint"))
	_, compat := p.inode(moduleCompat)
	switch {
	case version == found || strings.Contains(text, "O") || compat == found:
		core.Origin = OriginOFED
	case version == failed || taint == failed || compat == failed:
		core.Origin = OriginUnknown
	default:
		core.Origin = OriginInbox
	}
	return sysread.Some(core)
}
