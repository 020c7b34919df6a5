package loopback

import "encoding/binary"

// The pattern that is written and looked for: each 8 bytes are a product of the
// seed and their place, so that stale, shifted and flipped data all show.

// oddFactor makes neighbouring words differ in many bits (2^64 divided by the
// golden ratio).
const oddFactor = 0x9e3779b97f4a7c15

func word(seed uint64, offset int) uint64 { return (seed + uint64(offset/8) + 1) * oddFactor }

// fill writes the pattern of bytes offset and following. Both offset and length
// are multiples of 8.
func fill(memory []byte, seed uint64, offset int) {
	for i := 0; i+8 <= len(memory); i += 8 {
		binary.NativeEndian.PutUint64(memory[i:], word(seed, offset+i))
	}
}

// mismatches counts the words of 8 bytes that are not of the pattern.
func mismatches(memory []byte, seed uint64, offset int) int {
	n := 0
	for i := 0; i+8 <= len(memory); i += 8 {
		if binary.NativeEndian.Uint64(memory[i:]) != word(seed, offset+i) {
			n++
		}
	}
	return n
}
