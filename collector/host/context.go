package host

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"gdr_exporter/collector/sysread"
)

// missing reports whether an error says that there is nothing, or nothing for
// this process: what is behind it is not known, and nothing is wrong.
func missing(err error) bool {
	return sysread.Absent(err) || sysread.Vanished(err) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ESRCH)
}

// initialPID is the link of the pid namespace that the kernel begins with
// (PROC_PID_INIT_INO in include/linux/proc_ns.h).
const initialPID = "pid:[4026531836]"

// maxStatus bounds /proc/self/status and /proc/self/cgroup.
const maxStatus = 1 << 16

// seesHost reports whether procfs shows the processes of the host: there, and
// nowhere else, process 2 is the kernel's thread daemon. Where hidepid hides it
// from this process, other processes are hidden too.
func (p *pass) seesHost() bool {
	text, err := p.io.ReadLines(p.options.Procfs+"/2/comm", maxStatus, func(line []byte) bool { return strings.TrimSpace(string(line)) == "kthreadd" })
	return p.ok("2/comm", err) && len(text) > 0
}

// context reads where the exporter runs.
func (p *pass) context(hostProcs bool) Context {
	c := Context{}
	p.status(&c)
	if link, ok := p.link("self/ns/pid", p.options.Self+"/ns/pid"); ok {
		c.HostPID = sysread.Some(link == initialPID)
	}
	sameMounts := sysread.Maybe[bool]{}
	if hostProcs {
		c.HostNetwork = p.sharesWithFirst("net")
		sameMounts = p.sharesWithFirst("mnt")
	}
	c.Container = p.container(c.HostPID, sameMounts)
	if soft, _, err := readMemlock(&p.io, p.options.Self+"/limits"); p.ok("self/limits", err) {
		c.Memlock = sysread.Some(soft)
	}
	if text, ok := p.text("module/ib_core/parameters/netns_mode", p.options.Sysfs+"/module/ib_core/parameters/netns_mode"); ok {
		switch text {
		case "Y", "N":
			c.SharedRDMA = sysread.Some(text == "Y")
		default:
			p.fail("module/ib_core/parameters/netns_mode", sysread.Invalid(text))
		}
	}
	return c
}

// sharesWithFirst reports whether the exporter is in a namespace of the host's
// first process, whose links are for the eyes of root.
func (p *pass) sharesWithFirst(kind string) sysread.Maybe[bool] {
	first, ok := p.link("1/ns/"+kind, p.options.Procfs+"/1/ns/"+kind)
	if !ok {
		return sysread.Maybe[bool]{}
	}
	own, ok := p.link("self/ns/"+kind, p.options.Self+"/ns/"+kind)
	if !ok {
		return sysread.Maybe[bool]{}
	}
	return sysread.Some(own == first)
}

func (p *pass) link(source, path string) (string, bool) {
	target, err := p.io.Readlink(path)
	return target, p.ok(source, err)
}

// statusLines are the lines of /proc/self/status that are read.
var statusLines = []string{"Uid:", "CapEff:"}

// status reads the exporter's own user id and capabilities.
func (p *pass) status(c *Context) {
	text, err := p.io.ReadLines(p.options.Self+"/status", maxStatus, func(line []byte) bool {
		return slices.ContainsFunc(statusLines, func(name string) bool { return strings.HasPrefix(string(line), name) })
	})
	if !p.ok("self/status", err) {
		return
	}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		switch {
		case name == "Uid" && len(fields) == 4: // real, effective, saved, file system
			c.Root = sysread.Some(fields[1] == "0")
		case name == "CapEff" && len(fields) == 1:
			if set, err := strconv.ParseUint(fields[0], 16, 64); err == nil {
				c.Capabilities = sysread.Some(set)
				continue
			}
			p.fail("self/status", sysread.Invalid(line))
		default:
			p.fail("self/status", sysread.Invalid(line))
		}
	}
}

// containerGroup matches a control group of a container: of Kubernetes, Docker,
// Podman, CRI-O, containerd, LXC. A docker.service is none.
var containerGroup = regexp.MustCompile(`(^|[/:-])(kubepods|libpod|lxc(\.payload)?|machine\.slice/.*nspawn|(docker|crio|cri-containerd|libpod)(-|/)[0-9a-f]{12})`)

// container says whether the exporter is in a container, as far as that is sure.
// A service with namespaces of its own is not in one.
func (p *pass) container(hostPID, sameMounts sysread.Maybe[bool]) sysread.Maybe[bool] {
	for _, mark := range []string{"/.dockerenv", "/run/.containerenv"} {
		if p.io.Access(p.options.Root+mark) == nil {
			return sysread.Some(true)
		}
	}
	text, err := p.io.ReadLines(p.options.Self+"/cgroup", maxStatus, nil)
	known := p.ok("self/cgroup", err)
	groups := strings.TrimSpace(string(text))
	switch {
	case known && slices.ContainsFunc(strings.Split(groups, "\n"), containerGroup.MatchString):
		return sysread.Some(true)
	case sameMounts.Value:
		return sysread.Some(false)
	case known && hostPID.Value && strings.HasSuffix(groups, ".service"):
		return sysread.Some(false)
	}
	return sysread.Maybe[bool]{}
}
