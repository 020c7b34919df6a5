package capture

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// verdict says what becomes of a field.
type verdict int

const (
	keep      verdict = iota // as it is, but for host names and UUIDs
	pseudonym                // replaced as a whole, by kind
	filtered                 // what the filter leaves of it
	drop                     // not written
)

// class is how a field is treated.
type class struct {
	verdict verdict
	kind    kind
	filter  func(p *pseudonyms, text string) string
	// segments is the filter of what is no text.
	segments func([]Segment) []Segment
}

// row classes files by path, or fields of answers by question and place.
type row struct {
	part string // "" for files
	// pattern is a regular expression of the whole path or question. In those of
	// paths {sys} and {proc} stand for where these are mounted, {root} for a root of
	// the driver, {dev} for anything in sysfs that has files of a device.
	pattern string
	// field says where in the answer: ".a" is a member, "[]" each element, ".*" each
	// member. "" is the answer itself. Not of files.
	field string
	class class
}

// kept is the short form for the table.
var kept = class{verdict: keep}

func as(k kind) class { return class{verdict: pseudonym, kind: k} }

func only(filter func(*pseudonyms, string) string) class {
	return class{verdict: filtered, filter: filter}
}

// classes is the only place that says what is written of a host. What no row is
// about is not written: new readers need new rows, and a test says which.
var classes = slices.Concat(fileClasses, netlinkClasses, netdevClasses, nvmlClasses, hostClasses, probeClasses, processClasses, kernelLogClasses)

// fileClasses are about the content of files, and let paths be named: in
// directories, links and by whether they are there. The target of a link and the
// names in a directory are treated as the path itself is.
var fileClasses = []row{
	{pattern: `{sys}|{sys}/(class|bus/pci)/[a-z_/]+|{sys}/kernel/(mm/memory_peers|iommu_groups)|{sys}/module(/[^/]+(/holders)?)?`, class: kept},
	{pattern: `{sys}/class/(infiniband|infiniband_mad|infiniband_verbs|infiniband_cm|net|iommu)/[^/]+|{sys}/bus/pci/devices/[^/]+`, class: kept},
	{pattern: `{dev}/(driver|iommu_group|physfn|device|infiniband|infiniband_(mad|cm|verbs)|net|hw_counters|ports)`, class: kept},
	{pattern: `{dev}/(device/driver|(infiniband|net|mlx[45]_core\.[^/]+|virtio[0-9]+)(/[^/]+)?)|{dev}/[^/]*\.sf\.[0-9]+`, class: kept},
	{pattern: `{dev}/[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]`, class: kept},

	// PCI functions.
	{pattern: `{dev}/(vendor|device|class|numa_node|local_cpulist|(current|max)_link_(speed|width)|power_state|power/runtime_status|sfnum)`, class: kept},
	{pattern: `{dev}/aer_dev_(correctable|fatal|nonfatal)`, class: kept},
	{pattern: `{dev}/config`, class: class{verdict: filtered, segments: withoutSerial}},

	// RDMA devices and their ports.
	{pattern: `{dev}/infiniband/[^/]+/(board_id|fw_ver|hca_type|node_type|parent)`, class: kept},
	{pattern: `{dev}/infiniband/[^/]+/(node_guid|sys_image_guid)`, class: as(kindGUID)},
	{pattern: `{dev}/infiniband/[^/]+/(ports/[0-9]+/)?(hw_counters|counters|counters_ext)(/[^/]+)?`, class: kept},
	{pattern: `{dev}/infiniband/[^/]+/ports/[0-9]+/(state|phys_state|rate|link_layer|lid|sm_lid|cap_mask|lid_mask_count|sm_sl)`, class: kept},
	{pattern: `{dev}/infiniband/[^/]+/ports/[0-9]+/gids/[0-9]+`, class: as(kindGID)},
	{pattern: `{dev}/infiniband/[^/]+/ports/[0-9]+/gid_attrs/(types|ndevs)/[0-9]+`, class: kept},
	{pattern: `{dev}/infiniband_(mad|verbs|cm)/[^/]+/ibdev`, class: kept},

	// Network interfaces.
	{pattern: `{dev}/net/[^/]+/address`, class: as(kindMAC)},
	{pattern: `{dev}/net/[^/]+/(carrier_changes|carrier_(up|down)_count|dev_port|dev_id|ifindex|mtu|type|qos/trust|ecn/roce_(np|rp)/enable/[0-7])`, class: kept},

	// The kernel, its modules, and their lists.
	{pattern: `{sys}/kernel/iommu_groups/[0-9]+/type|{sys}/kernel/security/lockdown`, class: kept},
	{pattern: `{sys}/kernel/debug/dma_buf/bufinfo`, class: only(unnamedBuffers)},
	{pattern: `{sys}/kernel/mm/memory_peers/[^/]+/(version|num_[a-z_]+)`, class: kept},
	{pattern: `{sys}/module/[a-z0-9_]+/(version|srcversion|taint|initstate|refcnt|parameters/(peerdirect_support|persistent_api_support))`, class: kept},
	{pattern: `{sys}/module/nvidia/parameters/NVreg_GrdmaPciTopoCheckOverride`, class: kept},
	{pattern: `{sys}/module/nvidia/parameters/NVreg_RegistryDwords`, class: only(knownDwords)},
	{pattern: `{proc}/driver/nvidia/gpus`, class: kept},
	{pattern: `{proc}/driver/nvidia/params`, class: only(knownParams)},
	{pattern: `{proc}/driver/nvidia/version`, class: only(withoutBuilder)},
	{pattern: `{proc}/modules|{proc}/sys/kernel/osrelease|{proc}/self`, class: kept},
	{pattern: `{proc}/([0-9]+|self)/mountinfo`, class: only(mountPoints)},
	{pattern: `{proc}/([0-9]+|self)/maps`, class: only(mappedFiles)},
	{pattern: `{proc}/cmdline`, class: only(knownCommandLine)},
	{pattern: `{root}/((usr/)?lib(64)?/)?modules/[^/]+/modules\.dep`, class: kept},

	// How the host is wired.
	{pattern: `{dev}/dmi/id/(product_name|sys_vendor)|{sys}/module/ib_core/parameters/netns_mode|/dev/infiniband|/\.dockerenv|/run/\.containerenv`, class: kept},
	{pattern: `{proc}/([0-9]+|self)/ns/(pid|net|mnt)`, class: kept},
	{pattern: `{proc}/2/comm`, class: linesOf("kthreadd")},
	{pattern: `{proc}/([0-9]+|self)/status`, class: linesOf("Uid:", "CapEff:")},
	{pattern: `{proc}/([0-9]+|self)/limits`, class: linesOf("Max locked memory")},
	{pattern: `{proc}/([0-9]+|self)/cgroup`, class: only(kindOfGroup)},

	// The driver's libraries, of which only is looked whether they are there, and
	// the links on the way to them.
	{pattern: `.*/lib(nvidia-ml|cuda)\.so[.0-9]*`, class: kept},
	{pattern: `{root}/(usr|usr/local|run)|{root}/(usr/|usr/local/)?lib(32|64|x32)?(/[a-z0-9_]+-linux-gnu)?`, class: kept},
}

// netlinkClasses are about RDMA netlink, its events and devlink.
var netlinkClasses = []row{
	{PartNetlink, `dial`, ``, kept},
	{PartNetlink, `GET`, `[].(index|name|ports|firmware|node_type|protocol|parent)`, kept},
	{PartNetlink, `GET`, `[].(node_guid|sys_image_guid)`, as(kindGUID)},
	{PartNetlink, `PORT_GET [0-9]+ [0-9]+`, `.(state|physical_state|lid|sm_lid|netdev)`, kept},
	{PartNetlink, `STAT_GET [0-9]+ [0-9]+`, `[].(name|value)`, kept},
	{PartNetlink, `STAT_GET_STATUS [0-9]+ [0-9]+`, `[].(name|enabled)`, kept},
	{PartNetlink, `RES_GET [0-9]+`, `.*`, kept},   // numbers of objects by their kind
	{PartNetlink, `RES_CTX_GET [0-9]+`, ``, kept}, // of earlier versions
	{PartNetlink, `RES_CTX_GET [0-9]+`, `.(contexts|(owners[]|omitted).(contexts|regions|bytes))`, kept},
	{PartNetlink, `RES_MR_GET [0-9]+`, `.(regions|bytes|(owners[]|omitted).(contexts|regions|bytes))`, kept},
	{PartNetlink, `RES_(CTX|MR)_GET [0-9]+`, `.owners[].pid`, as(kindPID)},
	{PartEvents, questionEvents, `.up`, kept},
	{PartEvents, questionEvents, `.counts.*`, kept},
	{PartDevlink, `dial`, ``, kept},
	{PartDevlink, questionReporters, `[].(bus|device|port|name|state|errors|recoveries|last_dump)`, kept},
}

// netdevClasses are about ethtool and DCB. The name of an interface is kept: the
// metrics have it, and it says where a NIC is.
var netdevClasses = []row{
	{PartNetdev, `(Index|StatCount|DCB) .+`, ``, kept},
	{PartNetdev, `Address .+`, ``, as(kindMAC)},
	{PartNetdev, `(StatNames|Stats) .+`, `[]`, kept},
}

// nvmlClasses are about NVML.
var nvmlClasses = []row{
	{PartNVML, `(open|symbol) .*`, ``, kept},
	{PartNVML, `Init|EventSetCreate|DeviceGetCount|DeviceGetHandleByIndex\([0-9]+\)|SystemGet(Driver|NVML)Version|SystemGetCudaDriverVersion`, ``, kept},
	{PartNVML, `SystemGetConfComputeSettings`, `.(Version|Environment|CcFeature|DevToolsMode|MultiGpuMode)`, kept},
	{PartNVML, `device [0-9]+ GetUUID`, ``, as(kindUUID)},
	{PartNVML, `device [0-9]+ Get(Architecture|ComputeMode|CurrPcieLinkGeneration|CurrPcieLinkWidth|GpuMaxPcieLinkGeneration|MaxPcieLinkGeneration|MaxPcieLinkWidth` +
		`|Name|PcieReplayCounter|PersistenceMode|SupportedEventTypes|VbiosVersion|VirtualizationMode)`, ``, kept},
	{PartNVML, `device [0-9]+ Get(NvLinkState|NvLinkVersion|NvLinkErrorCounter|NvLinkRemoteDeviceType|P2PStatus|TopologyCommonAncestor)\([0-9,]+\)`, ``, kept},
	{PartNVML, `device [0-9]+ Get(CudaComputeCapability|MigMode)`, `[]`, kept},
	{PartNVML, `device [0-9]+ Get(CpuAffinity|MemoryAffinity\([0-9]+\))`, `[]`, kept},
	{PartNVML, `device [0-9]+ GetBAR1MemoryInfo`, `.Bar1(Free|Total|Used)`, kept},
	{PartNVML, `device [0-9]+ GetMemoryInfo`, `.(Free|Total|Used)`, kept},
	{PartNVML, `device [0-9]+ GetUtilizationRates`, `.(Gpu|Memory)`, kept},
	{PartNVML, `device [0-9]+ (GetPciInfo|GetNvLinkRemotePciInfo\([0-9]+\))`, `.(bus_id|bus_id_legacy|domain|bus|device|pci_device_id|pci_subsystem_id)`, kept},
	{PartNVML, `device [0-9]+ GetFieldValues(\([0-9,]+\))?`, ``, kept},
	{PartNVML, `device [0-9]+ GetFieldValues\([0-9,]+\)`, `.(type|bits)`, kept},
	{PartNVML, `device [0-9]+ GetGpuFabricInfo(V[23]?)?`, `.(status|clique_id|state|health_mask|health_summary)`, kept},
	{PartNVML, `device [0-9]+ GetGpuFabricInfo(V[23]?)?`, `.cluster_uuid`, as(kindUUID)},
	{PartNVML, `device [0-9]+ RegisterEvents`, ``, kept},
	{PartNVML, `device [0-9]+ GetComputeRunningProcesses`, `[].(UsedGpuMemory|GpuInstanceId|ComputeInstanceId)`, kept},
	{PartNVML, `device [0-9]+ GetComputeRunningProcesses`, `[].Pid`, as(kindPID)},
}

// processClasses are about the processes that use GPUs and RDMA devices: what the
// reader let through, which is little; see package process.
var processClasses = []row{
	{PartProcess, questionVisible, ``, kept},
	{PartProcess, questionStart + `[0-9]+`, `.(start|ended|own)`, kept},
	{PartProcess, questionMemlock + `[0-9]+`, ``, kept},
	{PartProcess, questionLibraries + `[0-9]+`, `.(nccl|ucx)`, kept},
	{PartProcess, questionEnvironment + `[0-9]+`, `.variables.*`, as(kindText)},
	{PartProcess, questionEnvironment + `[0-9]+`, `.(others[]|omitted)`, kept},
}

// kernelLogClasses are about the kernel's log, of which only lines of known
// patterns are in a recording.
var kernelLogClasses = []row{
	{PartKernelLog, questionKernelLog, `.(since|oldest|lost)`, kept},
	{PartKernelLog, questionKernelLog, `.counts.*`, kept},
	{PartKernelLog, questionKernelLog, `.(last|recent)[].(pattern|time|address|code)`, kept},
	{PartKernelLog, questionKernelLog, `.(last|recent)[].text`, only(plainLine)},
}

// hostClasses are about how the host is wired. Addresses are counted only.
var hostClasses = []row{
	{PartHost, questionUsable + `[a-z_]+[0-9]*`, ``, kept},
	{PartHost, questionAddresses, `.*.(up|ipv4|ipv6)`, kept},
	{PartHost, questionDaemons, `[].(name|soft|hard)`, kept},
	{PartHost, questionDaemons, `[].pid`, as(kindPID)},
}

// probeClasses are about results of measurements.
var probeClasses = []row{
	{PartProbe, QuestionLedger, `.version`, kept},
	{PartProbe, QuestionLedger, `.transferred_bytes.*`, kept},
	{PartProbe, QuestionLedger, `.gpus.*.(driver_version|gpu_direct_rdma|dma_buf)`, kept},
	{PartProbe, QuestionProber, `.(interval_ns|isolation|quiesced_until)`, kept},
	{PartProbe, QuestionProber, `.isolation_reason`, as(kindText)},
	{PartProbe, QuestionProber, `.(runs[].(depth|result|count)|skips.*|running.(gpu|device|port))`, kept},
	{PartProbe, QuestionProber, `.pairs[].(gpu|device|port|distance|direct|last_attempt|last_success.*|withdrawn|skip|due|hung|hung_stage|mismatches|baseline_bytes_per_second)`, kept},
	{PartProbe, QuestionProber, completedAt + `(depth|time|idle|staged|judgement.outcome)`, kept},
	{PartProbe, QuestionProber, completedAt + `judgement.reasons[]`, as(kindText)},
	{PartProbe, QuestionProber, completedAt + `identity.uuid`, as(kindUUID)},
	{PartProbe, QuestionProber, completedAt + `identity.node_guid`, as(kindGUID)},
	{PartProbe, QuestionProber, completedAt + `identity.(firmware|driver|kernel)`, kept},
	{PartProbe, QuestionProber, resultAt + `(device|port|started|ns|register_only|library|numa_node|ethernet|mtu|message_size|queue_pairs|method|nccl_method|transferred_bytes)`, kept},
	{PartProbe, QuestionProber, resultAt + `(relaxed_ordering|nic_dmabuf|data_direct).(Value|Known)`, kept},
	{PartProbe, QuestionProber, resultAt + `gid.Known`, kept},
	{PartProbe, QuestionProber, resultAt + `gid.Value.(Index|Type)`, kept},
	{PartProbe, QuestionProber, resultAt + `gid.Value.Address`, as(kindIP)},
	{PartProbe, QuestionProber, resultAt + `pkey.(Index|Value)`, kept},
	{PartProbe, QuestionProber, resultAt + `gpu.Known`, kept},
	{PartProbe, QuestionProber, resultAt + `gpu.Value.(Address|Name|Driver|GPUDirectRDMA|DMABuf|Ordering|Free|Total)`, kept},
	{PartProbe, QuestionProber, resultAt + `gpu.Value.UUID`, as(kindUUID)},
	{PartProbe, QuestionProber, resultAt + `(stages[].(stage|path|ns)|registrations[].(method|ns|relaxed_ordering))`, kept},
	{PartProbe, QuestionProber, resultAt + `paths[].(path|stage|bytes|verified)`, kept},
	{PartProbe, QuestionProber, resultAt + `paths[].(bytes_per_second|ratio|latency_median_ns|latency_p99_ns|cpu_seconds_per_gb|mismatches).(Value|Known)`, kept},
	{PartProbe, QuestionProber, errorAt + `(name|is[]|errno[]|skip|verbs[].(call|errno|status|vendor))`, kept},
	{PartProbe, QuestionProber, errorAt + `text`, as(kindText)},
}

// Places of a result of the prober.
const (
	completedAt = `.pairs[].(full|registration|unconfirmed).`
	resultAt    = completedAt + `result.`
	errorAt     = resultAt + `(nic_dmabuf_error|(stages[]|registrations[]|paths[]).error).`
)

// table is classes made ready for the readers' settings of a recording.
type table struct {
	files   []fileMatcher
	answers map[string][]answerMatcher // by part
}

type fileMatcher struct {
	path  *regexp.Regexp
	class class
}

type answerMatcher struct {
	question, field *regexp.Regexp
	class           class
}

// newTable fills in where the readers looked.
func newTable(readers Readers) *table {
	// Of its own process the exporter reads in /proc, wherever the host's is.
	sys, proc := quoted(readers.Sysfs, "/sys"), "(?:"+quoted(readers.Procfs, "/proc")+"|/proc)"
	roots := make([]string, 0, len(readers.DriverRoots)+1)
	for _, root := range append([]string{"/"}, readers.DriverRoots...) {
		roots = append(roots, regexp.QuoteMeta(strings.TrimRight(root, "/")))
	}
	fill := strings.NewReplacer(
		"{sys}", sys, "{proc}", proc, "{root}", "(?:"+strings.Join(roots, "|")+")",
		"{dev}", sys+"/(?:devices|class|bus/pci/devices)/.+",
	)
	t := &table{answers: answerMatchers()}
	for _, r := range fileClasses {
		t.files = append(t.files, fileMatcher{whole(fill.Replace(r.pattern)), r.class})
	}
	return t
}

// answerMatchers are the rows about answers by their part: they are the same
// wherever the readers look.
var answerMatchers = sync.OnceValue(func() map[string][]answerMatcher {
	all := map[string][]answerMatcher{}
	for _, r := range classes {
		if r.part != "" {
			all[r.part] = append(all[r.part], answerMatcher{whole(r.pattern), whole(fieldPattern(r.field)), r.class})
		}
	}
	return all
})

// quoted is where something is mounted, or the default.
func quoted(path, standard string) string {
	if path == "" {
		path = standard
	}
	return regexp.QuoteMeta(strings.TrimRight(path, "/"))
}

func whole(pattern string) *regexp.Regexp { return regexp.MustCompile("^(?:" + pattern + ")$") }

// fieldPattern is the regular expression of the form in which the table has the
// places of fields.
func fieldPattern(field string) string {
	return strings.NewReplacer("[]", `\[\]`, ".*", `\.[^.]*`, ".", `\.`).Replace(field)
}

// file returns the class of a path.
func (t *table) file(path string) (class, bool) {
	for i := range t.files {
		if t.files[i].path.MatchString(path) {
			return t.files[i].class, true
		}
	}
	return class{}, false
}

// asked returns the rows about a question.
func (t *table) asked(part, question string) []answerMatcher {
	var rows []answerMatcher
	for _, row := range t.answers[part] {
		if row.question.MatchString(question) {
			rows = append(rows, row)
		}
	}
	return rows
}
