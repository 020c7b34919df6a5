package nccllog

import (
	"fmt"
	"strconv"
	"strings"
)

// version reads "NCCL version 2.21.5+cuda12.4", which rank 0 writes without a
// prefix up to 2.26 and all ranks with one since.
func (p *parser) version(text, host string) {
	_, rest, found := strings.Cut(text, "NCCL version ")
	if !found || digits(rest) == 0 {
		return
	}
	end := 0
	for end < len(rest) && (isHostByte(rest[end]) || rest[end] == '+') {
		end++
	}
	nccl, cuda, _ := strings.Cut(rest[:end], "+cuda")
	if strings.Count(nccl, ".") == 0 {
		return
	}
	p.nccl.add(strings.TrimRight(nccl, ".-"), host)
	p.cuda.add(cuda, host)
}

// driverVersion keeps the version that cuDriverGetVersion gave: 12040 is 12.4.
func (p *parser) driverVersion(e *entry) bool {
	version, _ := after(e.text, "cudaDriverVersion ")
	if n, err := strconv.Atoi(version); err == nil && n >= 1000 && n < 100_000 {
		version = fmt.Sprintf("%d.%d", n/1000, n%1000/10)
	}
	p.driver.add(version, e.host)
	return true
}

func (p *parser) network(e *entry) bool {
	_, name, _ := strings.Cut(e.text, "Using network ")
	p.networks.add(name, e.host)
	return true
}

// plugin keeps what tells which plugin it is, in its own words.
func (p *parser) plugin(e *entry) bool {
	for _, mark := range []string{"Loaded net plugin ", "P2P plugin ", "NET/OFI Initializing ", "NET/OFI Using ", "NET/OFI Selected "} {
		if at := strings.Index(e.text, mark); at >= 0 {
			p.plugins.add(e.text[at:], e.host)
			return true
		}
	}
	return false
}

// begun reads a rank's first and last word on a communicator:
//
//	comm 0x7f rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xab - Init START
func (p *parser) begun(e *entry) bool {
	switch {
	case strings.Contains(e.text, "Init START"):
		p.summary.Begun++
	case strings.Contains(e.text, "Init COMPLETE"):
		p.summary.Completed++
	default:
		return false
	}
	ranks, _ := after(e.text, " nranks ")
	if count, ok := number(ranks); ok {
		p.summary.MostRanks = max(p.summary.MostRanks, count)
	}
	id, _ := after(e.text, " commId ")
	c := p.commOf(e)
	c.id = clean(id)
	p.setComm(e, c)
	text, _ := after(e.text, " rank ")
	if rank, ok := number(text); ok {
		p.place(rankKey{c.id, rank}, e.host)
	}
	return true
}

// shape reads "comm 0x7f rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0".
func (p *parser) shape(e *entry) bool {
	nodes, _ := after(e.text, " nNodes ")
	count, ok := number(nodes)
	if !ok {
		return false
	}
	p.summary.MostNodes = max(p.summary.MostNodes, count)
	return true
}

// commOf is the communicator that the device of an entry has begun last.
func (p *parser) commOf(e *entry) comm {
	if process := p.processes.known(processKey{e.host, e.pid}); process != nil {
		return process.comms[e.dev]
	}
	return comm{}
}

func (p *parser) setComm(e *entry, c comm) {
	process := p.process(e)
	if process.comms == nil {
		process.comms = map[string]comm{}
	}
	if len(process.comms) < mostPerProcess {
		process.comms[e.dev] = c
	}
}

// connected reads "Connected all rings, use ring PXN 0 GDR 1", of which versions
// before 2.24 have the first three words.
func (p *parser) connected(e *entry) bool {
	switch {
	case strings.Contains(e.text, "Connected all trees"):
		p.summary.Trees++
		return true
	case !strings.Contains(e.text, "Connected all rings"):
		return false
	}
	p.summary.Rings++
	if pxn, found := after(e.text, "PXN "); found && pxn == "1" {
		p.summary.RingsPXN++
	}
	switch gdr, _ := after(e.text, "GDR "); gdr {
	case "1":
		p.summary.RingsDirect++
	case "0":
		p.summary.RingsStaged++
	}
	return true
}

// channels reads "Channel 00/16 :    0   1   2   3", a ring that rank 0 prints.
func (p *parser) channels(e *entry) bool {
	_, rest, found := strings.Cut(e.text, "Channel ")
	_, rest, slash := strings.Cut(rest, "/")
	count, ok := number(rest)
	if !found || !slash || !ok || !strings.HasPrefix(rest[digits(rest):], " :") {
		return false
	}
	p.summary.MostChannels = max(p.summary.MostChannels, count)
	return true
}

// nvls reads "NVLS multicast support is not available on dev 0".
func (p *parser) nvls(e *entry) bool {
	if strings.Contains(e.text, "support is not ") {
		p.summary.NoNVLS++
	} else {
		p.summary.NVLS++
	}
	return true
}
