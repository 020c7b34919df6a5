package affinity

import (
	"encoding/binary"
	"strings"

	"gdr_exporter/collector/sysread"
)

// Configuration space (PCI Local Bus 3.0 chapter 6, PCI Express Base 7).
const (
	offStatus       = 0x06
	statusCapList   = 1 << 4
	offCapabilities = 0x34
	headerSize      = 64

	capExpress   = 0x10
	offFlags     = 2 // of the PCIe capability
	offDevCtl    = 8
	expressShort = 10 // bytes of it that are read

	offExtended   = 0x100
	configSize    = 0x1000
	extendedACS   = 0x000d
	extendedATS   = 0x000f
	offExtControl = 6
	atsEnable     = 1 << 15

	devCtlRelaxedOrdering = 1 << 4

	// A list of capabilities that is longer than its space allows is a loop.
	maxCapabilities = (0x100 - headerSize) / 4
	maxExtended     = (configSize - offExtended) / 8
)

// space reads bytes of a configuration space into to and returns how many it
// got: fewer than asked for beyond its end, or beyond what the kernel shows.
type space func(to []byte, offset int) (int, error)

// configReading is what walking the capabilities found.
type configReading struct {
	readable sysread.Maybe[bool]
	answers  sysread.Maybe[bool]
	config   Config
}

// readConfig walks the capabilities. It reads no byte outside of the header and
// of the capabilities it knows, because there are devices that do not bear it
// (lspci does the same). Without CAP_SYS_ADMIN the kernel shows the header alone.
func readConfig(read space) (configReading, error) {
	var r configReading
	var header [headerSize]byte
	n, err := read(header[:], 0)
	switch {
	case err != nil:
		return r, err
	case n < headerSize:
		return r, sysread.Invalid("short header")
	}
	if r.answers = sysread.Some(!allOnes(header[:])); !r.answers.Value {
		return r, nil
	}
	if r.readable, err = readable(read, header[:]); err != nil || !r.readable.Value {
		return r, err
	}
	if err := r.config.capabilities(read, header[:]); err != nil {
		return r, err
	}
	return r, r.config.extended(read)
}

func allOnes(b []byte) bool {
	for _, c := range b {
		if c != 0xff {
			return false
		}
	}
	return true
}

// readable tries whether what is beyond the header can be read.
func readable(read space, header []byte) (sysread.Maybe[bool], error) {
	at := max(int(header[offCapabilities]&^3), headerSize)
	var word [2]byte
	n, err := read(word[:], at)
	if err != nil {
		return sysread.Maybe[bool]{}, err
	}
	return sysread.Some(n == len(word)), nil
}

// capabilities finds the PCIe capability in the list that the header begins.
func (c *Config) capabilities(read space, header []byte) error {
	if binary.LittleEndian.Uint16(header[offStatus:])&statusCapList == 0 {
		return nil
	}
	at := int(header[offCapabilities] &^ 3)
	for range maxCapabilities {
		if at < headerSize {
			return nil
		}
		var b [expressShort]byte
		if n, err := read(b[:2], at); err != nil || n < 2 || b[0] == 0xff {
			return err
		}
		if b[0] != capExpress {
			at = int(b[1] &^ 3)
			continue
		}
		if n, err := read(b[:], at); err != nil || n < len(b) || b[0] != capExpress {
			return err
		}
		c.express(binary.LittleEndian.Uint16(b[offFlags:]), binary.LittleEndian.Uint16(b[offDevCtl:]))
		return nil
	}
	return nil
}

// express takes the PCIe capabilities and Device Control registers.
func (c *Config) express(flags, devCtl uint16) {
	c.PortType = sysread.Some(int(flags >> 4 & 0xf))
	c.MaxPayload = size(devCtl >> 5)
	c.MaxReadRequest = size(devCtl >> 12)
	c.RelaxedOrdering = sysread.Some(devCtl&devCtlRelaxedOrdering != 0)
}

// size decodes a 3-bit size: 128 bytes << value; 6 and 7 are reserved.
func size(bits uint16) sysread.Maybe[int] {
	if bits &= 7; bits > 5 {
		return sysread.Maybe[int]{}
	}
	return sysread.Some(128 << bits)
}

// extended finds ACS and ATS in the list at 0x100. A function without extended
// configuration space, or reached without it, leaves both unknown.
func (c *Config) extended(read space) error {
	at, complete, hasACS := offExtended, false, false
	for range maxExtended {
		var b [4]byte
		n, err := read(b[:], at)
		if err != nil || n < len(b) {
			return err
		}
		header := binary.LittleEndian.Uint32(b[:])
		if header == 0xffffffff && at == offExtended {
			return nil // as hosts without it answer
		}
		if header == 0 || header == 0xffffffff {
			complete = true
			break
		}
		hasACS = hasACS || header&0xffff == extendedACS
		if err := c.extendedControl(read, at, header&0xffff); err != nil {
			return err
		}
		if at = int(header >> 20 & 0xffc); at < offExtended {
			complete = true
			break
		}
	}
	c.NoACS = complete && !hasACS
	return nil
}

func (c *Config) extendedControl(read space, at int, id uint32) error {
	if id != extendedACS && id != extendedATS || at+offExtControl+2 > configSize {
		return nil
	}
	var b [2]byte
	n, err := read(b[:], at+offExtControl)
	if err != nil || n < len(b) {
		return err
	}
	control := binary.LittleEndian.Uint16(b[:])
	switch {
	case control == 0xffff: // it has gone meanwhile: no register has all bits
	case id == extendedACS && !c.ACS.Known:
		c.ACS = sysread.Some(control)
	case id == extendedATS && !c.ATS.Known:
		c.ATS = sysread.Some(control&atsEnable != 0)
	}
	return nil
}

var acsNames = [...]string{"SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans"}

// ACSText returns the ACS control bits that are set by lspci's names, "none" if
// all are clear or the function has no ACS, "unknown" if they could not be read.
func (c *Config) ACSText() string {
	if !c.ACS.Known {
		if c.NoACS {
			return "none"
		}
		return "unknown"
	}
	var set []string
	for bit, name := range acsNames {
		if c.ACS.Value>>bit&1 != 0 {
			set = append(set, name)
		}
	}
	if len(set) == 0 {
		return "none"
	}
	return strings.Join(set, " ")
}

// Redirects reports whether ACS sends requests or read completions that enter
// this port up to the root complex rather than to a peer.
func (c *Config) Redirects() sysread.Maybe[bool] {
	switch {
	case c.ACS.Known:
		return sysread.Some(c.ACS.Value&(ACSRequestRedirect|ACSCompletionRedirect) != 0)
	case c.NoACS:
		return sysread.Some(false)
	}
	return sysread.Maybe[bool]{}
}
