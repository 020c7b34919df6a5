package gpu

import (
	"encoding/binary"
	"math"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
)

const callFieldValues = "nvmlDeviceGetFieldValues"

// maxFields bounds the values asked for in one call.
const maxFields = 256

// field is a value that NVML has no function for (NVML_FI_DEV_*).
type field struct {
	id    uint32
	scope uint32 // the link, where the field is of a link
}

// fields asks for values in few calls; NVML is asked and answers for each by
// itself. The result has the order of wanted.
func (v *visit) fields(d Device, wanted []field) []sysread.Maybe[uint64] {
	values := make([]sysread.Maybe[uint64], len(wanted))
	for from := 0; from < len(wanted); from += maxFields {
		to := min(from+maxFields, len(wanted))
		v.fieldBatch(d, wanted[from:to], values[from:to])
	}
	return values
}

func (v *visit) fieldBatch(d Device, wanted []field, into []sysread.Maybe[uint64]) {
	raw := make([]nvml.FieldValue, len(wanted))
	for i, f := range wanted {
		raw[i].FieldId, raw[i].ScopeId = f.id, f.scope
	}
	if !ask(v, callFieldValues, status(func() nvml.Return { return d.GetFieldValues(raw) })).Known {
		return
	}
	failed := map[uint32]bool{}
	for i := range raw {
		ret := nvml.Return(raw[i].NvmlReturn)
		if failed[raw[i].FieldId] && ret != nvml.SUCCESS {
			continue // once for all links
		}
		errs := len(v.errs)
		// A driver older than the field calls it an invalid argument.
		if v.judge(callFieldValues+"/"+strconv.Itoa(int(raw[i].FieldId)), ret, absentField) {
			into[i] = decodeField(&raw[i])
		}
		if len(v.errs) > errs {
			failed[raw[i].FieldId] = true
		}
		if v.lost || v.down {
			return
		}
	}
}

// absentField are returns of a field that the driver or the link does not have.
var absentField = []nvml.Return{nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_FOUND, nvml.ERROR_NO_DATA, nvml.ERROR_NOT_READY}

// decodeField reads the union nvmlValue_t.
func decodeField(f *nvml.FieldValue) sysread.Maybe[uint64] {
	bits := binary.NativeEndian.Uint64(f.Value[:])
	switch nvml.ValueType(f.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return sysread.Some(bits)
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return sysread.Some(uint64(binary.NativeEndian.Uint32(f.Value[:])))
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return sysread.Some(uint64(binary.NativeEndian.Uint16(f.Value[:])))
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return notNegative(int64(bits))
	case nvml.VALUE_TYPE_SIGNED_INT:
		return notNegative(int64(int32(binary.NativeEndian.Uint32(f.Value[:]))))
	case nvml.VALUE_TYPE_DOUBLE:
		if value := math.Float64frombits(bits); value >= 0 && value < 1<<63 {
			return sysread.Some(uint64(value))
		}
	}
	return sysread.Maybe[uint64]{}
}

// notNegative returns what a counter or a number of things can be.
func notNegative(value int64) sysread.Maybe[uint64] {
	if value < 0 {
		return sysread.Maybe[uint64]{}
	}
	return sysread.Some(uint64(value))
}
