package nccllog

import "strings"

// Setting is a variable of the job's environment, as the log shows it.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Count uint64 `json:"count"`
	// Read is whether NCCL says that it read it. Else it only stands in the log,
	// in a script's output for example.
	Read   bool   `json:"read_by_nccl"`
	Effect Effect `json:"effect"`
	Note   string `json:"note,omitempty"`
}

type settingKey struct{ name, value string }

// Effect is what a variable does to GPUDirect RDMA.
type Effect string

// Effects.
const (
	EffectNone     Effect = ""         // none that is known
	EffectNothing  Effect = "nothing"  // NCCL has no such variable, although its name looks so
	EffectDisables Effect = "disables" // it switches GPUDirect RDMA, or RDMA, off
	EffectChanges  Effect = "changes"  // it changes whether or how it is used
)

// effect is what variables of a name do with a value.
type effect struct {
	name   string // ends with * where all that begin so are meant
	values string // blank-separated, in upper case; "" for all
	effect Effect
	note   string
}

// effects are the variables that are known to matter; the first that fits holds.
var effects = []effect{
	{"NCCL_GPUDIRECT*", "", EffectNothing, "NCCL never had a variable of this name; leave it out"},
	{"NCCL_IB_CUDA_SUPPORT", "", EffectNothing, "removed in NCCL 2.4.0; leave it out"},
	{"NCCL_IB_GDR_LEVEL", "", EffectNothing, "renamed in NCCL 2.4.0: NCCL_NET_GDR_LEVEL"},
	{"NCCL_NET_GDR_LEVEL", "LOC 0", EffectDisables, "switches GPUDirect RDMA off; unset it"},
	{"NCCL_NET_GDR_LEVEL", "", EffectChanges, "the largest distance of GPU and NIC at which GPUDirect RDMA is used"},
	{"NCCL_NET_GDR_READ", "0", EffectDisables, "sends are staged: the NIC may not read GPU memory; unset it on Ampere and later"},
	{"NCCL_NET_GDR_C2C", "0", EffectChanges, "no GPUDirect RDMA through the CPU's C2C link on Grace"},
	{"NCCL_DMABUF_ENABLE", "0", EffectChanges, "no dma-buf: without nvidia-peermem all is staged"},
	{"NCCL_IB_DISABLE", "1", EffectDisables, "no InfiniBand or RoCE at all; unset it"},
	{"NCCL_NET", "SOCKET", EffectDisables, "TCP only; unset it"},
	{"NCCL_NET_DISABLE_INTRA", "", EffectChanges, "whether connections within a node may use the network"},
	{"NCCL_NET_PLUGIN", "", EffectChanges, "which network plugin is loaded"},
	{"NCCL_IB_HCA", "", EffectChanges, "which NICs are used: those nearest to the GPUs should be among them"},
	{"NCCL_IB_DATA_DIRECT", "0", EffectChanges, "no Data Direct function of ConnectX-8"},
	{"NCCL_IB_PCI_RELAXED_ORDERING", "0", EffectChanges, "no relaxed ordering: slower under virtualisation"},
	{"NCCL_TOPO_FILE", "", EffectChanges, "distances come from this file; a wrong one puts GPUs far from their NICs"},
	{"NCCL_PXN_DISABLE", "1", EffectChanges, "no detour over the GPU next to the right NIC"},
}

// effectOf looks a variable up.
func effectOf(name, value string) (Effect, string) {
	for i := range effects {
		row := &effects[i]
		prefix, open := strings.CutSuffix(row.name, "*")
		if name != row.name && (!open || !strings.HasPrefix(name, prefix)) {
			continue
		}
		if row.values == "" || has(strings.Fields(row.values), strings.ToUpper(value)) {
			return row.effect, row.note
		}
	}
	return EffectNone, ""
}

// setting reads what NCCL says of its environment:
//
//	NCCL_NET_GDR_LEVEL set by environment to SYS
//	NCCL_IB_HCA set to mlx5
func (p *parser) setting(e *entry) bool {
	name, value, found := strings.Cut(e.text, " set by environment to ")
	if !found {
		name, value, found = strings.Cut(e.text, " set to ")
	}
	if !found || !isVariable(name) || !strings.HasPrefix(name, "NCCL_") {
		return false
	}
	p.set(name, strings.TrimSuffix(value, "."), true)
	return true
}

func isVariable(name string) bool {
	for i := range len(name) {
		if !isVariableByte(name[i]) {
			return false
		}
	}
	return name != "" && len(name) < 64
}

func isVariableByte(c byte) bool { return c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' }

func (p *parser) set(name, value string, read bool) {
	key := settingKey{clean(name), clean(value)}
	row := p.settings.at(key)
	row.Name, row.Value, row.Read = key.name, key.value, row.Read || read
	row.Effect, row.Note = effectOf(key.name, key.value)
	row.Count++
}

// assignments finds variables that NCCL cannot say it read, since it has none of
// that name, where a command or a script's output shows them: NCCL_GPUDIRECT=1.
func (p *parser) assignments(text string) {
	for {
		at := strings.Index(text, "NCCL_")
		if at < 0 {
			return
		}
		text = text[at:]
		end := 0
		for end < len(text) && isVariableByte(text[end]) {
			end++
		}
		name := text[:end]
		text = text[end:]
		value, assigned := strings.CutPrefix(text, "=")
		if !assigned || !isVariable(name) {
			continue
		}
		if stop := strings.IndexAny(value[:min(len(value), 4*mostText)], " \t,;'\"\\"); stop >= 0 {
			value = value[:stop]
		}
		if effect, _ := effectOf(name, value); effect == EffectNothing {
			p.set(name, value, false)
		}
	}
}
