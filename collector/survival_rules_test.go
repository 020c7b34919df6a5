package collector

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gdr_exporter/collector/capture"
	"gdr_exporter/gpu"
)

// owners say which series a place of a recording may change.
type owners struct {
	files   []capture.File
	answers []capture.Answer
	links   map[string]string // of the recording, by path
	healthy samples
}

func ownersOf(r *capture.Recording, healthy samples) *owners {
	o := &owners{files: r.Files, answers: r.Answers, links: map[string]string{}, healthy: healthy}
	for i := range r.Files {
		if f := &r.Files[i]; f.Op == capture.OpLink && f.Last.Target != "" {
			o.links[f.Path] = path.Join(path.Dir(f.Path), f.Last.Target)
		}
	}
	return o
}

// scope is what a mutation may change: series with one of the names as a label's
// value, and those of families.
type scope struct {
	names    map[string]bool
	families []*regexp.Regexp
}

// treeFamilies are what the list of PCIe functions is needed for.
// The role in gdr_rdma_device_info is unknown without it.
var treeFamilies = regexp.MustCompile(`^gdr_(affinity|pcie|gpus|gpu|rdma_device_info)`)

// kernelOnly are the places that listing the tree reads. What is there the kernel
// itself knows: a link's target, or a number that it took down when it found the
// function or made the group. Neither driver nor device is asked, so these do not
// hang with one; and a worker for each would be one per function of the host.
var kernelOnly = regexp.MustCompile(`^/sys/(bus/pci/devices|class/infiniband|class/net)/[^/]+$|^/sys/(bus/pci/devices|class/iommu|class/infiniband)$|` +
	`/[0-9a-f]{4}:[0-9a-f:]{5}\.[0-7]/(driver|physfn|iommu_group|class|vendor|device|numa_node|local_cpulist|infiniband_verbs(/[^/]+/ibdev)?)$|^/sys/kernel/iommu_groups/\d+/type$`)

// stuck adds the tree's families if listing it hangs.
func (s *scope) stuck(m *mutation, page samples) {
	if m.kind == kindHang && kernelOnly.MatchString(m.at) && page[series("gdr_scrape_collector_success", pairs("collector", "affinity"))] == 0 {
		s.families = append(s.families, treeFamilies)
	}
}

var labelValue = regexp.MustCompile(`="((?:[^"\\]|\\.)*)"`)

func (s *scope) covers(key string) bool {
	name, _, _ := strings.Cut(key, ",")
	if slices.ContainsFunc(s.families, func(families *regexp.Regexp) bool { return families.MatchString(name) }) {
		return true
	}
	for _, match := range labelValue.FindAllStringSubmatch(key, -1) {
		if s.names[match[1]] {
			return true
		}
	}
	return false
}

var pciFunction = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// isGPU are the files that tell that a function is a GPU, which are counted.
var isGPU = regexp.MustCompile(`/[0-9a-f]{4}:[0-9a-f:]{5}\.[0-7]/(class|vendor|driver)$`)

// of returns the scope of a place.
func (o *owners) of(m *mutation) *scope {
	s, at := &scope{names: map[string]bool{}}, m.at
	if strings.HasPrefix(at, "nvml device") || strings.HasPrefix(at, "/sys/bus/pci/devices/") || isGPU.MatchString(at) {
		// Numbers of things, of which it is one, and whom its neighbour is paired with.
		s.families = append(s.families, regexp.MustCompile(`^gdr_(gpus|gpu_p2p_peers|affinity_path_[a-z_]+)$`))
	}
	if m.endsNVML() {
		s.families = append(s.families, regexp.MustCompile(`^gdr_(gpu|nvlink|fabric)`)) // and gdr_gpu_nvml_state tells
		return s
	}
	if m.kind == kindStrange {
		for _, name := range strangeNames {
			s.names[quoted(printable(name))] = true
		}
	}
	for _, shared := range sharedPlaces {
		if shared.at.MatchString(at) {
			s.families = append(s.families, shared.families)
		}
	}
	if !strings.HasPrefix(at, "/") {
		o.addQuestion(s, at)
		return s
	}
	o.addPath(s, at)
	if target := o.links[at]; target != "" {
		o.addPath(s, target)
	}
	return s
}

// addPath adds the names of the PCI function that a path is of, and of what is
// below that.
func (o *owners) addPath(s *scope, at string) {
	elements := strings.Split(at, "/")
	dir := ""
	for i, element := range elements {
		if pciFunction.MatchString(element) || strings.HasPrefix(element, "pci0000:") {
			dir = strings.Join(elements[:i+1], "/")
			s.names[element] = true // what is above is only shown for the sake of what is below
		}
	}
	s.names[quoted(printable(path.Base(at)))] = true
	if dir == "" {
		return
	}
	s.names[path.Base(dir)] = true
	for i := range o.files {
		rest, below := strings.CutPrefix(o.files[i].Path, dir+"/")
		if !below {
			continue
		}
		parts := strings.Split(rest, "/")
		for j, part := range parts {
			if pciFunction.MatchString(part) || j > 0 && (parts[j-1] == "infiniband" || parts[j-1] == "net") {
				s.names[part] = true
			}
		}
	}
}

// endsNVML reports whether after a mutation NVML as a whole has to be started
// again, or, since all its calls are made one after the other, waited for.
func (m *mutation) endsNVML() bool {
	return strings.HasPrefix(m.at, "nvml ") && slices.Contains([]string{"UNINITIALIZED", "LIB_RM_VERSION_MISMATCH", kindHang}, m.kind)
}

// addQuestion adds what a question is about: a device by its number or by its
// interface.
func (o *owners) addQuestion(s *scope, question string) {
	fields := strings.Fields(question)
	device := ""
	switch {
	case fields[0] == capture.PartNetlink && len(fields) > 2:
		device = o.valueBeside("gdr_rdma_device_info", "device", func(key string) bool { return strings.Contains(key, fmt.Sprintf("device=\"mlx5_%s\"", fields[2])) })
	case fields[0] == capture.PartNetdev && len(fields) > 2:
		device = o.valueBeside("gdr_rdma_port_info", "device", func(key string) bool { return strings.Contains(key, fmt.Sprintf("netdev=%q", fields[2])) })
	case fields[0] == capture.PartNVML && fields[1] == "device":
		device = o.gpu(fields[2])
	}
	if device != "" {
		s.names[device] = true
	}
}

// valueBeside returns the value of a label of the series that is picked.
func (o *owners) valueBeside(family, label string, pick func(key string) bool) string {
	for key := range o.healthy {
		if _, rest, found := strings.Cut(key, ","+label+"=\""); found && strings.HasPrefix(key, family+",") && pick(key) {
			value, _, _ := strings.Cut(rest, "\"")
			return value
		}
	}
	return ""
}

// gpu returns the address of NVML's device of that number.
func (o *owners) gpu(number string) string {
	for i := range o.answers {
		if a := &o.answers[i]; a.Part == capture.PartNVML && a.Question == "device "+number+" GetPciInfo" {
			for _, word := range strings.FieldsFunc(string(a.Last.JSON), func(r rune) bool { return r == '"' }) {
				if address, is := gpu.Address(word); is {
					return address
				}
			}
		}
	}
	return ""
}

// sharedPlaces are places that are not one device's, and the families that they
// say something of.
var sharedPlaces = []struct{ at, families *regexp.Regexp }{
	{regexp.MustCompile(`^/(sys|proc|sys/class|sys/bus|sys/bus/pci|sys/devices)$`), regexp.MustCompile(`.`)},
	{regexp.MustCompile(`^/sys/class/infiniband$|^/sys/bus/pci/devices$`), regexp.MustCompile(`^gdr_(rdma|affinity|pcie|gpus|gpu_info)`)},
	{regexp.MustCompile(`^/sys/class/iommu$`), regexp.MustCompile(`^gdr_affinity_iommu_units$`)},
	{regexp.MustCompile(`^/sys/kernel/iommu_groups/`), regexp.MustCompile(`^gdr_(affinity_path_info|pcie_function_info)$`)}, // of all functions in the group
	{regexp.MustCompile(`^/(proc|lib|usr|sys/module|sys/kernel)(/|$)`), regexp.MustCompile(`^gdr_(driver|peermem|gpus|gpu_nvml)`)},
	{regexp.MustCompile(`/libnvidia-ml\.so[^/]*$|^/proc(/driver(/nvidia(/version)?)?)?$|^/usr(/lib(/[^/]+)?)?$`), regexp.MustCompile(`^gdr_(driver|gpu|gpus|nvlink|fabric)`)},
	{regexp.MustCompile(`^netlink (GET|dial)$`), regexp.MustCompile(`^gdr_rdma_(netlink_up|device_|port_)`)}, // the recording has no answers of the other way
	{regexp.MustCompile(`^devlink `), regexp.MustCompile(`^gdr_rdma_(devlink|device_health)`)},
	{regexp.MustCompile(`^nvml (open|symbol|[A-Z])`), regexp.MustCompile(`^gdr_(driver|gpu|nvlink|fabric)`)},
	{regexp.MustCompile(`^/sys/class/infiniband/|/infiniband/[^/]+$|/[0-9a-f:]{10}\.[0-7]$`), regexp.MustCompile(`^gdr_rdma_devices$`)},
}

// notSeen are the kinds of mutation after which there is nothing.
var notSeen = regexp.MustCompile(`^(absent|an empty directory|dangling)$`)

// silent are the losses that nothing counts, and why that is right.
var silent = []struct {
	at, kinds *regexp.Regexp
	reason    string
}{
	{
		regexp.MustCompile(`^/sys$|^/sys/class/infiniband(/[^/]+)?$|^/sys/bus/pci/devices(/[^/]+)?$|/[0-9a-f]{4}:[0-9a-f:]{5}\.[0-7]$|/infiniband/[^/]+$`),
		notSeen, "the class or the device is not there",
	}, {
		regexp.MustCompile(`^/sys/(class/infiniband|bus/pci/devices)/[^/]+$`), regexp.MustCompile(`^a file$`), "classes list files too, which are no devices",
	}, {
		regexp.MustCompile(`^/sys/class/iommu$`), notSeen, "no IOMMU",
	}, {
		regexp.MustCompile(`^/sys/class/iommu$`), regexp.MustCompile(`^strange names$`), "IOMMUs have any names, and are only counted",
	}, {
		regexp.MustCompile(`/config$`), regexp.MustCompile(`^very long$`), "the registers of a configuration space have no form",
	}, {
		regexp.MustCompile(`/(counters|hw_counters)(/[^/]+)?$`), regexp.MustCompile(`^(absent|an empty directory)$`),
		"drivers differ in what they count (cases 18, 19)",
	}, {
		regexp.MustCompile(`/(fw_ver|board_id|hca_type|node_type|node_guid|sys_image_guid|lid|sm_lid|gids/0)$`), regexp.MustCompile(`^absent$`),
		"drivers differ in what they say of a device (case 20)",
	}, {
		regexp.MustCompile(`/(fw_ver|board_id|hca_type)$`), regexp.MustCompile(`^(empty|whitespace|negative|huge|binary)$`),
		"text without a form is shown as it is, and may be empty (case 20)",
	}, {
		regexp.MustCompile(`/gid_attrs/types/\d+$`), regexp.MustCompile(`^(absent|EINVAL|empty|whitespace)$`), "the table's end, or an empty slot (case 38)",
	}, {
		regexp.MustCompile(`/(driver|iommu_group)$`), regexp.MustCompile(`^(absent|dangling)$`), "no driver, no IOMMU; else the link's target is its text",
	}, {
		regexp.MustCompile(`/infiniband/[^/]+/device$`), regexp.MustCompile(`^absent$`), "a device without a parent, as software devices are (case 11)",
	}, {
		regexp.MustCompile(`^/sys/class/net/[^/]+$|/net(/[^/]+(/device)?)?$`), notSeen, "no network interface, or moved to a container (case 29)",
	}, {
		regexp.MustCompile(`^/sys/class/net/[^/]+$|/net/[^/]+(/device)?$`), regexp.MustCompile(`^a file$`), "classes list files too, which are no interfaces",
	}, {
		regexp.MustCompile(`/net/[^/]+/(carrier_changes|dev_port|type|address|ifindex|mtu|device)$`), regexp.MustCompile(`^absent$`), "an interface goes at any time",
	}, {
		regexp.MustCompile(`/(aer_dev_[a-z]+|(current|max)_link_(speed|width)|config|numa_node|power_state|iommu_groups/\d+/type|local_cpulist)$`), regexp.MustCompile(`^absent$`),
		"functions differ in what they have, and so do kernels",
	}, {
		regexp.MustCompile(`/(class|vendor|device)$`), regexp.MustCompile(`^absent$`), "the kernel takes these away first when a function goes",
	}, {
		regexp.MustCompile(`/(numa_node|refcnt)$`), regexp.MustCompile(`^negative$`), "-1 is the kernel's word for no node, and for a module that is not unloaded",
	}, {
		regexp.MustCompile(`^nvml (System|device \d+ Get(Name|UUID|VbiosVersion)$)`), regexp.MustCompile(`^(huge|text)$`), "a name or a version of NVML's is text, shown as it is",
	}, {
		regexp.MustCompile(`/parameters/[^/]+$`), regexp.MustCompile(`^negative$`), "a parameter may be negative",
	}, {
		regexp.MustCompile(`^devlink `), regexp.MustCompile(`^(ENOENT|EOPNOTSUPP)$`), "a kernel without devlink, or without health reporters",
	}, {
		regexp.MustCompile(`^netlink RES_`), regexp.MustCompile(`^(EINVAL|EMSGSIZE|EOPNOTSUPP)$`), "kernels differ in what RDMA netlink knows",
	}, {
		regexp.MustCompile(`^netdev `), regexp.MustCompile(`^(ENODEV|ENOENT|EOPNOTSUPP)$`), "the interface is in a container (case 29), or without ethtool or DCB (case 40): gdr_rdma_port_netdev_hidden, _supported",
	}, {
		regexp.MustCompile(`^netdev Address `), regexp.MustCompile(`^text$`), "another address is another interface: gdr_rdma_port_netdev_hidden",
	}, {
		regexp.MustCompile(`^nvml `), regexp.MustCompile(`^(NOT_SUPPORTED|FUNCTION_NOT_FOUND|absent|INVALID_ARGUMENT|NOT_FOUND|NO_PERMISSION)$`), "GPUs, drivers and users differ in what NVML offers (cases 77, 81, 93)",
	}, {
		regexp.MustCompile(`^nvml device`), regexp.MustCompile(`^(GPU_IS_LOST|RESET_REQUIRED)$`), "a lost GPU: gdr_gpu_lost",
	}, {
		regexp.MustCompile(`^/(proc/driver|sys/module|sys/kernel|lib|usr|proc/modules|proc/sys)(/|$)|^/proc$`), notSeen,
		"the driver, a module or a library is not there, which the driver's and peermem's series say",
	},
}

// silentReason returns why a mutation's loss is not counted, "" if it should be.
func silentReason(m *mutation) string {
	for i := range silent {
		if silent[i].at.MatchString(m.at) && silent[i].kinds.MatchString(m.kind) {
			return silent[i].reason
		}
	}
	return ""
}

// flags are series that say that something is wrong or unknown, which a fault
// may bring.
var flags = regexp.MustCompile(`^gdr_(rdma_(port_source_info|port_netdev_hidden|port_(dcb|ethtool)_supported|devlink_present|netlink_up)|gpu_lost|gpu_reset_required|gpu_nvml_(up|state|stuck_seconds|stuck_call_info))$`)

// counts are numbers of things, which are fewer when one is not seen.
var counts = regexp.MustCompile(`^gdr_(rdma_devices|rdma_class_present|affinity_iommu_units|gpus|gpu_p2p_peers)$`)

// absences are flags that are 0 or unknown where what they tell of is not seen.
var absences = regexp.MustCompile(`^gdr_peermem_(memory_peers_present|library_detects|marker_present|module_loaded|module_available|rdma_stack_holds|client_registered)$|^gdr_driver_module_loaded$`)

// unknowns are the values of series that say that something is not known.
var unknowns = regexp.MustCompile(`^gdr_affinity_distance_id,.* 0$|trust="unknown".* 1$`)

// emptySlot reports whether a mutation leaves a slot of a GID table empty, or ends
// the table there.
func emptySlot(m *mutation) bool {
	return strings.Contains(m.at, "/gid_attrs/types") && slices.Contains([]string{kindAbsent, "EINVAL", "empty", "whitespace", kindEmptyDir}, m.kind)
}

// notThere are the kinds of mutation after which something is not there, rather
// than unknown.
var notThere = map[string]bool{kindAbsent: true, kindEmptyDir: true, kindDangling: true, kindFile: true}

// invented returns what is wrong with a series that the healthy page does not
// have with that value, "" if nothing.
func invented(healthy samples, m *mutation, s *scope, key string, value float64) string {
	name, _, _ := strings.Cut(key, ",")
	switch {
	case !s.covers(key):
		return "changed of the healthy"
	case flags.MatchString(name), m.kind == kindStrange && strange(key):
		return ""
	case counts.MatchString(name) && (value <= most(healthy, name) || m.kind == kindStrange):
		return ""
	case name == "gdr_rdma_port_gids" && value < most(healthy, name) && emptySlot(m):
		return ""
	case notThere[m.kind] && absences.MatchString(name) && value == 0, unknowns.MatchString(fmt.Sprint(key, " ", value)):
		return ""
	case strings.HasSuffix(name, "_info") && value == 1 && resembles(healthy, m, key):
		return ""
	case strings.HasPrefix(name, "gdr_affinity_path_") && isGPU.MatchString(m.at):
		return "" // another pair of those that are near is chosen
	case name == "gdr_gpu_p2p_status_id" && strings.Contains(m.at, " GetP2PStatus("):
		return "" // writing is shown where it is not known to be as reading
	case name == "gdr_peermem_parameter" && m.kind == "negative":
		return "" // it is what the file says
	}
	return "invented"
}

// strange reports whether a series is of a name that was made up.
func strange(key string) bool {
	for _, match := range labelValue.FindAllStringSubmatch(key, -1) {
		if slices.ContainsFunc(strangeNames, func(name string) bool { return quoted(printable(name)) == match[1] }) {
			return true
		}
	}
	return false
}

// most is the largest value of a family.
func most(page samples, name string) (largest float64) {
	for key, value := range page {
		if key == name || strings.HasPrefix(key, name+",") {
			largest = max(largest, value)
		}
	}
	return largest
}

// resembles reports whether a series is one of the healthy page's of which some
// labels are empty, or hold what the mutated file holds.
func resembles(healthy samples, m *mutation, key string) bool {
	name, _, _ := strings.Cut(key, ",")
	got := labelValue.FindAllStringSubmatch(key, -1)
	for candidate := range healthy {
		if !strings.HasPrefix(candidate, name+",") {
			continue
		}
		want := labelValue.FindAllStringSubmatch(candidate, -1)
		if len(want) != len(got) {
			continue
		}
		if !slices.ContainsFunc(seq(len(got)), func(i int) bool {
			text := got[i][1]
			return text != want[i][1] && text != "" && !presences[text] && !fromContent(m, text)
		}) {
			return true
		}
	}
	return false
}

// presences are labels that say that something is not seen or not known.
var presences = map[string]bool{"lost": true, "unseen": true, "hidden": true, "unknown": true}

func seq(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// fromContent reports whether a label's value is what the mutated file holds.
func fromContent(m *mutation, text string) bool {
	content, is := contents[m.kind]
	if m.kind == kindDangling {
		content, is = path.Base(danglingTarget), true
	}
	if m.kind == "text" {
		content, is = "?", true
	}
	return is && text == quoted(printable(strings.TrimSpace(content)))
}

// quoted is text as series writes it.
func quoted(text string) string {
	q := strconv.Quote(text)
	return q[1 : len(q)-1]
}
