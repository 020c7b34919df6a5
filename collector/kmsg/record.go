package kmsg

import (
	"bytes"
	"strconv"
)

// record is one record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg). Its
// slices are parts of what was read.
type record struct {
	// facility is 0 for what the kernel itself wrote: whoever else writes into the
	// log gets 1 or what he says, but never 0.
	facility int
	// sequence counts records since boot.
	sequence uint64
	// micros is when it was written, in microseconds of the log's clock.
	micros uint64
	// text is the line, escaped: see unescape.
	text []byte
	// device is the PCI function of DEVICE=+pci:, nil if it names none.
	device []byte
}

const facilityShift = 3 // below it is the level

var pciDevice = []byte(" DEVICE=+pci:")

// parse reads a record; false if it is none.
//
//	6,339,5140900,-;mlx5_core 0000:3b:00.0: firmware version: 28.41.1000
//	 SUBSYSTEM=pci
//	 DEVICE=+pci:0000:3b:00.0
func parse(raw []byte) (record, bool) {
	head, rest, found := bytes.Cut(raw, []byte{';'})
	if !found {
		return record{}, false
	}
	// Further fields follow the first three: flags, and "caller=T123" of some kernels.
	priority, head, _ := bytes.Cut(head, []byte{','})
	sequence, head, _ := bytes.Cut(head, []byte{','})
	micros, _, _ := bytes.Cut(head, []byte{','})
	numbers := [3]uint64{}
	for i, field := range [][]byte{priority, sequence, micros} {
		number, err := strconv.ParseUint(string(field), 10, 64)
		if err != nil {
			return record{}, false
		}
		numbers[i] = number
	}
	r := record{facility: int(numbers[0] >> facilityShift & 0xffff), sequence: numbers[1], micros: numbers[2]} //nolint:gosec // 16 bits
	var about []byte
	r.text, about, _ = bytes.Cut(rest, []byte{'\n'})
	for len(about) > 0 {
		var line []byte
		line, about, _ = bytes.Cut(about, []byte{'\n'})
		if device, is := bytes.CutPrefix(line, pciDevice); is {
			r.device = device
		}
	}
	return r, true
}

// unescape puts back what the kernel wrote as \xNN: what is not printable, and
// the backslash. A line break within a record comes so too.
func unescape(text []byte) string {
	if !bytes.Contains(text, []byte{'\\'}) {
		return string(text)
	}
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		const escape = len(`\x00`)
		if text[i] == '\\' && i+escape <= len(text) && text[i+1] == 'x' {
			if value, err := strconv.ParseUint(string(text[i+2:i+escape]), 16, 8); err == nil {
				out = append(out, byte(value))
				i += escape - 1
				continue
			}
		}
		out = append(out, text[i])
	}
	return string(out)
}
