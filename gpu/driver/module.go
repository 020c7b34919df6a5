package driver

import (
	"bytes"
	"regexp"
	"slices"

	"gdr_exporter/collector/sysread"
)

// Modules are the driver's modules and their companions, the driver itself first.
var Modules = []string{"nvidia", "nvidia_uvm", "nvidia_modeset", "gdrdrv", "nvidia_fs"}

// Modules of the RDMA stack.
const (
	moduleCore   = "ib_core"
	moduleUverbs = "ib_uverbs"
	moduleCompat = "mlx_compat" // of MLNX_OFED and DOCA-OFED only
)

// State is a module's state.
type State string

// States of a module (/sys/module/<name>/initstate). Only a live or built-in
// one is at work; one that stays coming or going for seconds is suspect.
const (
	StateUnknown State = ""
	StateAbsent  State = "absent" // no such directory
	StateLive    State = "live"
	StateComing  State = "coming"
	StateGoing   State = "going"
	StateBuiltin State = "builtin"
)

// Module is what /sys/module says of a kernel module.
type Module struct {
	Name    string
	State   State
	Present bool                  // its directory is there, whatever its state
	Version sysread.Maybe[string] // version; unknown if the module declares none
	inode   uint64                // of its directory: a module loaded again has another
}

// Loaded reports whether the module is at work; unknown if its state is.
func (m *Module) Loaded() sysread.Maybe[bool] {
	if m.State == StateUnknown {
		return sysread.Maybe[bool]{}
	}
	return sysread.Some(m.State == StateLive || m.State == StateBuiltin)
}

func (p *pass) moduleFile(name, file string) string {
	return p.options.Sysfs + "/module/" + name + "/" + file
}

// inode returns the number of a module's directory.
func (p *pass) inode(name string) (inode uint64, o outcome) {
	path := p.options.Sysfs + "/module/" + name
	o = p.try(name, "module/"+name, path, func() error {
		info, err := p.io.Stat(path)
		inode = info.Inode
		if err == nil && info.Kind != sysread.KindDir {
			return errNoDirectory
		}
		return err
	})
	return inode, o
}

// module reads a module's state and version.
func (p *pass) module(name string) Module {
	m := Module{Name: name}
	var o outcome
	switch m.inode, o = p.inode(name); o {
	case absent:
		m.State = StateAbsent
		return m
	case failed:
		return m
	}
	m.State = p.moduleState(name, m.inode)
	m.Present = m.State != StateAbsent
	m.Version, _ = p.version(name, "version", p.moduleFile(name, "version"), versionForm(name))
	return m
}

// versionForm is the form of a module's version. The driver's own modules have
// the driver's, the others versions of their own.
func versionForm(module string) *regexp.Regexp {
	switch module {
	case "nvidia", "nvidia_uvm", "nvidia_modeset", moduleNvidiaPeermem:
		return driverVersion
	}
	return plainVersion
}

// moduleState reads the state of a module that has a directory.
func (p *pass) moduleState(name string, inode uint64) State {
	text, o := p.text(name, "initstate", p.moduleFile(name, "initstate"))
	switch o {
	case failed:
		return StateUnknown
	case absent:
		return p.stateless(name, inode)
	}
	switch state := State(text); state {
	case StateLive, StateComing, StateGoing:
		return state
	}
	p.fail(name, "initstate", sysread.Invalid(text))
	return StateUnknown
}

// maxModuleList bounds /proc/modules, which has some 100 bytes a module.
const maxModuleList = 1 << 20

// stateless tells what a module directory without initstate is. A module that
// comes or goes is without it for a moment, but stays in /proc/modules for as
// long as it has a directory; one that is built in never is there.
func (p *pass) stateless(name string, inode uint64) State {
	path := p.options.Procfs + "/modules"
	listed := false
	o := p.try(name, "modules", path, func() error {
		text, err := p.io.ReadLines(path, maxModuleList, ours)
		listed = err == nil && lists(text, name)
		return err
	})
	if listed || o == failed {
		return StateUnknown
	}
	switch now, o := p.inode(name); {
	case o == absent:
		return StateAbsent
	case now != inode || o == failed:
		return StateUnknown
	}
	return StateBuiltin
}

// ours selects the lines of /proc/modules about modules that are looked for.
func ours(line []byte) bool {
	about := func(name string) bool { return names(line, name) }
	return slices.ContainsFunc(Modules, about) || slices.ContainsFunc(PeerModules, about)
}

// lists reports whether /proc/modules has a line of the module.
func lists(text []byte, name string) bool {
	for line := range bytes.Lines(text) {
		if names(line, name) {
			return true
		}
	}
	return false
}

// names reports whether a line of /proc/modules is about the module.
func names(line []byte, name string) bool {
	first, _, _ := bytes.Cut(line, []byte(" "))
	return string(first) == name
}
