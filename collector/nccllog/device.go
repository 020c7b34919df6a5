package nccllog

import (
	"strconv"
	"strings"
)

// Device is a NIC as NCCL or its plugin sees it on a host.
type Device struct {
	Host string `json:"host"`
	Name string `json:"name"` // mlx5_0; mlx5_0+mlx5_1 where NCCL joins two
	Port string `json:"port"` // "1/IB", "1/RoCE", as NCCL prints it; "" if no line says
	// RelaxedOrdering is [RO], nil if no line lists the host's NICs.
	RelaxedOrdering *bool `json:"relaxed_ordering"`
	// Capable is whether GPU memory can be registered with it ("GPU Direct RDMA
	// Enabled|Disabled for HCA"), nil if no line says. It does not say that a
	// connection uses it.
	Capable *bool `json:"gdr_capable"`
	// Methods are the ways that the HPC-X plugin names: nvidia-peermem, DMABUF.
	Methods  []string `json:"methods"`
	NoModule bool     `json:"no_module"` // "(no module)": NCCL does not see nvidia-peermem
	Network  string   `json:"network"`   // transport or plugin that says so
}

type deviceKey struct{ host, name string }

// Refusal is why a GPU and a NIC stage although both could do better: they are
// farther apart than NCCL_NET_GDR_LEVEL allows. The numbers are classes on a scale
// that is another one from version to version, and are only compared.
type Refusal struct {
	Host     string `json:"host"`
	GPU      string `json:"gpu"`
	Device   string `json:"device"` // its name, or NCCL's number where the log has no name
	Distance string `json:"distance"`
	Count    uint64 `json:"count"`
}

// concerns says whether a refusal is of a NIC that staged connections use. NCCL
// weighs all pairs, and says so of those too that it has no use for.
func (f *Refusal) concerns(rails []Rail) bool {
	named := digits(f.Device) != len(f.Device)
	for i := range rails {
		if rail := &rails[i]; rail.Staged > 0 && rail.Host == f.Host && (!named || rail.Device == f.Device) {
			return true
		}
	}
	return false
}

type refusalKey struct{ host, gpu, device string }

// process returns the process that wrote an entry.
func (p *parser) process(e *entry) *process {
	return p.processes.at(processKey{e.host, e.pid})
}

func (p *parser) device(host, name string) *Device {
	key := deviceKey{host, clean(name)}
	device := p.devices.at(key)
	device.Host, device.Name = key.host, key.name
	return device
}

// deviceName is the name of the NIC that a process calls by a number.
func (p *parser) deviceName(e *entry, index int) string {
	if process := p.processes.known(processKey{e.host, e.pid}); process != nil {
		if name, found := process.devices[index]; found {
			return name
		}
	}
	return strconv.Itoa(index)
}

func (p *parser) nameDevice(e *entry, index int, name string) {
	process := p.process(e)
	if process.devices == nil {
		process.devices = map[int]string{}
	}
	if len(process.devices) < mostPerProcess {
		process.devices[index] = clean(name)
	}
}

// devicesUsed reads the list of NICs, of which there are three forms:
//
//	NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
//	NET/IB : Using [0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE} [1]={...} [RO]; OOB ...
//	NET/Socket : Using [0]eth0:10.0.0.1<0>
func (p *parser) devicesUsed(e *entry) bool {
	network, list, found := strings.Cut(e.text, " : Using ")
	if !found || !strings.HasPrefix(network, "NET/") {
		return false
	}
	network = strings.TrimPrefix(network, "NET/")
	list, _, whole := strings.Cut(list, "; OOB")
	if isSocket(network) {
		return true
	}
	relaxed := strings.Contains(list, "[RO")
	for index, name := range listed(list) {
		name, port, _ := strings.Cut(name, ":")
		device := p.device(e.host, name)
		device.Port, device.Network = clean(port), clean(network)
		if whole || !e.cut {
			device.RelaxedOrdering = &relaxed
		}
		p.nameDevice(e, index, name)
	}
	return true
}

// listed takes "[0]mlx5_0:1/IB [1]={[0] a:1/IB, [1] b:1/IB}" apart, by number.
func listed(list string) map[int]string {
	found := map[int]string{}
	for range 4 * mostPerProcess {
		_, rest, open := strings.Cut(list, "[")
		if !open {
			break
		}
		list = rest
		index, ok := number(list)
		if !ok || !strings.HasPrefix(list[digits(list):], "]") {
			continue
		}
		list = list[digits(list)+1:]
		if strings.HasPrefix(list, "={") {
			var members string
			members, list, _ = strings.Cut(list[2:], "}")
			found[index] = joined(members)
			continue
		}
		name, _, _ := strings.Cut(list, " ")
		if name != "" && len(found) < mostPerProcess {
			found[index] = name
		}
	}
	return found
}

// joined names a NIC made of several: "mlx5_2+mlx5_3:1/RoCE".
func joined(members string) string {
	var names []string
	var port string
	for member := range strings.SplitSeq(members, ",") {
		_, name, _ := strings.Cut(member, "]")
		name, port, _ = strings.Cut(strings.TrimSpace(name), ":")
		names = append(names, name)
	}
	return strings.Join(names, "+") + ":" + port
}

// direct reads what NCCL says of GPU Direct RDMA, of a NIC or of a GPU and a NIC:
//
//	NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0' (no module)
//	NET/IB : GPU Direct RDMA (nvidia-peermem) enabled for HCA 0 'mlx5_0
//	GPU Direct RDMA Disabled for GPU 1b000 / HCA 0 (distance 6 > 4)
func (p *parser) direct(e *entry) bool {
	network, rest, _ := strings.Cut(e.text, "GPU Direct RDMA ")
	network = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(network), "NET/"), " :")
	method := ""
	if inner, after, closed := strings.Cut(strings.TrimPrefix(rest, "("), ") "); strings.HasPrefix(rest, "(") && closed {
		method, rest = inner, after
	}
	word, rest, _ := strings.Cut(rest, " for ")
	enabled := strings.EqualFold(word, "enabled")
	if !enabled && !strings.EqualFold(word, "disabled") {
		return false
	}
	if strings.HasPrefix(rest, "GPU") {
		if !enabled {
			p.refusal(e, rest)
		}
		return true
	}
	rest, found := strings.CutPrefix(rest, "HCA ")
	if !found {
		return false
	}
	p.capability(e, network, method, rest, enabled)
	return true
}

// capability reads "0 'mlx5_0' (no module)". The HPC-X plugin forgets the closing
// quotation mark.
func (p *parser) capability(e *entry, network, method, text string, enabled bool) {
	before, name, quoted := strings.Cut(text, "'")
	if !quoted {
		return
	}
	name, rest, closed := strings.Cut(name, "'")
	if !closed && (e.cut || strings.ContainsRune(name, ' ')) {
		return
	}
	if index, ok := number(before); ok {
		p.nameDevice(e, index, name)
	}
	if isSocket(network) {
		return // TCP never has it
	}
	device := p.device(e.host, name)
	if network != "" {
		device.Network = clean(network)
	}
	// A NIC counts as capable if any line says so: the plugin has one per method,
	// and only for those that work.
	if device.Capable == nil || enabled {
		device.Capable = &enabled
	}
	if method != "" && len(device.Methods) < 4 && !has(device.Methods, clean(method)) {
		device.Methods = append(device.Methods, clean(method))
	}
	device.NoModule = device.NoModule || strings.Contains(rest, "(no module)")
}

func has(list []string, text string) bool {
	for _, member := range list {
		if member == text {
			return true
		}
	}
	return false
}

// refusal reads "GPU 1b000 / HCA 0 (distance 6 > 4)".
func (p *parser) refusal(e *entry, text string) {
	subjects, distance, found := strings.Cut(text, " (distance ")
	distance, _, closed := strings.Cut(distance, ")")
	if !found || !closed {
		return
	}
	gpu, device, _ := strings.Cut(subjects, " / HCA ")
	if other, net, is := strings.Cut(subjects, " - NET/"); is { // 2.30
		gpu, device = other, net
	}
	gpu = strings.TrimLeft(strings.TrimPrefix(gpu, "GPU"), " /")
	if gpu == "" || device == "" {
		return
	}
	// The number is decimal up to about 2.18 and hexadecimal since: one digit is
	// neither.
	if index, err := strconv.ParseUint(device, 16, 4); err == nil && len(device) == 1 {
		device = p.deviceName(e, int(index))
	}
	key := refusalKey{e.host, clean(gpu), clean(device)}
	row := p.refusals.at(key)
	row.Host, row.GPU, row.Device, row.Distance = key.host, key.gpu, key.device, clean(distance)
	row.Count++
}

func (p *parser) noDevice(e *entry) bool {
	if !strings.Contains(e.text, "NET/IB") {
		return false
	}
	p.noIB = true
	return true
}

func (p *parser) noLibrary(*entry) bool {
	p.noVerbs = true
	return true
}

func (p *parser) dmabufAvailable(e *entry) bool {
	device, _ := after(e.text, "GPU device ")
	p.dmabuf.add(e.host+" "+e.pid+" "+device, e.host)
	return true
}
