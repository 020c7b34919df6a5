package diagnosis

import (
	"cmp"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma"
)

// What it takes for bytes to count as flowing, and for how long that is watched.
const (
	// liveWindow is the least time over which a rate is taken: the phases of a
	// training step are shorter.
	liveWindow = 30 * time.Second
	// liveGap is the time without a look after which nothing is known of what was
	// between.
	liveGap = 10 * time.Minute
	// liveFlow is the least rate in bytes per second, both directions together, that
	// counts, unless LiveHistory says otherwise: management and keepalive traffic is
	// far below, a job's far above.
	liveFlow = 10e6
	// suspectAfter is how long a NIC must look as if its job were staging, unless
	// LiveHistory says otherwise.
	suspectAfter = 10 * time.Minute
	// holdAfter is for how long after one of the exporter's own measurements what is
	// registered may be its own: dma-bufs are looked at once a minute.
	holdAfter = 90 * time.Second
	// mostHeld bounds how long measurements keep a device from being judged.
	mostHeld = 5 * time.Minute
	// mostLiveDevices bounds the devices that are remembered.
	mostLiveDevices = 256
)

// LiveHistory is what [LiveUses] remembers from one Snapshot to the next. The zero
// LiveHistory remembers nothing. It holds one small record for each device that the
// last Snapshot had.
type LiveHistory struct {
	// SuspectAfter is how long a NIC must look as if its job were staging before it
	// is suspect; 0: ten minutes.
	SuspectAfter time.Duration
	// Flow is the least rate in bytes per second, both directions together, that
	// counts as flow; 0: 10 MB/s.
	Flow float64

	at      time.Time // of the last Snapshot
	devices map[string]*liveDevice
}

// liveDevice is what is remembered of a device.
type liveDevice struct {
	from  liveSample          // where the window in progress begins
	flows sysread.Maybe[bool] // what the last whole window said
	rate  float64             // bytes per second of that window
	since time.Time           // since when all signs of staging are there; zero: they are not
	held  time.Time           // since when measurements keep it from being judged; zero: they do not
	said  LiveUse             // of the last Snapshot that was judged
}

// liveSample is what a device has moved at a time, in both directions.
type liveSample struct {
	at    time.Time
	bytes float64 // of the ports that count
	ports int     // how many those are
	own   uint64  // moved by measurements
}

func (h *LiveHistory) flow() float64 { return cmp.Or(h.Flow, liveFlow) }

func (h *LiveHistory) suspectAfter() time.Duration { return cmp.Or(h.SuspectAfter, suspectAfter) }

// device returns what is remembered of a device, new of one that was not there.
func (h *LiveHistory) device(name string) *liveDevice {
	d := h.devices[name]
	if d == nil {
		d = &liveDevice{}
		if len(h.devices) < mostLiveDevices {
			h.devices[name] = d
		}
	}
	return d
}

// forget drops the devices that are not in the list.
func (h *LiveHistory) forget(uses []LiveUse) {
	if len(h.devices) <= len(uses) {
		return
	}
	there := make(map[string]bool, len(uses))
	for i := range uses {
		there[uses[i].Device] = true
	}
	for name := range h.devices {
		if !there[name] {
			delete(h.devices, name)
		}
	}
}

// restart forgets what was seen of the flow: what comes cannot be compared with it.
func (d *liveDevice) restart(now liveSample) {
	d.from, d.flows, d.rate, d.since = now, sysread.Maybe[bool]{}, 0, time.Time{}
}

// move takes what a device has moved until now. Nothing is concluded before a whole
// window, nor from a counter that was set back. flow is the least rate that counts.
func (d *liveDevice) move(now liveSample, known bool, flow float64) {
	passed := now.at.Sub(d.from.at)
	switch {
	case !known:
		d.restart(liveSample{})
	case d.from.at.IsZero(), passed < 0, passed >= liveGap, now.ports != d.from.ports, now.bytes < d.from.bytes, now.own < d.from.own:
		d.restart(now)
	case passed >= liveWindow:
		// A measurement's bytes leave the NIC and come in again. Where the counters
		// leave out what a NIC sends to itself, this is too much taken off, on the
		// side of silence.
		others := now.bytes - d.from.bytes - 2*float64(now.own-d.from.own)
		d.rate = max(others, 0) / passed.Seconds()
		d.flows = sysread.Some(d.rate >= flow)
		d.from = now
	}
}

// leastPacket is what a packet of a device without hardware is taken to carry, in
// bytes: the smallest MTU of RDMA, so that flow is rather missed than made up.
const leastPacket = 256

// driverSoftRoCE is the driver of devices without hardware.
const driverSoftRoCE = "rdma_rxe"

// packets are the counters of soft-RoCE, which counts nothing else.
var packets = [...]*rdma.CounterInfo{rdma.Info(rdma.SourceHW, "sent_pkts"), rdma.Info(rdma.SourceHW, "rcvd_pkts")}

// byPackets is what a port without hardware has moved at least, as far as its count
// of packets tells.
func byPackets(device *rdma.Device, port *rdma.Port) (bytes float64, known bool) {
	if device.Driver != driverSoftRoCE {
		return 0, false
	}
	counted := 0
	for i := range port.Counters {
		if info := port.Counters[i].Info; info == packets[0] || info == packets[1] {
			counted++
			bytes += leastPacket * port.Counters[i].Scaled()
		}
	}
	return bytes, counted == len(packets)
}

// sample adds up what a device's ports have moved. A port that counts neither bytes
// nor packets is left out; known is false if all are.
func sample(device *rdma.Device, at time.Time, own uint64) (s liveSample, known bool) {
	s = liveSample{at: at, own: own}
	for i := range device.Ports {
		port := &device.Ports[i]
		if port.ReceiveBytes.Known && port.TransmitBytes.Known {
			s.bytes += port.ReceiveBytes.Value + port.TransmitBytes.Value
			s.ports++
		} else if bytes, known := byPackets(device, port); known {
			s.bytes += bytes
			s.ports++
		}
	}
	return s, s.ports > 0
}
