// Package podresources asks the kubelet which containers were given which GPUs and
// RDMA devices: the pod-resources API on a unix socket of the node, by which monitoring
// agents learn what device plugins and dynamic resource allocation have handed out. It
// is off unless a socket is named.
//
// The kubelet is asked in the background, since it may be slow, hang, or be gone for a
// while: a scrape takes what it said last and never waits for long. What it says is
// private to the site (names of pods and namespaces), so no capture has any of it.
package podresources

import (
	"cmp"
	"slices"
	"time"

	"gdr_exporter/collector/sysread"
)

// Reading is what the kubelet said last.
type Reading struct {
	// Up: the last call was answered; not known before the first one has ended.
	Up sysread.Maybe[bool]
	// Answered is when the answer came; zero unless Up.
	Answered time.Time
	// Devices are what containers were given, in order, at most MaxDevices. None
	// unless Up: what an earlier answer said may not be so any more.
	Devices []Device
	// Omitted are those beyond, and those whose names no pod may have.
	Omitted int
}

// MaxDevices bounds the devices of a Reading: 8 GPUs in 10 replicas each and 8 NICs
// with 16 virtual functions are 208.
const MaxDevices = 512

// maxName bounds the names of a device's pod and resource: those of Kubernetes are at
// most 253 long, a resource's with its prefix 317.
const maxName = 320

// Device is a device, or a part of one, that a container was given.
type Device struct {
	Namespace, Pod, Container string
	// Resource is the device plugin's resource (nvidia.com/gpu), or the driver of
	// dynamic resource allocation (gpu.nvidia.com).
	Resource string
	ID       ID
}

// collection gathers the devices of an answer.
type collection struct {
	seen    map[Device]bool
	omitted int
}

// add takes a device, once: several replicas of one GPU in a container are one.
func (c *collection) add(device Device) {
	fits := true
	for _, name := range []string{device.Namespace, device.Pod, device.Container, device.Resource, device.ID.Text} {
		fits = fits && len(name) <= maxName
	}
	switch {
	case c.seen[device]:
	case !fits || len(c.seen) >= MaxDevices:
		c.omitted++
	default:
		c.seen[device] = true
	}
}

// devices are those gathered, in order.
func (c *collection) devices() []Device {
	devices := make([]Device, 0, len(c.seen))
	for device := range c.seen {
		devices = append(devices, device)
	}
	slices.SortFunc(devices, func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container),
			cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID.Kind, b.ID.Kind), cmp.Compare(a.ID.Text, b.ID.Text), cmp.Compare(a.ID.GPU, b.ID.GPU))
	})
	return devices
}
