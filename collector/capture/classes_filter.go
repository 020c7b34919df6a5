package capture

import (
	"bytes"
	"encoding/binary"
	"regexp"
	"slices"
	"strings"

	"gdr_exporter/collector/kmsg"
)

// eachLine puts the lines together that a function returns for a text's lines; ""
// leaves one out.
func eachLine(text string, of func(line string) string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		bare := strings.TrimSuffix(line, "\n")
		left := of(bare)
		if left == "" && bare != "" {
			continue
		}
		b.WriteString(left)
		b.WriteString(line[len(bare):])
	}
	return b.String()
}

// plainOption matches an option of the driver with a number.
var plainOption = regexp.MustCompile(`^[A-Za-z0-9_]{1,64}: [0-9]{1,20}$`)

// knownParams keeps options of the driver with numbers, and of its registry what
// knownDwords keeps. Others are texts that somebody wrote: paths, UUIDs of GPUs.
// What has no options at all stays without any.
func knownParams(p *pseudonyms, text string) string {
	left := eachLine(text, func(line string) string {
		name, value, is := strings.Cut(line, ": ")
		switch {
		case plainOption.MatchString(line):
			return line
		case is && (name == "RegistryDwords" || name == "RegistryDwordsPerDevice"):
			return name + `: "` + knownDwords(p, value) + `"`
		case is && optionName.MatchString(name):
			return name + `: ""` // that there is such a line says which driver it is
		default:
			return ""
		}
	})
	if left == "" && text != "" {
		return "?" // the reader says that it is invalid
	}
	return left
}

var optionName = regexp.MustCompile(`^[A-Za-z0-9_]{1,64}$`)

// knownDword matches a setting of the driver's registry that is about interconnects.
var knownDword = regexp.MustCompile(`^(GrdmaPciTopoCheckOverride|ForceP2P|RMForceP2P|EnableResizableBar|PeerMappingOverride|RMNvLink[A-Za-z0-9]*|RMPcie[A-Za-z0-9]*)=(0x[0-9a-fA-F]{1,16}|[0-9]{1,20})$`)

// knownDwords keeps the settings of the driver's registry that are known.
func knownDwords(_ *pseudonyms, text string) string {
	var left []string
	for pair := range strings.SplitSeq(strings.Trim(strings.TrimSpace(text), `"`), ";") {
		if pair = strings.TrimSpace(pair); knownDword.MatchString(pair) {
			left = append(left, pair)
		}
	}
	return strings.Join(left, ";")
}

// builder matches who built a module where: "(root@host)".
var builder = regexp.MustCompile(`[^\s()@]+@[^\s()@]+`)

// withoutBuilder keeps the driver's version and leaves out who built it.
func withoutBuilder(p *pseudonyms, text string) string {
	return p.host(builder.ReplaceAllString(text, "?@?"))
}

// mountPoints keeps of each mount where it is, which is all that is looked at:
// sources and options name servers, containers and users.
func mountPoints(p *pseudonyms, text string) string {
	return eachLine(text, func(line string) string {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			return ""
		}
		return "0 0 0:0 / " + p.of(kindPath, fields[4]) + " - - - -"
	})
}

// mappedFiles keeps of each mapping which file it is of.
func mappedFiles(p *pseudonyms, text string) string {
	return eachLine(text, func(line string) string {
		at := strings.IndexByte(line, '/')
		if at < 0 {
			return ""
		}
		return "0-0 ---- 0 00:00 0 " + p.of(kindPath, line[at:])
	})
}

// columnsOfBuffer are those of a dma-buf that say nothing of whose it is: size,
// flags, mode, count and exporter. Behind them are an inode and a name that its
// process may have given it.
const columnsOfBuffer = 5

// unnamedBuffers takes the names of dma-bufs out.
func unnamedBuffers(p *pseudonyms, text string) string {
	return eachLine(text, func(line string) string {
		if strings.HasPrefix(line, "\t") {
			return p.of(kindPath, line) // a device
		}
		columns := strings.Split(line, "\t")
		return p.of(kindPath, strings.Join(columns[:min(len(columns), columnsOfBuffer)], "\t"))
	})
}

// groupMember matches what names a container, a pod or a service in the path of a
// control group, but for the words by which the kind of container is known.
var groupMember = regexp.MustCompile(`[0-9a-f]{12,}|[0-9a-f]{8}([-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}`)

// kindOfGroup leaves of the control groups of a process which kind of container or
// service it is in.
func kindOfGroup(_ *pseudonyms, text string) string {
	return eachLine(text, func(line string) string {
		var kept []string
		for element := range strings.SplitSeq(groupMember.ReplaceAllString(line[strings.LastIndexByte(line, ':')+1:], "000000000000"), "/") {
			switch word := groupWord.FindString(element); {
			case word != "":
				kept = append(kept, word)
			case strings.HasPrefix(element, "000000000000"):
				kept = append(kept, "000000000000")
			case strings.HasSuffix(element, ".service"):
				kept = append(kept, "some.service")
			case element != "":
				kept = append(kept, "some")
			}
		}
		return "0::/" + strings.Join(kept, "/")
	})
}

// groupWord matches the beginnings of the groups of containers.
var groupWord = regexp.MustCompile(`^(kubepods|libpod|lxc|docker|crio|cri-containerd)(-0{12})?`)

// linesOf keeps the lines that begin with one of the words.
func linesOf(words ...string) class {
	return only(func(_ *pseudonyms, text string) string {
		return eachLine(text, func(line string) string {
			if slices.ContainsFunc(words, func(word string) bool { return strings.HasPrefix(line, word) }) {
				return line
			}
			return ""
		})
	})
}

// knownParameter matches parameters of the kernel that decide on interconnects:
// their values are numbers and words.
var knownParameter = regexp.MustCompile(`^((intel_|amd_)?iommu(\.(passthrough|strict|forcedac))?|pci|pcie_(aspm|acs_override|ports|port_pm)|pci(e_aspm|hp)?\.[a-z_]+|nvidia(_[a-z]+|-[a-z]+)?\.[A-Za-z_]+` +
	`|mlx[45]_(core|ib|en)\.[a-z_]+|ib_[a-z]+\.[a-z_]+|rdma_[a-z]+\.[a-z_]+|(default_)?hugepages(z)?|hugepagesz|numa_balancing|iomem|mem_encrypt|kvm_intel\.[a-z_]+|swiotlb|arm-smmu(-v3)?\.[a-z_]+)(=[A-Za-z0-9_,.:;@=-]{0,200})?$`)

// knownCommandLine keeps the kernel's parameters that are known.
func knownCommandLine(p *pseudonyms, text string) string {
	var left []string
	for _, word := range strings.Fields(text) {
		name, value, _ := strings.Cut(word, "=")
		switch {
		case !knownParameter.MatchString(word):
			continue
		case strings.HasSuffix(name, "RegistryDwords"):
			word = name + "=" + knownDwords(p, value)
		}
		left = append(left, p.of(kindText, word))
	}
	return strings.Join(left, " ") + "\n"
}

// plainLine keeps of a line of the kernel's log what its pattern is made of: fixed
// words, numbers, names of drivers and interfaces. The rest may be a user's.
func plainLine(p *pseudonyms, text string) string { return p.of(kindText, kmsg.Plain(text)) }

// Places in a PCI configuration space: PCI Express Base Specification, 7.9.3.
const (
	extendedFrom     = 0x100
	extendedSerial   = 0x0003
	serialFrom       = 4 // behind the capability's header
	serialSize       = 8
	mostCapabilities = 1 << 10
)

// withoutSerial takes the device serial number out of a PCI configuration space,
// which of NICs is made of their MAC address. Readers walk past it; should one
// read it, it reads zeros.
func withoutSerial(segments []Segment) []Segment {
	segments = slices.Clone(segments)
	for at, n := int64(extendedFrom), 0; at >= extendedFrom && n < mostCapabilities; n++ {
		header, found := dword(segments, at)
		if !found {
			break
		}
		if header&0xffff == extendedSerial {
			blank(segments, at+serialFrom, at+serialFrom+serialSize)
		}
		at = int64(header >> 20)
	}
	return segments
}

// dword reads 4 bytes that are known.
func dword(segments []Segment, at int64) (uint32, bool) {
	for i := range segments {
		if from := at - segments[i].At; from >= 0 && from+4 <= int64(len(segments[i].Bytes)) {
			return binary.LittleEndian.Uint32(segments[i].Bytes[from:]), true
		}
	}
	return 0, false
}

// blank puts zeros in the place of the bytes from one offset to another.
func blank(segments []Segment, from, to int64) {
	for i := range segments {
		s := &segments[i]
		first, last := max(from-s.At, 0), min(to-s.At, int64(len(s.Bytes)))
		if first < last {
			s.Bytes = bytes.Clone(s.Bytes)
			clear(s.Bytes[first:last])
		}
	}
}
