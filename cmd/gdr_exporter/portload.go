package main

import (
	"maps"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback/prober"
)

// portLoad reads what a port has moved so far from its files: two counters and
// the rate, about seven firmware commands of an InfiniBand port and four of an
// Ethernet one (mlx5), one of them for the rate.
type portLoad struct {
	sysfs, device string
	port          int
	rates         *portRates // nil: the rate is read each time
	io            sysread.IO
}

// byteCounters are counters of a port that together tell what it moved.
type byteCounters struct {
	dir            string // below ports/N
	sent, received []string
	unit           uint64 // bytes
}

// byteFiles are where drivers count, best first; see rdma's byteSources. The
// 64-bit words of mlx5, mlx4, hfi1; bnxt_re, efa, mana; erdma; irdma.
var byteFiles = []byteCounters{
	{"counters_ext", []string{"port_xmit_data_64"}, []string{"port_rcv_data_64"}, 4},
	{"counters", []string{"port_xmit_data"}, []string{"port_rcv_data"}, 4},
	{"hw_counters", []string{"tx_bytes"}, []string{"rx_bytes"}, 1},
	{"hw_counters", []string{"tx_bytes_cnt"}, []string{"rx_bytes_cnt"}, 1},
	{"hw_counters", []string{"ip4OutOctets", "ip6OutOctets"}, []string{"ip4InOctets", "ip6InOctets"}, 1},
}

func (p *portLoad) dir() string {
	return filepath.Join(p.sysfs, "class/infiniband", p.device, "ports", strconv.Itoa(p.port))
}

func (p *portLoad) read() prober.Load {
	load := prober.Load{Rate: p.rates.of(prober.Port{Device: p.device, Number: p.port}, p.rate)}
	load.Sent, load.Received = p.bytes()
	load.Time = time.Now()
	return load
}

// bytes reads the first counters that there are. One that fails is not made up
// for by others: what two reads tell must be of one kind.
func (p *portLoad) bytes() (sent, received sysread.Maybe[uint64]) {
	for _, counters := range byteFiles {
		if sent, received, there := p.sums(filepath.Join(p.dir(), counters.dir), counters); there {
			return sent, received
		}
	}
	if _, err := os.Stat(filepath.Join(p.sysfs, "class/infiniband", p.device, "device")); sysread.Absent(err) {
		return p.software()
	}
	// A network interface says nothing of hardware: RDMA goes past it.
	return sent, received
}

// software reads what a device without hardware moved. Soft-RoCE counts packets,
// acknowledgements too, each taken here for a full one: more than it was, so that a
// busy port never looks idle. Others send through their network interface.
func (p *portLoad) software() (sent, received sysread.Maybe[uint64]) {
	link := p.text(filepath.Join("class/infiniband", p.device, "parent"))
	packets := byteCounters{"hw_counters", []string{"sent_pkts"}, []string{"rcvd_pkts"}, p.packet(link)}
	if sent, received, there := p.sums(filepath.Join(p.dir(), packets.dir), packets); there {
		return sent, received
	}
	if link == "" {
		link = p.text(filepath.Join("class/infiniband", p.device, "ports", strconv.Itoa(p.port), "gid_attrs/ndevs/0"))
	}
	if link == "" || link != filepath.Base(link) {
		return sent, received
	}
	frames := byteCounters{"statistics", []string{"tx_bytes"}, []string{"rx_bytes"}, 1}
	sent, received, _ = p.sums(filepath.Join(p.sysfs, "class/net", link, frames.dir), frames)
	return sent, received
}

// packet is the most that a packet of soft-RoCE carries: the largest MTU of RDMA
// that fits into its network interface's with all headers (RXE_MAX_HDR_LENGTH).
// What is not known is taken for the largest.
func (p *portLoad) packet(link string) uint64 {
	const headers, most, least = 80, 4096, 256
	mtu, err := strconv.Atoi(p.text(filepath.Join("class/net", link, "mtu")))
	if err != nil {
		return most
	}
	size := most
	for size > least && size > mtu-headers {
		size /= 2
	}
	return uint64(size)
}

func (p *portLoad) text(name string) string {
	text, err := sysread.ReadOnce(&p.io, filepath.Join(p.sysfs, name))
	if err != nil {
		return ""
	}
	return text
}

// sums adds up counters of a directory. They are there unless one is missing or
// refuses to be read, as all counters of some functions do.
func (p *portLoad) sums(dir string, c byteCounters) (sent, received sysread.Maybe[uint64], there bool) {
	sent, sentThere := p.sum(dir, c.sent, c.unit)
	received, receivedThere := p.sum(dir, c.received, c.unit)
	return sent, received, sentThere && receivedThere
}

func (p *portLoad) sum(dir string, files []string, unit uint64) (sum sysread.Maybe[uint64], there bool) {
	var total uint64
	for _, file := range files {
		text, err := sysread.ReadOnce(&p.io, filepath.Join(dir, file))
		var value uint64
		if err == nil {
			value, err = sysread.ParseCounter([]byte(text))
		}
		switch {
		case sysread.Absent(err) || sysread.Refused(err):
			return sum, false
		case err != nil, value == math.MaxUint32: // where it is of 32 bits it sticks there
			return sum, true
		}
		total += value * unit
	}
	return sysread.Some(total), true
}

// rateAge is for how long a rate that was read holds: it changes with the link
// alone, and a load is read every other second.
const rateAge = time.Minute

// portRates are what was read of the rates of ports.
type portRates struct {
	mu   sync.Mutex
	last map[prober.Port]portRate
}

type portRate struct {
	read  time.Time
	value sysread.Maybe[float64] // also where it could not be read
}

// of is the rate of a port, read anew if what was read is too old.
func (r *portRates) of(port prober.Port, read func() sysread.Maybe[float64]) sysread.Maybe[float64] {
	if r == nil {
		return read()
	}
	old := func(_ prober.Port, rate portRate) bool { return time.Since(rate.read) >= rateAge }
	r.mu.Lock()
	maps.DeleteFunc(r.last, old)
	rate, fresh := r.last[port]
	r.mu.Unlock()
	if fresh {
		return rate.value
	}
	value := read() // it may hang: other ports are not to wait for it
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[prober.Port]portRate{}
	}
	r.last[port] = portRate{time.Now(), value}
	return value
}

// rate reads "400 Gb/sec (4X NDR)" into bytes per second.
func (p *portLoad) rate() sysread.Maybe[float64] {
	number, _, found := strings.Cut(p.text(filepath.Join("class/infiniband", p.device, "ports", strconv.Itoa(p.port), "rate")), " Gb/sec")
	gigabits, err := strconv.ParseFloat(number, 64)
	if !found || err != nil || !(gigabits > 0) || math.IsInf(gigabits, 0) {
		return sysread.Maybe[float64]{}
	}
	return sysread.Some(gigabits * 1e9 / 8)
}
