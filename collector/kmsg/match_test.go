package kmsg

import (
	"strings"
	"testing"
)

// lines are lines as kernels wrote them, from public reports, and from the formats
// in the drivers' sources where there was none to be found.
var lines = []struct {
	pattern Pattern
	line    string
	address string
	code    int
}{
	{PeermemError, "nvidia-peermem nv_mem_client_init:659 ERROR nv_mem_client_init -- error while registering traditional client", "", 0},
	{PeermemError, "nvidia-peermem nv_mem_get_pages:385 ERROR error -22 while calling nvidia_p2p_get_pages()", "", 0},
	{PeermemError, "nv_mem nv_mem_get_pages:345 nv_mem_get_pages -- error -22 while calling nvidia_p2p_get_pages()", "", 0},
	{PeermemSymbols, "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client", "", 0},
	{PeermemSymbols, "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)", "", 0},
	{PeermemSymbols, "nv_peer_mem: Unknown symbol ib_register_peer_memory_client (err 0)", "", 0},
	{DMABufTopology, "NVRM: dma-buf attach failed: topology not supported for mapping type FORCE_PCIE", "", 0},
	{DMABufTopology, "NVRM: dma-buf attach failed: PCI topology not supported for dma-buf", "", 0},
	{DMABufTopology, "NVRM: dma-buf attach failed: importer unable to handle MMIO without struct page", "", 0},
	{P2PInvalid, "NVRM: Invalid argument in nv_p2p_get_pages,address or length are not aligned address=0x7f5c12340100, length=0x1000", "", 0},
	{P2PInvalid, "NVRM: Invalid argument in nv_p2p_get_pages_persistent,address or length are not aligned address=0x7f00, length=0x1", "", 0},
	{XidNVLink, "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT Fatal   XC0 i0 Link 00 (0x004a85c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)", "0009:01:00.0", 149},
	{XidNVLink, "NVRM: Xid (PCI:0000:4f:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", "0000:4f:00.0", 74},
	{Xid, "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "0000:01:00.0", 79},
	{Xid, "NVRM: Xid (PCI:0000:01:00): 45, pid=9684, name=python, channel 0x00000015", "0000:01:00.0", 45},
	{Xid, "NVRM: Xid (PCI:0000:18:00 GPU-I:05): 94, pid=7194, name=python3, Contained: SM (0x1). RST: No, D-RST: No", "0000:18:00.0", 94},
	{Xid, "NVRM: Xid (0000:03:00): 8, Channel 00000001", "0000:03:00.0", 8},
	{SXid, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)", "0000:05:00.0", 12028},
	{SXid, "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 30 sourcetrack timeout error", "0000:c3:00.0", 24007},
	{GPUOffBus, "NVRM: GPU 0000:03:00.0: GPU has fallen off the bus.", "0000:03:00.0", 0},
	{GPUOffBus, "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\nNVRM: fallen off the bus and is not responding to commands.", "0000:b3:00.0", 0},
	{GPUOffBus, "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1e07) installed in this\nNVRM: system has fallen off the bus and is not responding to commands.", "0000:01:00.0", 0},
	{MLX5Health, "mlx5_core 0000:41:00.0: poll_health:852:(pid 0): device's health compromised - reached miss count", "0000:41:00.0", 0},
	{MLX5Health, "mlx5_core 0000:41:00.0: print_health_info:458:(pid 0): synd 0x8: unrecoverable hardware error", "0000:41:00.0", 0},
	{MLX5Health, "mlx5_core 0000:0d:00.0: print_health_info:431:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:", "0000:0d:00.0", 0},
	{MLX5Health, "mlx5_core 0000:5e:00.1: poll_health:800:(pid 0): Fatal error 1 detected", "0000:5e:00.1", 0},
	{MLX5Health, "mlx5_core 0000:00:00.1: mlx5_health_try_recover:338:(pid 5553): health recovery flow aborted, PCI reads still not working", "0000:00:00.1", 0},
	{MLX5AccessReg, "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), syndrome (0x305684), err(-22)", "0000:d2:00.0", 0},
	{MLX5AccessReg, "mlx5_core 0000:05:00.0: mlx5_cmd_check:810:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), syndrome (0x9a6171)", "0000:05:00.0", 0},
	{MLX5Command, "mlx5_core 0000:41:04.2: mlx5_cmd_out_err:782:(pid 8321): CREATE_GENERAL_OBJECT(0xa00) op_mod(0xd) failed, status bad parameter(0x3), syndrome (0x5fa1c), err(-22)", "0000:41:04.2", 0},
	{MLX5Command, "mlx5_core 0000:3b:00.0: mlx5_cmd_check:810:(pid 4711): CREATE_MKEY(0x200) op_mod(0x0) failed, status bad resource state(0x9), syndrome (0x6c8fd5)", "0000:3b:00.0", 0},
	{MLX5Command, "mlx5_core 0000:03:00.0: wait_func:964:(pid 112): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource", "0000:03:00.0", 0},
	{MLX5Command, "mlx5_core 0000:06:00.0: wait_func_handle_exec_timeout:1128:(pid 185911): cmd[-22]: CREATE_UCTX(0xa04) No done completion", "0000:06:00.0", 0},
	{MLX5Module, "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature", "0000:5c:00.0", 0},
	{MLX5Module, "mlx5_core 0000:5c:00.0: port_module:252:(pid 0): Port module event[error]: module 1, Cable error, Bus stuck(I2C or data shorted)", "0000:5c:00.0", 0},
	{MLX5Module, "mlx5_core 0000:5c:00.0: temp_warn:174:(pid 0): High temperature on sensors with bit set 0 1", "0000:5c:00.0", 0},
	{MLX5Unplugged, "mlx5_core 0000:63:00.1: Port module event: module 1, Cable unplugged", "0000:63:00.1", 0},
	{MLX5Unplugged, "mlx5_core 0000:01:00.0: Port module event: module 0, Cable unplugged", "0000:01:00.0", 0},
	{SlotPower, "mlx5_core 0000:01:00.0: mlx5_pcie_event:326:(pid 12): Detected insufficient power on the PCIe slot (27W).", "0000:01:00.0", 0},
	{SlotPower, "mlx5_core 0000:01:00.0: mlx5_pcie_event:326: Detected insufficient power on the PCIe slot (27W).", "0000:01:00.0", 0},
	{PCIeBandwidth, "mlx5_core 0000:3b:00.0: 126.016 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x16 link at 0000:3a:00.0 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)", "0000:3b:00.0", 0},
	{PCIeBandwidth, "bnxt_en 0000:01:00.0: 4.000 Gb/s available PCIe bandwidth, limited by 5.0 GT/s PCIe x1 link at 0000:00:1c.1 (capable of 63.008 Gb/s with 8.0 GT/s PCIe x8 link)", "0000:01:00.0", 0},
	{LinkDown, "mlx5_core 0000:3b:00.0 ens1f0np0: Link down", "0000:3b:00.0", 0},
	{LinkDown, "bnxt_en 0000:01:00.0 eno1np0: NIC Link is Down", "0000:01:00.0", 0},
	{LinkDown, "ice 0000:18:00.0 ens801f0: NIC Link is Down", "0000:18:00.0", 0},
	{AERCorrectable, "pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)", "0000:00:1c.0", 0},
	{AERCorrectable, "pcieport 0000:07:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Receiver ID)", "0000:07:00.0", 0},
	{AERCorrectable, "mlx5_core 0000:3b:00.0: AER: PCIe Bus Error: severity=Corrected, type=Data Link Layer, id=00e0(Transmitter ID)", "0000:3b:00.0", 0},
	{AERUncorrectable, "pcieport 0000:c0:01.1: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)", "0000:c0:01.1", 0},
	{AERUncorrectable, "igb 0000:09:00.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)", "0000:09:00.0", 0},
	{AERUncorrectable, "nvidia 0000:9a:00.0: AER: aer_uncor_severity: 0x00462030", "0000:9a:00.0", 0},
	{IOMMUFault, "DMAR: [DMA Write NO_PASID] Request device [00:02.0] fault addr 0xb97ff000 [fault reason 0x05] PTE Write access is not set", "0000:00:02.0", 0},
	{IOMMUFault, "DMAR: [DMA Read] Request device [03:00.0] PASID ffffffff fault addr fffd3000 [fault reason 06] PTE Read access is not set", "0000:03:00.0", 0},
	{IOMMUFault, "dmar: DMAR:[DMA Read] Request device [01:00.0] fault addr 37ae5000 ", "0000:01:00.0", 0},
	{IOMMUFault, "nvme 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000b address=0xb6674000 flags=0x0000]", "0000:01:00.0", 0},
	{IOMMUFault, "AMD-Vi: Event logged [IO_PAGE_FAULT device=08:00.0 domain=0x002c address=0xfffffffdf8000000 flags=0x0008]", "0000:08:00.0", 0},
	{IOMMUFault, "arm-smmu-v3 arm-smmu-v3.0.auto: event 0x10 received:", "", 0},
	{IOMMUFault, "arm-smmu-v3 arm-smmu-v3.16.auto: event: F_TRANSLATION client: 0009:01:00.0 sid: 0x90100 ssid: 0x0 iova: 0x7f00 ipa: 0x0", "0009:01:00.0", 0},
	{Lockdown, "Lockdown: setpci: direct PCI access is restricted; see man kernel_lockdown.7", "", 0},
	{Lockdown, "Lockdown: mstflint: direct PCI access is restricted; see man kernel_lockdown.7", "", 0},
}

// lookAlikes are lines of healthy machines, and such as somebody could have the
// kernel write who chooses a name.
var lookAlikes = map[Pattern][]string{
	PeermemError:     {"nvidia-peermem nv_mem_client_init:659 nothing to say", "nvidia_peermem: loading out-of-tree module taints kernel.", "nv_mem nv_mem_get_pages:345 registered"},
	PeermemSymbols:   {"nvidia_fs: Unknown symbol nvidia_p2p_get_pages (err -2)", "gdrdrv: disagrees about version of symbol module_layout"},
	DMABufTopology:   {"NVRM: dma-buf attach done", "foo: NVRM: dma-buf attach failed: PCI topology not supported for dma-buf"},
	P2PInvalid:       {"NVRM: nv_p2p_get_pages done", "NVRM: Invalid argument in nv_alloc_pages"},
	XidNVLink:        {"NVRM: Xid (PCI:0000:3b:00): 744, pid=1", "NVRM: GPU at PCI:0000:3b:00: GPU-44ec53bd-277c-984f-fa9f-cded30fbfd5d"},
	Xid:              {"NVRM: GPU at PCI:0000:01:00: GPU-f1648d72-c7c8-9814-2832-7a062b009188", "NVRM: GPU Board Serial Number: 1651522000466", "NVRM: Xid (PCI:0000:3[4711]: segfault at 0 ip 0", "audit: NVRM: Xid (PCI:0000:01:00): 79, pid=1"},
	SXid:             {"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Severity 0 Engine instance 46 Sub-engine instance 00", "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Data {0x00140004, 0x00100000}"},
	GPUOffBus:        {"NVRM: A GPU crash dump has been created. If possible, please run", "kernel: someone says GPU has fallen off the bus"},
	MLX5Health:       {"mlx5_core 0000:3b:00.0: print_health_info:431:(pid 0): synd 0x0: ok", "mlx5_core 0000:3b:00.0: firmware version: 28.41.1000", "mlx4_core 0000:3b:00.0: device's health compromised - reached miss count"},
	MLX5AccessReg:    {"mlx5_core 0000:3b:00.0: ACCESS_REG(0x805) done"},
	MLX5Command:      {"mlx5_core 0000:3b:00.0: mlx5_cmd_eq_recover:247:(pid 3122): Recovered 1 EQEs on cmd_eq", "mlx5_core 0000:3b:00.0 eth2: TX timeout detected"},
	MLX5Module:       {"mlx5_core 0004:01:00.0: Port module event: module 0, Cable plugged", "mlxsw_spectrum 0000:03:00.0: Port module event[error]: module 0, Cable error, High Temperature"},
	MLX5Unplugged:    {"mlx5_core 0004:01:00.0: Port module event: module 0, Cable plugged", "mlx5_core 0004:01:00.0: Port module event: module 0, Cable disabled"},
	SlotPower:        {"mlx5_core 0004:01:00.0: mlx5_pcie_event:294:(pid 542): PCIe slot advertised sufficient power (75W).", "mlx5_core 0000:01:00.0: mlx5_pcie_event:299:(pid 12): PCIe slot power capability was not advertised."},
	PCIeBandwidth:    {"mlx5_core 0000:01:00.0: 126.028 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x4 link)", "pci 0000:01:00.0: 2.000 Gb/s available PCIe bandwidth, limited by 2.5 GT/s PCIe x1 link at 0000:00:01.0 (capable of 31.504 Gb/s with 8.0 GT/s PCIe x4 link)"},
	LinkDown:         {"mlx5_core 0000:3b:00.0 ens1f0np0: Link up", "e1000e 0000:00:1f.6 eno1: NIC Link is Down", "mlx5_core 0000:3b:00.0 ens1f0np0: Link down count 4"},
	AERCorrectable:   {"pcieport 0000:00:1c.0: AER: Corrected error received: 0000:00:1c.0", "pcieport 0000:00:1c.0:   device [8086:9d13] error status/mask=00000001/00002000", "pcieport 0000:00:1c.0: AER: enabled with IRQ 121"},
	AERUncorrectable: {"pcieport 0000:00:1d.0: AER: Multiple Uncorrected (Non-Fatal) error received: 0000:00:1d.0", "nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)"},
	IOMMUFault:       {"DMAR: DRHD: handling fault status reg 3", "DMAR: [INTR-REMAP] Request device [f0:1f.7] fault index 0x0 [fault reason 0x25] Blocked a compatibility format interrupt request", "AMD-Vi: Interrupt remapping enabled", "arm-smmu-v3 arm-smmu-v3.0.auto: ias 48-bit, oas 48-bit"},
	Lockdown:         {"Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7", "Kernel is locked down from EFI Secure Boot; see man kernel_lockdown.7"},
}

func TestMatch(t *testing.T) {
	seen := map[Pattern]int{}
	for _, l := range lines {
		seen[l.pattern]++
		event, matches := match([]byte(escape(l.line)))
		if !matches || event.Pattern != l.pattern || event.Address != l.address || event.Code != l.code {
			t.Errorf("%q is %+v (%v)", l.line, event, matches)
		}
		if strings.ContainsAny(event.Text, "\n") || len(event.Text) > maxText {
			t.Errorf("the text %q", event.Text)
		}
	}
	for _, pattern := range Patterns {
		if seen[pattern] < 2 || len(lookAlikes[pattern]) == 0 {
			t.Errorf("%s has %d lines and %d that are none", pattern, seen[pattern], len(lookAlikes[pattern]))
		}
		for _, line := range lookAlikes[pattern] {
			if event, matches := match([]byte(escape(line))); matches && event.Pattern == pattern {
				t.Errorf("%q is %+v", line, event)
			}
		}
	}
}

// Nothing that a user wrote is in what Plain leaves of a line.
func TestPlain(t *testing.T) {
	for line, want := range map[string]string{
		"NVRM: Xid (PCI:0000:01:00): 45, pid=9684, name=secret, channel 0x00000015":    "NVRM: Xid (PCI:0000:01:00): 45",
		"Lockdown: secret: direct PCI access is restricted; see man kernel_lockdown.7": "Lockdown: ?: direct PCI access is restricted",
		"mlx5_core 0000:3b:00.0 ens1f0np0: Link down":                                  "mlx5_core 0000:3b:00.0 ens1f0np0: Link down",
		"my secret": "",
		"NVRM: GPU at PCI:0000:01:00: GPU-f1648d72-c7c8-9814-2832-7a062b009188":                                                     "",
		"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)":                 "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32",
		"mlx5_core 0000:63:00.1: Port module event: module 1, Cable unplugged":                                                      "mlx5_core 0000:63:00.1: Port module event: module 1, Cable unplugged",
		"DMAR: [DMA Read] Request device [03:00.0] PASID ffffffff fault addr fffd3000 [fault reason 06] PTE Read access is not set": "DMAR: [DMA Read] Request device [03:00.0] PASID ffffffff fault addr fffd3000",
	} {
		if got := Plain(line); got != want {
			t.Errorf("of %q is left %q", line, got)
		}
	}
	for _, l := range lines {
		plain := Plain(shown(l.line))
		if plain == "" {
			t.Errorf("nothing is left of %q", l.line)
		}
		if event, matches := match([]byte(plain)); !matches || event.Pattern != l.pattern {
			t.Errorf("%q is left of %q, which is %+v", plain, l.line, event)
		}
	}
}

// A form is not looked at unless its literal is in the line: it must be in each.
func TestNeeded(t *testing.T) {
	for _, l := range lines {
		for i := range Rows {
			for _, f := range Rows[i].forms {
				found := strings.Contains(l.line, string(f.needed)) && strings.HasPrefix(l.line, string(f.begins))
				if f.line.MatchString(l.line) && !found {
					t.Errorf("%q is passed over: it does not begin with %q, or %q is not in it", l.line, f.begins, f.needed)
				}
				if strings.ContainsAny(f.line.String()[len(f.begins)+1:][:1], "?*{") {
					t.Errorf("%q does not always begin with %q", f.line, f.begins)
				}
			}
		}
	}
}

func TestPatterns(t *testing.T) {
	seen := map[Pattern]bool{}
	for _, row := range Rows {
		if seen[row.Pattern] || row.Means == "" || !row.Pattern.Known() {
			t.Errorf("the row of %q", row.Pattern)
		}
		seen[row.Pattern] = true
	}
	if Pattern("").Known() || Pattern("other").Known() {
		t.Error("what is no pattern is known")
	}
}

// A line of a flood costs little, whether it is about something else or not.
func BenchmarkMatch(b *testing.B) {
	for name, line := range map[string]string{
		"other": `audit: type=1400 audit(1712345678.123:456): apparmor="DENIED" operation="open" profile="snap.firefox" name="/proc/1234/mountinfo" pid=4711 comm="firefox"`,
		"close": "mlx5_core 0000:3b:00.0: mlx5_cmd_eq_recover:247:(pid 3122): Recovered 1 EQEs on cmd_eq",
		"match": "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), syndrome (0x305684), err(-22)",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			text := []byte(line)
			for b.Loop() {
				match(text)
			}
		})
	}
}
