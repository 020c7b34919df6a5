package nldev

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
)

// attributes calls f for each attribute in data. Those after a malformed one
// are lost, and an error says so.
func attributes(data []byte, f func(kind uint16, value []byte)) error {
	decoder, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	for decoder.Next() {
		f(decoder.Type(), decoder.Bytes())
	}
	if err := decoder.Err(); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

// nested calls f with the content of each entry of a table.
func nested(table []byte, entry uint16, f func(content []byte) error) error {
	var failed error
	err := attributes(table, func(kind uint16, value []byte) {
		if kind == entry && failed == nil {
			failed = f(value)
		}
	})
	if failed != nil {
		return failed
	}
	return err
}

// text is a string attribute without its final zero.
func text(value []byte) string {
	before, _, _ := bytes.Cut(value, []byte{0})
	return string(before)
}

// number is an unsigned attribute of 1, 2, 4 or 8 bytes.
func number(value []byte) (uint64, bool) {
	switch len(value) {
	case 1:
		return uint64(value[0]), true
	case 2:
		return uint64(binary.NativeEndian.Uint16(value)), true
	case 4:
		return uint64(binary.NativeEndian.Uint32(value)), true
	case 8:
		return binary.NativeEndian.Uint64(value), true
	default:
		return 0, false
	}
}

// guid writes a GUID as sysfs does. The kernel sends it as a number in host byte
// order, whose hexadecimal digits are those of sysfs; zero is none.
func guid(value []byte) string {
	n, ok := number(value)
	if !ok || n == 0 {
		return ""
	}
	return fmt.Sprintf("%04x:%04x:%04x:%04x", n>>48, n>>32&0xffff, n>>16&0xffff, n&0xffff)
}

func u32(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
