package gpu

import (
	"encoding/binary"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// FuzzDecodeField: a field of a type that is not known has no value, and none
// is more than its bytes can hold.
func FuzzDecodeField(f *testing.F) {
	for kind := range uint32(9) {
		f.Add(kind, uint64(1)<<63)
		f.Add(kind, uint64(0x7ff0000000000001)) // not a number
		f.Add(kind, ^uint64(0))
	}
	f.Fuzz(func(t *testing.T, kind uint32, bits uint64) {
		field := nvml.FieldValue{ValueType: kind}
		binary.NativeEndian.PutUint64(field.Value[:], bits)
		got := decodeField(&field)
		if !got.Known && got.Value != 0 {
			t.Errorf("type %d, %x: %+v", kind, bits, got)
		}
		switch nvml.ValueType(kind) {
		case nvml.VALUE_TYPE_UNSIGNED_INT, nvml.VALUE_TYPE_SIGNED_INT:
			if got.Value > 1<<32-1 {
				t.Errorf("type %d, %x: %d", kind, bits, got.Value)
			}
		case nvml.VALUE_TYPE_DOUBLE, nvml.VALUE_TYPE_SIGNED_LONG_LONG:
			if got.Value >= 1<<63 {
				t.Errorf("type %d, %x: %d", kind, bits, got.Value)
			}
		case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, nvml.VALUE_TYPE_UNSIGNED_SHORT:
		default:
			if got.Known {
				t.Errorf("a value of the unknown type %d", kind)
			}
		}
	})
}
