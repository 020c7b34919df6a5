package affinity

import (
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gdr_exporter/collector/sysread"
)

// lspciFunction is what lspci -vvv says of a function.
type lspciFunction struct {
	text                       string
	speed, possibleSpeed       sysread.Maybe[float64] // GT/s
	width, possibleWidth       sysread.Maybe[int]
	portType                   sysread.Maybe[int]
	maxPayload, maxReadRequest sysread.Maybe[int]
	relaxedOrdering            sysread.Maybe[bool]
	ats                        sysread.Maybe[bool]
	acs                        sysread.Maybe[uint16]
	numaNode                   sysread.Maybe[int]
	iommuGroup, driver         string
	expressAt                  int // offset of the PCIe capability
}

// lspciPortTypes are lspci's names of the PCIe capability's port type.
var lspciPortTypes = map[string]int{"Endpoint": 0, "Root Port": 4, "Upstream Port": 5, "Downstream Port": 6}

// lspciACS are lspci's names of the bits of the ACS control register, from bit 0.
var lspciACS = []string{"SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans"}

// lspci asks lspci about all functions.
func lspci(t *testing.T) map[string]lspciFunction {
	t.Helper()
	said := map[string]lspciFunction{}
	for text := range strings.SplitSeq(output(t, "lspci", "-D", "-n", "-vvv"), "\n\n") {
		address, _, _ := strings.Cut(text, " ")
		said[address] = parseLspci(t, text)
	}
	return said
}

func parseLspci(t *testing.T, text string) lspciFunction {
	t.Helper()
	find := lspciFinder{t, text}
	f := lspciFunction{
		text:            text,
		speed:           find.number(`LnkSta:\s+Speed ([0-9.]+)GT/s`),
		possibleSpeed:   find.number(`LnkCap:.* Speed ([0-9.]+)GT/s`),
		width:           find.lanes(`LnkSta:\s+.*Width x(\d+)`),
		possibleWidth:   find.lanes(`LnkCap:.*Width x(\d+)`),
		maxPayload:      find.integer(`MaxPayload (\d+) bytes, MaxReadReq`),
		maxReadRequest:  find.integer(`MaxReadReq (\d+) bytes`),
		relaxedOrdering: find.sign(`RlxdOrd([+-])`),
		ats:             find.sign(`ATSCtl:\s+Enable([+-])`),
		numaNode:        find.integer(`NUMA node: (\d+)`),
		iommuGroup:      find.word(`IOMMU group: (\d+)`),
		driver:          find.word(`Kernel driver in use: (\S+)`),
	}
	if name := find.word(`Express \(v\d\) (Endpoint|Root Port|Upstream Port|Downstream Port)`); name != "" {
		f.portType = sysread.Some(lspciPortTypes[name])
	}
	if line := find.word(`ACSCtl:\s+(.*)`); line != "" {
		var bits uint16
		for i, name := range lspciACS {
			if strings.Contains(line, name+"+") {
				bits |= 1 << i
			}
		}
		f.acs = sysread.Some(bits)
	}
	if at := find.word(`Capabilities: \[([0-9a-f]+)\] Express`); at != "" {
		offset, err := strconv.ParseInt(at, 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		f.expressAt = int(offset)
	}
	return f
}

// lspciFinder finds values in lspci's text; what it does not say is not known.
type lspciFinder struct {
	t    *testing.T
	text string
}

func (f lspciFinder) word(pattern string) string {
	if match := regexp.MustCompile(pattern).FindStringSubmatch(f.text); match != nil {
		return match[1]
	}
	return ""
}

func (f lspciFinder) number(pattern string) sysread.Maybe[float64] {
	word := f.word(pattern)
	if word == "" {
		return sysread.Maybe[float64]{}
	}
	value, err := strconv.ParseFloat(word, 64)
	if err != nil {
		f.t.Fatal(err)
	}
	return sysread.Some(value)
}

func (f lspciFinder) integer(pattern string) sysread.Maybe[int] {
	number := f.number(pattern)
	return sysread.Maybe[int]{Value: int(number.Value), Known: number.Known}
}

// lanes is integer, where 0 (no link) and 63 (nothing answers) are no value.
func (f lspciFinder) lanes(pattern string) sysread.Maybe[int] {
	if n := f.integer(pattern); n.Value != 0 && n.Value != 63 {
		return n
	}
	return sysread.Maybe[int]{}
}

func (f lspciFinder) sign(pattern string) sysread.Maybe[bool] {
	if word := f.word(pattern); word != "" {
		return sysread.Some(word == "+")
	}
	return sysread.Maybe[bool]{}
}

// output runs a command that must succeed.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		var text string
		if exit, is := err.(*exec.ExitError); is {
			text = string(exit.Stderr)
		}
		t.Fatalf("%s %s: %v %s", name, strings.Join(args, " "), err, text)
	}
	return string(out)
}

// link is the link as its ends say: of the lower end, what both can do.
func (f lspciFunction) link(above *lspciFunction) Link {
	link := Link{f.speed, f.width, f.possibleSpeed, f.possibleWidth, above != nil}
	if above != nil {
		link.PossibleSpeed = lesser(link.PossibleSpeed, above.possibleSpeed)
		link.PossibleWidth = lesser(link.PossibleWidth, above.possibleWidth)
	}
	return link
}

// differences compares what was read of a function with what lspci says of it,
// and of the port above if it is the lower end of a link.
func (f lspciFunction) differences(read Function, above *lspciFunction) []string {
	var found []string
	compare := func(what string, got, want any) {
		if got != want {
			found = append(found, fmt.Sprintf("%s: read %v, lspci says %v", what, got, want))
		}
	}
	compare("link", read.Link, f.link(above))
	compare("port type", read.Config.PortType, f.portType)
	compare("maximum payload", read.Config.MaxPayload, f.maxPayload)
	compare("maximum read request", read.Config.MaxReadRequest, f.maxReadRequest)
	compare("relaxed ordering", read.Config.RelaxedOrdering, f.relaxedOrdering)
	compare("ATS", read.Config.ATS, f.ats)
	compare("ACS", read.Config.ACS, f.acs)
	compare("no ACS", read.Config.NoACS, !f.acs.Known)
	compare("NUMA node", read.NUMANode, f.numaNode)
	compare("IOMMU group", read.IOMMUGroup, f.iommuGroup)
	compare("driver", read.Driver, f.driver)
	return found
}
