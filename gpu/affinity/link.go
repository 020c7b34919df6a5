package affinity

import (
	"strconv"
	"strings"

	"gdr_exporter/collector/sysread"
)

// Widths that are no widths.
const (
	widthNone       = 0   // no link
	widthUnreadable = 63  // current_link_width of a function that reads all ones
	widthUnknown    = 255 // max_link_width of virtual functions and bridges
	widthMost       = 32
)

// parseSpeed reads a link speed file: "32.0 GT/s PCIe", "8 GT/s" up to Linux
// 5.6, "Unknown", "Unknown speed". Unknown is no value and no error.
func parseSpeed(text string) (sysread.Maybe[float64], error) {
	number, unit, _ := strings.Cut(text, " ")
	if number == "Unknown" {
		return sysread.Maybe[float64]{}, nil
	}
	speed, err := strconv.ParseFloat(number, 64)
	if err != nil || !(speed > 0 && speed < 1e4) || !strings.HasPrefix(unit, "GT/s") {
		return sysread.Maybe[float64]{}, sysread.Invalid(text)
	}
	return sysread.Some(speed), nil
}

// parseWidth reads a link width file.
func parseWidth(text string) (sysread.Maybe[int], error) {
	width, err := strconv.Atoi(text)
	switch {
	case err != nil:
		return sysread.Maybe[int]{}, sysread.Invalid(text)
	case width == widthNone, width == widthUnreadable, width == widthUnknown:
		return sysread.Maybe[int]{}, nil
	case width < 0, width > widthMost:
		return sysread.Maybe[int]{}, sysread.Invalid(text)
	}
	return sysread.Some(width), nil
}

// bytesPerSecond is what a link carries in one direction, before packet
// headers: transfers of one bit per lane, less the encoding (8b/10b up to
// 5 GT/s, 128b/130b up to 32 GT/s, none beyond).
func bytesPerSecond(speed sysread.Maybe[float64], width sysread.Maybe[int]) sysread.Maybe[float64] {
	if !speed.Known || !width.Known {
		return sysread.Maybe[float64]{}
	}
	rate := speed.Value * 1e9 * float64(width.Value) / 8
	switch {
	case speed.Value <= 5:
		rate *= 8. / 10
	case speed.Value <= 32:
		rate *= 128. / 130
	}
	return sysread.Some(rate)
}

// lesser returns the smaller of two values, unknown if either is.
func lesser[T int | float64](a, b sysread.Maybe[T]) sysread.Maybe[T] {
	if !a.Known || !b.Known {
		return sysread.Maybe[T]{}
	}
	return sysread.Some(min(a.Value, b.Value))
}
