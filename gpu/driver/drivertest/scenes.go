package drivertest

import (
	"fmt"
	"strings"
)

// Scene is a host in a certain state.
type Scene struct {
	Name  string
	Title string // what it is, and where it was seen
	Build func(h Host)
}

// Scenes are the hosts that the reader and the views are tested with.
var Scenes = []Scene{
	{"none", "no NVIDIA driver, no RDMA", func(Host) {}},
	{"rdma-only", "RDMA without GPU", func(h Host) { h.Inbox() }},
	{"ofed", "H100 node with MLNX_OFED: everything in place", ofed},
	{"ofed-old", "MLNX_OFED 4.9: five files per client, proprietary driver", ofedOld},
	{"ubuntu", "no memory_peers, as in Ubuntu 24.04 (NVIDIA/nccl#1939)", ubuntu},
	{"stale", "peermem of another driver than the loaded one", stale},
	{"legacy", "nv_peer_mem instead of nvidia_peermem", legacy},
	{"legacy-mode", "nvidia_peermem in legacy mode with the client nv_mem_nc", legacyMode},
	{"not-loaded", "peermem on disk, not loaded", notLoaded},
	{"not-on-disk", "peermem loaded, but modprobe would not find it again (NVIDIA/gpu-operator#2868)", notOnDisk},
	{"container", "exporter in a container that sees the driver container only", container},
	{"coming-going", "one peer memory module is being loaded, the other unloaded", comingGoing},
	{"builtin", "modules built into the kernel", builtin},
	{"library-mismatch", "driver upgraded on disk, the old one still loaded", libraryMismatch},
	{"override", "topology check overridden (Azure/azhpc-images#589), lockdown on", override},
	{"h200-vm", "recorded on a cloud VM with two H200: no module can be unloaded, so none has a reference count; ib_core built in", h200VM},
	{"unloaded", "driver installed, not loaded", unloaded},
	{"garbage", "every file holds garbage", garbage},
	{"many-clients", "more peer memory clients than there can be", manyClients},
}

func ofed(h Host) {
	h.OFED()
	h.Open(Version)
	h.Peermem(Version, 3)
	h.Client("nv_mem", Version)
	h.Module("nvidia_fs", "2.26", "live")
}

func ofedOld(h Host) {
	h.OFED()
	h.Proprietary("535.54.03")
	h.Peermem("535.54.03", 0)
	h.OldClient("nv_mem", "535.54.03")
}

func ubuntu(h Host) {
	h.Inbox()
	h.Open(Version)
	h.Peermem(Version, 0)
}

func stale(h Host) {
	ofed(h)
	h.File(Modules+"nvidia_peermem/version", "570.86.15\n")
}

func legacy(h Host) {
	h.OFED()
	h.Proprietary("535.54.03")
	h.Module("nv_peer_mem", "1.3-0", "live")
	h.Symlink(Modules+"ib_core/holders/nv_peer_mem", "../../nv_peer_mem")
	h.Client("nv_mem", "1.3-0")
	h.Dep("", "updates/dkms/nvidia-uvm.ko", "extra/nv_peer_mem.ko")
}

func legacyMode(h Host) {
	ofed(h)
	h.File(Modules+"nvidia_peermem/parameters/peerdirect_support", "1\n")
	h.File(Modules+"nvidia_peermem/parameters/persistent_api_support", "0\n")
	h.Client("nv_mem_nc", Version)
	h.Client("nvidia-fs", "2.26")
}

func notLoaded(h Host) {
	h.OFED()
	h.Open(Version)
	h.Dir(MemoryPeers)
}

func notOnDisk(h Host) {
	ofed(h)
	h.Dep("", "updates/dkms/nvidia-uvm.ko.zst")
}

func container(h Host) {
	h.OFED()
	h.Open(Version)
	for _, path := range []string{"lib", "usr"} {
		h.Remove(path)
	}
	h.Dep(Container, "kernel/drivers/video/nvidia.ko", "kernel/drivers/video/nvidia-uvm.ko")
	h.Library(Container+"/usr/lib64", Version)
}

func comingGoing(h Host) {
	h.OFED()
	h.Open(Version)
	h.Module("nvidia_peermem", Version, "coming")
	h.Module("nv_peer_mem", "1.3-0", "going")
	h.File(Modules+"nv_peer_mem/refcnt", "-1\n")
}

func builtin(h Host) {
	h.Inbox()
	h.Open(Version)
	for _, name := range []string{"nvidia", "nvidia_peermem"} {
		h.Unload(name)
		h.File(Modules+name+"/version", Version+"\n")
	}
}

func libraryMismatch(h Host) {
	h.Inbox()
	h.Open("570.86.15")
	h.Remove("usr/lib/x86_64-linux-gnu")
	h.Library("usr/lib/x86_64-linux-gnu", Version)
}

func override(h Host) {
	h.Inbox()
	h.Open(Version)
	h.File(Params, strings.Replace(DefaultParams, `RegistryDwords: ""`, `RegistryDwords: "ForceP2P=0x11;GrdmaPciTopoCheckOverride=1;EnableResizableBar=1"`, 1))
	h.File(Lockdown, "none [integrity] confidentiality\n")
}

func unloaded(h Host) {
	h.Open(Version)
	for _, path := range []string{"nvidia", "nvidia_uvm", "nvidia_modeset"} {
		h.Unload(path)
	}
	h.Remove("proc/driver")
}

func h200VM(h Host) {
	const version = "580.159.04"
	for name, srcversion := range map[string]string{"nvidia": "06B987C9B8B712FF4E7FB47", "nvidia_uvm": "EA59B8B96DECD0DBCF51499"} {
		dir := Modules + name + "/"
		h.File(dir+"version", version+"\n")
		h.File(dir+"srcversion", srcversion+"\n")
		h.File(dir+"initstate", "live\n")
		h.File(dir+"taint", "O\n")
	}
	h.File(moduleList, "nvidia_uvm 1830912 - - Live 0xffffffffc080c000 (O)\nnvidia 14299136 - - Live 0xffffffffc0400000 (O)\n")
	for name, value := range map[string]string{"netns_mode": "Y", "recv_queue_size": "512", "send_queue_size": "128"} {
		h.File(Modules+"ib_core/parameters/"+name, value+"\n")
	}
	h.File("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)  \nGCC version:  gcc version 15.3.0 (GCC) \n")
	h.File(Params, DefaultParams)
	for _, gpu := range []string{"0000:00:06.0", "0000:00:07.0"} {
		h.File("proc/driver/nvidia/gpus/"+gpu+"/registry", "Binary: \"\"\n")
	}
	h.Library("usr/local/nvidia/lib64", version)
	for _, name := range []string{"libnvidia-ml.so.1", "libcuda.so.1"} {
		h.Symlink("usr/lib/"+name, "../local/nvidia/lib64/"+name)
	}
	for _, path := range []string{"lib", Lockdown} {
		h.Remove(path)
	}
}

// garbage has a full host's files hold what no kernel writes.
func garbage(h Host) {
	legacyMode(h)
	h.Module("nv_peer_mem", "1.3-0", "live")
	h.File("proc/driver/nvidia/gpus/some GPU/information", "")
	junk := []string{"", "\x00\x01\xff", "no such thing, sorry", strings.Repeat("9", 5000), "-7e3"}
	for i, path := range h.Paths() {
		if _, isFile := h.Content(path); isFile && !strings.HasPrefix(path, "usr/") {
			h.File(path, junk[i%len(junk)])
		}
	}
	h.File("proc/sys/kernel/osrelease", "../../etc\n")
}

func manyClients(h Host) {
	ofed(h)
	for i := range 20 {
		h.OldClient(fmt.Sprintf("client%02d", i), "1")
	}
}
