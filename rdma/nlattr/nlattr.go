// Package nlattr takes netlink attributes apart.
//
// It is tolerant where libraries are strict: kernels add attributes, and a
// message that ends early still has its first attributes. What cannot be
// decoded is left out; nothing makes it fail.
package nlattr

import (
	"bytes"
	"encoding/binary"
	"iter"
)

// headerSize is that of struct nlattr: length and type, 16 bits each.
const headerSize = 4

// typeMask removes NLA_F_NESTED and NLA_F_NET_BYTEORDER from a type.
const typeMask = 1<<14 - 1

// All returns the attributes in b in their order, by type. It ends at the first
// one whose length is impossible. Values are parts of b.
func All(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= headerSize {
			length := int(binary.NativeEndian.Uint16(b))
			kind := binary.NativeEndian.Uint16(b[2:]) & typeMask
			if length < headerSize || length > len(b) {
				return
			}
			if !yield(kind, b[headerSize:length]) {
				return
			}
			b = b[min(len(b), (length+3)&^3):]
		}
	}
}

// Append adds an attribute to b, padded as the next one needs it.
func Append(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(headerSize+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// Text returns a string attribute's text, which ends at its first zero byte.
func Text(value []byte) string {
	text, _, _ := bytes.Cut(value, []byte{0})
	return string(text)
}

// Number returns an unsigned integer attribute of any width, and false if the
// value has the width of none.
func Number(value []byte) (uint64, bool) {
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
