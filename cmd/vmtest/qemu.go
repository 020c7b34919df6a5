package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The VM's network, as QEMU's user networking lays it out.
const (
	guestAddress = "10.0.2.15"
	gateway      = "10.0.2.2"
)

// rootBus keeps vmtest's own devices off the buses that a topology adds, which
// QEMU would fill first.
const rootBus = "bus=pcie.0"

// firstInheritedFD is the number of a child's first extra file.
const firstInheritedFD = 3

// qemuConfig is everything QEMU's command line depends on.
type qemuConfig struct {
	kernelImage string
	modulesDir  string
	root        string
	kernelArgs  []string
	memory      string
	topology    topology
	forwards    []forward
	shares      []guestShare
	node        int // of several VMs, from 1 on; 0: it is the only one
	rails       int // LANs that it is plugged into
	// Descriptors that QEMU inherits.
	initramfs, console, stdout, stderr, control, firstRail int
}

// args returns QEMU's arguments. The topology comes before vmtest's own
// devices, since an IOMMU must exist before what it translates for.
func (c qemuConfig) args() []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		// TCG only: KVM is absent in most build environments, and where it
		// seems to be there it may hang.
		"-M", "q35", "-cpu", "max", "-accel", "tcg,thread=multi", "-smp", "2", "-m", c.memory,
		"-kernel", c.kernelImage,
		"-initrd", fmt.Sprintf("/proc/self/fd/%d", c.initramfs),
		"-append", c.cmdline(),
	}
	args = append(args, c.topology.qemu...)
	args = append(args, socketChardev("console", c.console)...)
	args = append(args, "-serial", "chardev:console", "-device", "virtio-serial-pci,"+rootBus)
	args = append(args, serialPort(stdoutPort, c.stdout)...)
	args = append(args, serialPort(stderrPort, c.stderr)...)
	args = append(args, serialPort(controlPort, c.control)...)
	args = append(args, export(rootTag, c.root, true)...)
	args = append(args, export(modulesTag, c.modulesDir, true)...)
	for _, share := range c.shares {
		args = append(args, export(share.Tag, share.Path, false)...)
	}
	args = append(args,
		"-netdev", "user,id=user0"+c.hostForwards(),
		"-device", "virtio-net-pci,netdev=user0,romfile=,"+rootBus,
	)
	return append(args, c.railArgs()...)
}

// railArgs are the NICs that are plugged into LANs. They come after the one of the
// user network, which stays eth0. They have a speed, for which soft-RoCE looks at
// every query of a port.
func (c qemuConfig) railArgs() []string {
	var args []string
	for rail := range c.rails {
		args = append(args,
			"-netdev", fmt.Sprintf("socket,id=rail%d,fd=%d", rail, c.firstRail+rail),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=rail%d,mac=%s,host_mtu=%d,speed=25000,duplex=full,romfile=,%s", rail, railMAC(c.node, rail), mostMTU, rootBus),
		)
	}
	return args
}

// cmdline returns the kernel's command line. A panic or an oops ends QEMU at
// once; the rest is there to boot faster.
func (c qemuConfig) cmdline() string {
	fixed := []string{
		"console=ttyS0", "panic=-1", "oops=panic",
		"mitigations=off", "nowatchdog", "audit=0", "random.trust_cpu=on",
	}
	if c.node != 0 {
		// Several VMs that boot at once often miss the ticks that the kernel counts to
		// find out whether its timer works, and panics for.
		fixed = append(fixed, "no_timer_check", nodeArgument+strconv.Itoa(c.node))
	}
	return strings.Join(slices.Concat(fixed, c.kernelArgs, c.topology.cmdline), " ")
}

func (c qemuConfig) hostForwards() string {
	var all strings.Builder
	for _, f := range c.forwards {
		fmt.Fprintf(&all, ",hostfwd=tcp:127.0.0.1:%d-%s:%d", f.host, guestAddress, f.guest)
	}
	return all.String()
}

// socketChardev attaches an inherited socket as a character device. Sockets
// have flow control, so a slow reader costs no output.
func socketChardev(id string, fd int) []string {
	return []string{"-chardev", fmt.Sprintf("socket,id=%s,fd=%d", id, fd)}
}

func serialPort(name string, fd int) []string {
	return append(socketChardev(name, fd), "-device", fmt.Sprintf("virtserialport,chardev=%s,name=%s", name, name))
}

// export makes a directory of the machine mountable in the VM over 9p. Inode
// numbers are remapped, since one export may span several file systems.
func export(tag, path string, readonly bool) []string {
	fsdev := fmt.Sprintf("local,id=%s,path=%s,security_model=none,multidevs=remap", tag, path)
	if readonly {
		fsdev += ",readonly=on"
	}
	return []string{"-fsdev", fsdev, "-device", fmt.Sprintf("virtio-9p-pci,fsdev=%s,mount_tag=%s,%s", tag, tag, rootBus)}
}
