package driver

import (
	"slices"
	"strconv"

	"gdr_exporter/collector/sysread"
)

// Peer memory modules. They exclude each other.
const (
	moduleNvidiaPeermem = "nvidia_peermem" // part of the driver since R470
	moduleNvPeerMem     = "nv_peer_mem"    // the older one, with versions of its own
)

// PeerModules are the modules that let RDMA devices register GPU memory.
var PeerModules = []string{moduleNvidiaPeermem, moduleNvPeerMem}

// peerParameters are the parameters of nvidia_peermem, read-only.
var peerParameters = []string{"peerdirect_support", "persistent_api_support"}

// PeerModule is what is known of a peer memory module.
type PeerModule struct {
	Module
	// References is refcnt. Each memory region registered through the module
	// holds one, as its source suggests.
	References sysread.Maybe[uint64]
	// Parameters are parameters/*, those that are there.
	Parameters []Parameter
	// OnDisk reports whether modprobe would find the module for the running
	// kernel (modules.dep); unknown if no list that must name it can be seen.
	OnDisk sysread.Maybe[bool]
	// Hooked reports whether the loaded module is among the holders of ib_core
	// or ib_uverbs, that is whether it uses the RDMA stack that is running.
	Hooked sysread.Maybe[bool]
}

// Parameter is a module's numeric parameter.
type Parameter struct {
	Name  string
	Value int64
}

// VersionMismatch reports whether nvidia_peermem was built with another driver
// than the one that is loaded; unknown unless both versions are known. The
// older module has versions of its own, which say nothing.
func (m *PeerModule) VersionMismatch(driver sysread.Maybe[string]) sysread.Maybe[bool] {
	if m.Name != moduleNvidiaPeermem || !m.Version.Known || !driver.Known {
		return sysread.Maybe[bool]{}
	}
	return sysread.Some(m.Version.Value != driver.Value)
}

func (p *pass) peerModule(name string) PeerModule {
	m := PeerModule{Module: p.module(name)}
	if !m.Present {
		return m
	}
	// A module on its way out counts below zero.
	if references, known := p.signed(name, "refcnt"); known && references >= 0 {
		m.References = sysread.Some(uint64(references))
	}
	if name != moduleNvidiaPeermem {
		return m
	}
	for _, parameter := range peerParameters {
		if value, known := p.signed(name, "parameters/"+parameter); known {
			m.Parameters = append(m.Parameters, Parameter{parameter, value})
		}
	}
	return m
}

// signed reads a module's file that holds a signed number.
func (p *pass) signed(module, file string) (value int64, known bool) {
	text, o := p.text(module, file, p.moduleFile(module, file))
	if o != found {
		return 0, false
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		p.fail(module, file, sysread.Invalid(text))
		return 0, false
	}
	return value, true
}

// hooked tells of each peer memory module whether the RDMA stack lists it.
// Which module of the stack has the peer memory functions differs.
func (p *pass) hooked() map[string]sysread.Maybe[bool] {
	var holders []string
	known := false
	for _, module := range []string{moduleCore, moduleUverbs} {
		names, o := p.names(module, "holders", p.moduleFile(module, "holders"))
		if o == failed {
			return nil // it may be the one that counts
		}
		known = known || o == found
		holders = append(holders, names...)
	}
	if !known {
		return nil
	}
	all := map[string]sysread.Maybe[bool]{}
	for _, module := range PeerModules {
		all[module] = sysread.Some(slices.Contains(holders, module))
	}
	return all
}

// maxClients bounds the clients read of memory_peers. There are up to three:
// nv_mem, nv_mem_nc and nvidia-fs.
const maxClients = 8

// MemoryPeers is the directory in which an RDMA stack with the peer memory API
// shows its clients. Its absence says nothing: the stacks of Ubuntu and NVIDIA
// kernels have the API without the directory.
type MemoryPeers struct {
	Present sysread.Maybe[bool] // /sys/kernel/mm/memory_peers
	Clients []Client            // by name
	Omitted int                 // clients beyond those read
}

// Files of a client that count since it was registered. Registered minus
// deregistered is what is registered now, so what goes is read before what
// comes: the difference never is negative.
const (
	FileDeallocMRs = "num_dealloc_mrs"
	FileDeregPages = "num_dereg_pages"
	FileDeregBytes = "num_dereg_bytes"
	FileAllocMRs   = "num_alloc_mrs"
	FileRegPages   = "num_reg_pages"
	FileRegBytes   = "num_reg_bytes"
	FileCallbacks  = "num_free_callbacks"
)

// ClientFiles are the counters of a client, in the order in which they are
// read. Older stacks have only those of allocated regions, pages and callbacks.
var ClientFiles = []string{
	FileDeallocMRs, FileDeregPages, FileDeregBytes, FileAllocMRs, FileRegPages, FileRegBytes, FileCallbacks,
}

// Client is a peer memory client, /sys/kernel/mm/memory_peers/<name>.
type Client struct {
	Name string
	// Version is the file version; for nv_mem it is the peer memory module's.
	Version sysread.Maybe[string]
	// Counters are the ClientFiles that are there.
	Counters map[string]uint64
}

// LiveMRs is the number of memory regions registered now, where both counters
// are there.
func (c *Client) LiveMRs() sysread.Maybe[uint64] {
	came, known := c.Counters[FileAllocMRs]
	went, both := c.Counters[FileDeallocMRs]
	if !known || !both || went > came {
		return sysread.Maybe[uint64]{}
	}
	return sysread.Some(came - went)
}

const memoryPeersDir = "kernel/mm/memory_peers"

func (p *pass) memoryPeers() MemoryPeers {
	var peers MemoryPeers
	names, o := p.names(deviceName, memoryPeersDir, p.options.Sysfs+"/"+memoryPeersDir)
	if o == failed {
		return peers
	}
	peers.Present = sysread.Some(o == found)
	peers.Omitted = max(len(names)-maxClients, 0)
	for _, name := range names[:len(names)-peers.Omitted] {
		peers.Clients = append(peers.Clients, p.client(name))
	}
	return peers
}

func (p *pass) client(name string) Client {
	source := memoryPeersDir + "/" + name + "/"
	path := p.options.Sysfs + "/" + source
	c := Client{Name: name, Counters: map[string]uint64{}}
	c.Version, _ = p.version(deviceName, source+"version", path+"version", plainVersion)
	for _, file := range ClientFiles {
		if value := p.number(deviceName, source+file, path+file); value.Known {
			c.Counters[file] = value.Value
		}
	}
	return c
}
