package diagnosis

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"gdr_exporter/collector/process"
	"gdr_exporter/collector/sysread"
)

// ncclSettings are the variables of NCCL that decide about GPUDirect RDMA. NCCL
// reads ~/.nccl.conf and /etc/nccl.conf too, which nobody sees here.
type ncclSettings struct {
	level     sysread.Maybe[ncclPath] // NCCL_NET_GDR_LEVEL
	levelFrom string                  // its name and value
	// NCCL_NET_GDR_READ (below 0: as by default), NCCL_NET_GDR_C2C, NCCL_DMABUF_ENABLE.
	read, c2c, dmabuf sysread.Maybe[int64]
	disabled          bool   // NCCL_IB_DISABLE
	net               string // NCCL_NET
	hca               string // NCCL_IB_HCA
	// doubt names a variable whose effect is not known, "" if that of all is.
	doubt string
}

// Variables of NCCL.
const (
	varGDRLevel    = "NCCL_NET_GDR_LEVEL"
	varOldGDRLevel = "NCCL_IB_GDR_LEVEL"
	varGDRRead     = "NCCL_NET_GDR_READ"
	varGDRC2C      = "NCCL_NET_GDR_C2C"
	varDMABuf      = "NCCL_DMABUF_ENABLE"
	varDataDirect  = "NCCL_IB_DATA_DIRECT"
	varRelaxed     = "NCCL_IB_PCI_RELAXED_ORDERING"
	varIBDisable   = "NCCL_IB_DISABLE"
	varNet         = "NCCL_NET"
	varHCA         = "NCCL_IB_HCA"
	varTopology    = "NCCL_TOPO_FILE"
	varCUDASupport = "NCCL_IB_CUDA_SUPPORT"
	varGPUDirect   = "NCCL_GPUDIRECT" // and whatever begins so
	varGDRCopy     = "NCCL_GDRCOPY_ENABLE"
)

func ncclSettingsOf(environment map[string]string) ncclSettings {
	if len(environment) == 0 {
		return ncclSettings{}
	}
	s := ncclSettings{
		read: ncclNumber(environment[varGDRRead]), c2c: ncclNumber(environment[varGDRC2C]), dmabuf: ncclNumber(environment[varDMABuf]),
		net: environment[varNet], hca: environment[varHCA], doubt: ncclDoubt(environment),
	}
	disable := ncclNumber(environment[varIBDisable])
	s.disabled = disable.Known && disable.Value != 0
	if level, ok := ncclLevel(environment[varGDRLevel]); ok {
		s.level, s.levelFrom = sysread.Some(level), varGDRLevel+"="+environment[varGDRLevel]
	}
	return s
}

// ncclDoubt returns the first variable of which nobody can say what it does: its
// value was withheld, or is no number.
func ncclDoubt(environment map[string]string) string {
	for _, name := range [...]string{varGDRLevel, varGDRRead, varGDRC2C, varDMABuf, varIBDisable, varNet, varHCA} {
		value := environment[name]
		text := name == varGDRLevel || name == varNet || name == varHCA
		if value == process.Withheld || value != "" && !text && !isNumber(value) {
			return name
		}
	}
	return ""
}

// ncclNumber is how NCCL reads a number: by strtoll. What is none is 0 for most
// versions and ignored by the newest, so it is not known; see ncclDoubt.
func ncclNumber(text string) sysread.Maybe[int64] {
	value, ok := leadingNumber(text)
	return sysread.Maybe[int64]{Value: value, Known: ok}
}

// leadingNumber reads the number at the beginning of a text as strtoll does with
// base 0; ok is false if there is none.
func leadingNumber(text string) (value int64, ok bool) {
	text = strings.TrimLeft(text, " \t\n\v\f\r")
	end := 0
	for end < len(text) && end < 24 && strings.IndexByte("+-0123456789abcdefABCDEFxX", text[end]) >= 0 {
		end++
	}
	for ; end > 0; end-- {
		// Go's base 0 has forms that C's has not: 0b1, 0o7, 1_000.
		if strings.ContainsAny(text[:min(end, 3)], "oO_") || len(text[:end]) > 1 && strings.HasPrefix(strings.TrimLeft(text[:end], "+-"), "0b") {
			continue
		}
		if n, err := strconv.ParseInt(text[:end], 0, 64); err == nil {
			return n, true
		}
	}
	return 0, false
}

// oldLevels are the numbers that NCCL_NET_GDR_LEVEL had before it had names.
var oldLevels = [...]ncclPath{pathLOC, pathPIX, pathPXB, pathPHB, pathSYS}

// ncclLevel is how NCCL reads a distance: a name in capitals, or an old number. ok
// is false for what it ignores.
func ncclLevel(text string) (level ncclPath, ok bool) {
	if i := slices.Index(pathNames[:], text); i >= 0 {
		return ncclPath(i), true
	}
	if text == "" || text[0] < '0' || text[0] > '9' {
		return 0, false
	}
	number, _ := leadingNumber(text)
	return oldLevels[min(max(number, 0), int64(len(oldLevels)-1))], true
}

// network is whether NCCL reaches a device at all.
func (s *ncclSettings) network(device string) decision {
	switch {
	case s.doubt != "":
		return decision{maybe, "what " + s.doubt + " does with its value differs by version, or its value is not known"}
	case s.disabled:
		return decision{no, varIBDisable + " switches InfiniBand and RoCE off"}
	case strings.EqualFold(s.net, "Socket"):
		return decision{no, varNet + "=" + s.net + " chooses sockets"}
	case s.net != "" && !strings.EqualFold(s.net, "IB"):
		return decision{maybe, varNet + " names a plugin with rules of its own"}
	case s.hca != "" && !hcaMatches(s.hca, device):
		return decision{no, varHCA + " leaves this device out"}
	}
	return decision{yes, "NCCL uses the device"}
}

// maxHCAs bounds the entries of NCCL_IB_HCA, as NCCL does.
const maxHCAs = 64

// hcaMatches is how NCCL_IB_HCA chooses: entries DEVICE[:PORT] that devices must
// begin with, or be equal to after "=", or not after "^". Of a device one port is
// enough.
func hcaMatches(list, device string) bool {
	list, not := strings.CutPrefix(list, "^")
	list, exact := strings.CutPrefix(list, "=")
	for i, entry := range strings.SplitN(list, ",", maxHCAs+1) {
		name, port, hasPort := strings.Cut(entry, ":")
		if i >= maxHCAs || name == "" || not && hasPort && port != "" && port != "1" {
			continue
		}
		if name == device || !exact && strings.HasPrefix(device, name) {
			return !not
		}
	}
	return not
}

// isNumber reports whether NCCL reads all of a text as a number.
func isNumber(text string) bool {
	value, ok := leadingNumber(text)
	return ok && value != math.MaxInt64
}
