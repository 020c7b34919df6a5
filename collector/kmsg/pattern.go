package kmsg

import (
	"regexp"
	"strings"
)

// Pattern names a kind of line, as the label pattern has it.
type Pattern string

// Patterns. A line is of one of them at most.
const (
	PeermemError     Pattern = "peermem_error"
	PeermemSymbols   Pattern = "peermem_symbols"
	DMABufTopology   Pattern = "dmabuf_topology"
	P2PInvalid       Pattern = "p2p_invalid"
	XidNVLink        Pattern = "xid_nvlink"
	Xid              Pattern = "xid"
	SXid             Pattern = "sxid"
	GPUOffBus        Pattern = "gpu_off_bus"
	MLX5Health       Pattern = "mlx5_health"
	MLX5AccessReg    Pattern = "mlx5_access_reg"
	MLX5Command      Pattern = "mlx5_command"
	MLX5Module       Pattern = "mlx5_module"
	MLX5Unplugged    Pattern = "mlx5_unplugged"
	SlotPower        Pattern = "slot_power"
	PCIeBandwidth    Pattern = "pcie_bandwidth"
	LinkDown         Pattern = "link_down"
	AERCorrectable   Pattern = "aer_correctable"
	AERUncorrectable Pattern = "aer_uncorrectable"
	IOMMUFault       Pattern = "iommu_fault"
	Lockdown         Pattern = "lockdown"
)

// Row says what lines a pattern is about.
type Row struct {
	Pattern Pattern
	// Means is what a line of it says, in a few words.
	Means string
	// forms are how the kernel writes it.
	forms []form
}

// form is one way in which a line is written.
type form struct {
	// begins is what such a line begins with, as far as it is always the same.
	begins []byte
	// needed is in every such line, and in few others: it is looked for first, because
	// nearly all lines of a log are about something else.
	needed []byte
	// line matches the line from its beginning, so that what a driver quotes from
	// users (a process's name) cannot look like one. It takes in fixed words,
	// numbers, and names of drivers, functions and interfaces only: see [Plain].
	// Groups: addr is a PCI function, code the number of an Xid or SXid, name a
	// user's text.
	line *regexp.Regexp
}

// Parts of lines.
const (
	function = `(?P<addr>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])`
	// mlx5 begins a line of mlx5_core: its macros put function, line and process
	// before some messages, and newer ones leave the process out.
	mlx5 = `^mlx5_core ` + function + `: (?:[a-z0-9_]+:\d+:(?:\(pid \d+\):)? )?`
	// port begins a line about a network interface of a driver of fast NICs.
	port = `^(?:mlx5_core|mlx4_en|bnxt_en|ice|ionic)(?::| ` + function + `) [^ :]{1,15}: `
	// xid begins a line of the driver about a GPU, or an instance of one.
	xid = `^NVRM: Xid \((?:PCI:)?(?P<addr>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})[^)]{0,60}\): `
	// aer begins a line about an error of a PCI function, whatever its driver is.
	aer = `^[A-Za-z0-9_-]{1,60} ` + function + `: (?:AER: )?`
	// nic are drivers that print their slot's bandwidth when they begin.
	nic = `^(?:mlx5_core|mlx4_core|bnxt_en|ice|ionic|efa) ` + function + `: `
)

// peermemModules are nvidia_peermem and its predecessor.
const peermemModules = `(?:nvidia_peermem|nv_peer_mem)`

func of(needed, line string) form {
	return form{fixed(line), []byte(needed), regexp.MustCompile(line)}
}

// fixed is the text with which all begins that a regular expression matches, as
// far as it is plain.
func fixed(line string) []byte {
	text := strings.TrimPrefix(line, "^")
	if end := strings.IndexAny(text, `\([.?*+{|$`); end >= 0 {
		text = text[:end]
	}
	return []byte(text)
}

// Rows are all patterns. The first that matches a line has it.
//
// What the lines are like is from the sources of the drivers: nvidia-peermem.c,
// nv-dmabuf.c, nv-p2p.c and osinit.c of open-gpu-kernel-modules, nv_peer_mem.c,
// mlx5/core health.c, cmd.c and events.c, drivers/pci pci.c and aer.c,
// drivers/iommu, kernel/module and security/lockdown.
var Rows = []Row{
	{PeermemError, "nvidia-peermem or nv_peer_mem refused to register GPU memory, or to begin", []form{
		of("nvidia-peermem ", `^nvidia-peermem [a-z0-9_]+:\d+ ERROR [a-z0-9_]+\b(?: -- )?(?:error -?\d+ while calling [a-z0-9_]+\(\)|[a-z0-9_ ]*)`),
		of("nv_mem ", `^nv_mem [a-z0-9_]+:\d+ (?:[a-z0-9_]+ -- )?(?:error -?\d+ while calling [a-z0-9_]+\(\)|[a-z0-9_ ]*(?:error|invalid|fail)[a-z]*\b)`),
	}},
	{PeermemSymbols, "the peer memory module was built for another RDMA stack and cannot be loaded", []form{
		of("disagrees about version of symbol ", `^`+peermemModules+`: disagrees about version of symbol [A-Za-z0-9_]+`),
		of("Unknown symbol ", `^`+peermemModules+`: Unknown symbol [A-Za-z0-9_]+(?: \(err -?\d+\))?`),
	}},
	{DMABufTopology, "the NVIDIA driver refused a NIC's dma-buf attachment", []form{
		of("NVRM: dma-buf attach failed: ", `^NVRM: dma-buf attach failed: (?:PCI topology not supported for dma-buf|topology not supported for mapping type FORCE_PCIE|importer unable to handle MMIO without struct page)`),
	}},
	{P2PInvalid, "GPU memory to be registered is not aligned to 64 KiB", []form{
		of("NVRM: Invalid argument in nv_p2p_", `^NVRM: Invalid argument in nv_p2p_[a-z_]+`),
	}},
	{XidNVLink, "Xid of NVLink or NVLink-C2C: 74, 121, 144 to 150, 155", []form{
		of("NVRM: Xid (", xid+`(?P<code>74|121|14[4-9]|150|155)\b`),
	}},
	{Xid, "any other Xid: an error that the NVIDIA driver reports of a GPU", []form{
		of("NVRM: Xid (", xid+`(?P<code>\d{1,5})\b`),
	}},
	{SXid, "SXid: an error that the NVIDIA driver reports of an NVSwitch", []form{
		// Each is followed by lines with the same beginning about its severity and data.
		of(": SXid (PCI:", `^nvidia-nvswitch\d{1,3}: SXid \(PCI:(?P<addr>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\): (?P<code>\d{1,6}), (?:Fatal|Non-fatal)\b(?:, Link \d+)?`),
	}},
	{GPUOffBus, "a GPU has fallen off the bus", []form{
		of("GPU has fallen off the bus", `^NVRM: GPU (?P<addr>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]): GPU has fallen off the bus`),
		of("NVRM: The NVIDIA GPU ", `^NVRM: The NVIDIA GPU (?P<addr>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s(?:NVRM: )?(?:\(PCI ID: [0-9a-f]{4}:[0-9a-f]{4}\) )?installed in this\s(?:NVRM: )?system has\s(?:NVRM: )?fallen off the bus`),
	}},
	{MLX5Health, "the firmware of a NIC of NVIDIA's fails", []form{
		of("health compromised", mlx5+`device's health compromised - reached miss count`),
		of("Fatal error ", mlx5+`Fatal error \d+ detected`),
		of("Health issue observed", mlx5+`Health issue observed, [a-z /]{1,80}(?:, severity\(\d+\) [A-Z]+)?`),
		of(" synd 0x", mlx5+`synd 0x0*[1-9a-f][0-9a-f]*: [a-z /]{1,80}`),
		of("health recovery f", mlx5+`health recovery (?:failed|flow aborted)`),
	}},
	{MLX5AccessReg, "a NIC of NVIDIA's refused access to a register, as restricted functions do when counters are read", []form{
		of("ACCESS_REG(0x805) ", mlx5+`ACCESS_REG\(0x805\) op_mod\(0x[0-9a-f]+\) failed, status [a-z ]{1,40}\(0x[0-9a-f]+\), syndrome \(0x[0-9a-f]+\)`),
	}},
	{MLX5Command, "a firmware command of a NIC of NVIDIA's failed or timed out", []form{
		of(" failed, status ", mlx5+`[A-Z0-9_]+\(0x[0-9a-f]+\) op_mod\(0x[0-9a-f]+\) failed, status [A-Za-z ]{1,40}\(0x[0-9a-f]+\), syndrome \(0x[0-9a-f]+\)`),
		of("imeout", mlx5+`(?:cmd\[-?\d+\]: )?[A-Z0-9_]+\(0x[0-9a-f]+\) (?:timeout\. Will cause a leak of a command resource|Async, timeout\.)`),
		of(") No done completion", mlx5+`(?:cmd\[-?\d+\]: )?[A-Z0-9_]+\(0x[0-9a-f]+\) No done completion`),
	}},
	{MLX5Module, "a cable or module of a NIC of NVIDIA's is bad, too hot, or of no supported kind", []form{
		of("Port module event[error]: ", mlx5+`Port module event\[error\]: module \d+, [A-Za-z ]{1,20}, [A-Za-z0-9 /(),.'-]{1,120}`),
		of("High temperature on sensors", mlx5+`High temperature on sensors with bit set (?:0x)?[0-9a-f]+ (?:0x)?[0-9a-f]+`),
	}},
	{MLX5Unplugged, "a port of a NIC of NVIDIA's has no cable", []form{
		of("Port module event: ", mlx5+`Port module event: module \d+, Cable unplugged`),
	}},
	{SlotPower, "a NIC of NVIDIA's got too little power from its slot; usual on boards where it has no slot", []form{
		of(" power on the PCIe slot", mlx5+`Detected insufficient power on the PCIe slot \(\d+W\)`),
	}},
	{PCIeBandwidth, "a NIC's slot is slower than the NIC", []form{
		of("available PCIe bandwidth, limited by ", nic+`\d+\.\d+ Gb/s available PCIe bandwidth, limited by (?:\d+\.\d+ GT/s PCIe|Unknown(?: speed)?) x\d+ link at (?:[0-9a-f]{4,8}:[0-9a-f:.]{7}|<unknown>) \(capable of \d+\.\d+ Gb/s with (?:\d+\.\d+ GT/s PCIe|Unknown(?: speed)?) x\d+ link\)`),
	}},
	{LinkDown, "the link of an Ethernet NIC went down", []form{
		of("ink down", port+`Link down\s*$`),
		of("ink is Down", port+`NIC Link is Down\s*$`),
		of("ink is down", port+`NIC Link is down\s*$`),
	}},
	{AERCorrectable, "a PCI function had an error that the link corrected", []form{
		of("PCIe Bus Error: severity=Correct", aer+`PCIe Bus Error: severity=Correct(?:ed|able), type=[A-Za-z ]{1,40}`),
	}},
	{AERUncorrectable, "a PCI function had an error that lost data", []form{
		of("PCIe Bus Error: severity=Uncorrect", aer+`PCIe Bus Error: severity=Uncorrect(?:ed|able) \((?:Non-Fatal|Fatal)\), type=[A-Za-z ]{1,40}`),
		// Machines whose firmware reads the errors first; of correctable ones it is not printed.
		of("aer_uncor_severity: 0x", aer+`aer_uncor_severity: 0x[0-9a-f]{8}`),
	}},
	{IOMMUFault, "the IOMMU refused a device's access to memory", []form{
		of("Request device [", `^(?:dmar: )?DMAR: ?\[DMA (?:Read|Write)(?: NO_PASID| PASID)?[^\]]{0,20}\] Request device \[(?P<addr>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\](?: PASID [0-9a-f]+)? fault addr (?:0x)?[0-9a-f]+`),
		of("AMD-Vi: Event logged [IO_PAGE_FAULT", `^[A-Za-z0-9_-]{1,60} `+function+`: AMD-Vi: Event logged \[IO_PAGE_FAULT domain=0x[0-9a-f]+ address=0x[0-9a-f]+`),
		of("AMD-Vi: Event logged [IO_PAGE_FAULT", `^AMD-Vi: Event logged \[IO_PAGE_FAULT device=(?P<addr>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) domain=0x[0-9a-f]+ address=0x[0-9a-f]+`),
		of("arm-smmu-v3", `^arm-smmu-v3 [A-Za-z0-9.:_-]{1,60}: event(?: 0x[0-9a-f]+ received|: [A-Z_]{1,30} client: (?P<addr>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]))`),
		of("Unhandled context fault: ", `^arm-smmu [A-Za-z0-9.:_-]{1,60}: Unhandled context fault: fsr=0x[0-9a-f]+`),
	}},
	{Lockdown, "a program wanted to write a PCI function's configuration, which Secure Boot forbids", []form{
		of(": direct PCI access is restricted", `^Lockdown: (?P<name>.{1,64}?): direct PCI access is restricted`),
	}},
}

// Patterns are all patterns, in the order of Rows.
var Patterns = func() []Pattern {
	all := make([]Pattern, len(Rows))
	for i := range Rows {
		all[i] = Rows[i].Pattern
	}
	return all
}()
