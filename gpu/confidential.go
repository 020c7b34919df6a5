package gpu

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
)

// readConfidential reads whether confidential computing is on, once: it changes
// only with a reset of the GPUs and a new start of the driver.
func (r *Reader) readConfidential(session *visit) {
	if r.confidential.Known {
		return
	}
	v := &visit{calls: session.calls} // a lost GPU that it meets is no reason to ask no other
	defer func() { session.absorb(v) }()
	// An old driver has the function but not the version of its argument.
	settings := ask(v, "nvmlSystemGetConfComputeSettings", r.calls.lib.SystemGetConfComputeSettings, nvml.ERROR_ARGUMENT_VERSION_MISMATCH)
	if settings.Known {
		s := settings.Value
		r.confidential = sysread.Some(s.CcFeature != nvml.CC_SYSTEM_FEATURE_DISABLED || s.MultiGpuMode != nvml.CC_SYSTEM_MULTIGPU_NONE)
		return
	}
	r.confidential = ask(v, "nvmlSystemGetConfComputeState", func() (bool, nvml.Return) {
		state, ret := r.calls.lib.SystemGetConfComputeState()
		if ret == nvml.ERROR_NOT_SUPPORTED {
			return false, nvml.SUCCESS // what is not supported is not on
		}
		return state.CcFeature != nvml.CC_SYSTEM_FEATURE_DISABLED, ret
	})
}
