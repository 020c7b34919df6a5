package rdma

import (
	"bytes"
	"strconv"
	"strings"

	"gdr_exporter/collector/sysread"
)

// parseStateID reads the number of "4: ACTIVE" (ports/N/state) or
// "5: LinkUp" (ports/N/phys_state). The text behind it is not looked at: the
// kernel prints "UNKNOWN" or "<unknown>" for numbers it has no name for.
func parseStateID(text []byte) (int, error) {
	number, _, _ := bytes.Cut(text, []byte{':'})
	id, err := strconv.ParseUint(string(number), 10, 8)
	if err != nil {
		return 0, sysread.Invalid(string(text))
	}
	return int(id), nil
}

// parseRate reads ports/N/rate: "400 Gb/sec (4X NDR)". Old kernels leave out
// the name of the speed for SDR: "10 Gb/sec (4X)".
func parseRate(text string) (Rate, error) {
	number, rest, found := strings.Cut(text, " Gb/sec")
	whole, half := strings.CutSuffix(number, ".5")
	gigabits, err := strconv.ParseUint(whole, 10, 32)
	if !found || err != nil {
		return Rate{}, sysread.Invalid(text)
	}
	rate := Rate{BytesPerSecond: gigabits * 125_000_000}
	if half {
		rate.BytesPerSecond += 62_500_000
	}
	rest = strings.Trim(rest, " ()")
	width, speed, _ := strings.Cut(rest, " ")
	if lanes, isWidth := strings.CutSuffix(width, "X"); isWidth {
		if n, err := strconv.ParseUint(lanes, 10, 8); err == nil {
			rate.Lanes, rate.Speed = int(n), speed
		}
	}
	return rate, nil
}

// parseNodeType reads the text of "4: RNIC" (node_type).
func parseNodeType(text string) (string, error) {
	number, kind, found := strings.Cut(text, ":")
	if _, err := strconv.ParseUint(number, 10, 8); !found || err != nil {
		return "", sysread.Invalid(text)
	}
	return strings.TrimSpace(kind), nil
}

// parseHex reads "0x1a" of ports/N/lid and ports/N/sm_lid.
func parseHex(text string) (uint64, error) {
	digits, found := strings.CutPrefix(text, "0x")
	value, err := strconv.ParseUint(digits, 16, 32)
	if !found || err != nil {
		return 0, sysread.Invalid(text)
	}
	return value, nil
}

// parseGUID checks a GUID of the form "946d:ae03:0012:3456" and returns "" for
// the all-zero one, which several drivers use for "none" and which therefore
// identifies nothing.
func parseGUID(text string) (string, error) {
	if len(text) != 19 {
		return "", sysread.Invalid(text)
	}
	zero := true
	for i, c := range []byte(text) {
		switch {
		case i%5 == 4:
			if c != ':' {
				return "", sysread.Invalid(text)
			}
		case !isHexDigit(c):
			return "", sysread.Invalid(text)
		case c != '0':
			zero = false
		}
	}
	if zero {
		return "", nil
	}
	return text, nil
}

// guidOfGID returns the lower half of a GID, which is the port GUID on
// InfiniBand: "fe80:0000:0000:0000:946d:ae03:0012:3456".
func guidOfGID(text string) (string, error) {
	if len(text) != 39 {
		return "", sysread.Invalid(text)
	}
	return parseGUID(text[20:])
}

func isHexDigit(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}
