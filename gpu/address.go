package gpu

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Address makes NVML's form of a PCI address, 00000000:3B:00.0, the one of
// sysfs, 0000:3b:00.0. It takes either form.
func Address(busID string) (string, bool) {
	domain, rest, ok := strings.Cut(busID, ":")
	if !ok {
		return "", false
	}
	bus, rest, ok := strings.Cut(rest, ":")
	if !ok {
		return "", false
	}
	device, function, ok := strings.Cut(rest, ".")
	if !ok {
		return "", false
	}
	var parts [4]uint64
	for i, part := range []struct {
		text string
		most int
		bits int
	}{{domain, 8, 32}, {bus, 2, 8}, {device, 2, 5}, {function, 1, 3}} {
		if part.text == "" || len(part.text) > part.most || strings.Trim(part.text, "0123456789abcdefABCDEF") != "" {
			return "", false
		}
		value, err := strconv.ParseUint(part.text, 16, part.bits)
		if err != nil {
			return "", false
		}
		parts[i] = value
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", parts[0], parts[1], parts[2], parts[3]), true
}

// pciAddress returns NVML's form and the one of sysfs of what nvmlDeviceGetPciInfo says.
func pciAddress(info *nvml.PciInfo) (busID, address string, ok bool) {
	busID = cString(info.BusId[:])
	if busID == "" { // nvmlDeviceGetPciInfo_v1 knows the short form only
		busID = cString(info.BusIdLegacy[:])
	}
	address, ok = Address(busID)
	return busID, address, ok
}

// cString reads a C string, whose characters are signed or not by architecture.
func cString[C ~int8 | ~uint8](chars []C) string {
	var text strings.Builder
	for _, char := range chars {
		if char == 0 {
			break
		}
		text.WriteByte(byte(char))
	}
	return text.String()
}

// bitList writes the set bits of words as the kernel writes lists: 0-31,64-95.
func bitList(words []uint) string {
	var list strings.Builder
	total := len(words) * strconv.IntSize
	set := func(i int) bool { return i < total && words[i/strconv.IntSize]>>(i%strconv.IntSize)&1 == 1 }
	for i := 0; i < total; i++ {
		if !set(i) {
			continue
		}
		first := i
		for set(i + 1) {
			i++
		}
		if list.Len() > 0 {
			list.WriteByte(',')
		}
		list.WriteString(strconv.Itoa(first))
		if i > first {
			list.WriteString("-" + strconv.Itoa(i))
		}
	}
	return list.String()
}
