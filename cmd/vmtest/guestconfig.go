package main

import "fmt"

// What machine and VM agree on. Both sides are the same binary, so there is no
// version to negotiate.

const (
	// guestName is the name under which the binary is the guest agent.
	guestName = "vmtest-guest"
	// guestDir holds the agent and its files in the VM.
	guestDir = "/run/vmtest"

	// Tags of the 9p exports.
	rootTag    = "root"
	modulesTag = "modules"

	sharedTag = "shared"
	// sharedDir is where nodes have the directory that all of them share.
	sharedDir = guestDir + "/shared"

	// nodeArgument tells the kernel, and so the agent, which of several VMs it is in:
	// they share one initramfs.
	nodeArgument = "vmtest.node="

	// Names of the virtio-serial ports.
	stdoutPort  = "vmtest.stdout"
	stderrPort  = "vmtest.stderr"
	controlPort = "vmtest.control"
)

// guestConfig tells the guest agent what to set up and run. It travels in the
// initramfs, so nothing needs quoting.
type guestConfig struct {
	Command  []string      `json:"command"`
	Dir      string        `json:"dir"`
	Env      []string      `json:"env"`
	Release  string        `json:"release"`
	Devices  int           `json:"devices"`
	Shares   []guestShare  `json:"shares"`
	Modprobe []string      `json:"modprobe"`
	Modules  []guestModule `json:"modules"`
	// Nodes is how many VMs there are, if there are several, Rails by how many LANs
	// they are joined, and MTU theirs.
	Nodes int `json:"nodes,omitempty"`
	Rails int `json:"rails,omitempty"`
	MTU   int `json:"mtu,omitempty"`
	// Node is this one, from 1 on. It is not in the initramfs.
	Node int `json:"-"`
	// Systemd: the first process is systemd, which has mounted what it wants.
	Systemd bool `json:"systemd"`
}

// railMAC is the hardware address of a node's NIC on a rail.
func railMAC(node, rail int) string { return fmt.Sprintf("52:54:00:63:%02x:%02x", rail, node) }

// guestShare is a writable directory of the machine.
type guestShare struct {
	Tag  string `json:"tag"`
	Path string `json:"path"`
}

// guestModule is a test module: a file in guestDir and its parameters.
type guestModule struct {
	File   string   `json:"file"`
	Params []string `json:"params"`
}

// guestMessage is one line on the control port.
type guestMessage struct {
	// Ready: the VM is set up and the command starts.
	Ready bool `json:"ready,omitempty"`
	// Error: the VM could not be set up.
	Error string `json:"error,omitempty"`
	// Done: the command ended with Status, after writing so many bytes. The
	// ports are not ordered among themselves: only the byte counts tell the
	// machine that it has read everything.
	Done   bool  `json:"done,omitempty"`
	Status int   `json:"status,omitempty"`
	Stdout int64 `json:"stdout,omitempty"`
	Stderr int64 `json:"stderr,omitempty"`
}
