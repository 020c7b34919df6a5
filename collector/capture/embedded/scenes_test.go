package embedded

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/capture"
	"gdr_exporter/gpu/driver/drivertest"
	"gdr_exporter/gpu/gputest"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/rdmatest"
)

// scene makes a capture.
type scene struct {
	base string // that it is laid over, "" for a whole one
	make func(*testing.T) *capture.Recording
}

const healthy = "h100-8x8"

// scenes are all captures by name.
var scenes = map[string]scene{
	healthy:     {"", func(t *testing.T) *capture.Recording { return h100Node(t, "", nil) }},
	"b200-8x8":  {healthy, b200Node},
	"h200-1":    {"", asRecorded("h200-1", "A virtual machine with one H200 and no RDMA device, recorded on real hardware (driver 580.159.04, open kernel modules). Identifiers were replaced when it was recorded.")},
	"h200-2":    {"", asRecorded("h200-2", "A virtual machine with two H200, 18 NVLinks between them, and no RDMA device, recorded on real hardware (driver 580.159.04, open kernel modules). Identifiers were replaced when it was recorded.")},
	"soft-roce": {"", asRecorded("soft-roce", "Two soft-RoCE devices (rdma_rxe on veth), recorded in a virtual machine while RDMA writes went over the first one. Addresses and GUIDs were replaced when it was recorded.")},

	"h100-8x8-demo":      {healthy, demo},
	"gdr-lost":           {healthy, gdrLost},
	"acs-on":             {healthy, acsOn},
	"pcie-downtrained":   {healthy, pcieDowntrained},
	"nvlink-down":        {healthy, nvlinkDown},
	"port-flapping":      {healthy, portFlapping},
	"counters-saturated": {healthy, countersSaturated},
	"driver-mismatch":    {healthy, driverMismatch},
	"busy-node":          {healthy, busyNode},
	"nic-gone":           {healthy, nicGone},
}

const h100About = "An HGX H100 node on which all is well: two sockets with two PCIe switches each, below each switch two H100 and two ConnectX-7 with HDR InfiniBand (200 Gb/s), " +
	"18 NVLinks per GPU. Made up from public facts, not recorded; the results of GPUDirect RDMA measurements are made up too. "

// h100Node records a healthy node that something was done to.
func h100Node(t *testing.T, about string, change func(*node, *gputest.Machine)) *capture.Recording {
	t.Helper()
	n, machine := hgx(h100, rdmatest.HGXOptions{})
	n.about = strings.TrimSpace(h100About + about)
	if about != "" {
		n.about = about + " The rest is as in " + healthy + ", synthetic as that is."
	}
	if change != nil {
		change(n, machine)
	}
	return n.recording(t)
}

func b200Node(t *testing.T) *capture.Recording {
	n, _ := hgx(b200, rdmatest.HGXOptions{})
	n.about = "An HGX B200 node on which all is well: eight B200 with 18 links of NVLink 5 each, eight ConnectX-7 with NDR InfiniBand (400 Gb/s), two sockets with two PCIe switches each. " +
		"Made up from public facts, not recorded; the results of GPUDirect RDMA measurements are made up too."
	for i := range n.scenario.Counts {
		c := &n.scenario.Counts[i]
		for old, new := range map[int]int{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX: nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX: nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES} {
			if question := strings.Replace(c.Question, fmt.Sprintf("(%d,", old), fmt.Sprintf("(%d,", new), 1); question != c.Question {
				c.Question, c.Rate = question, c.Rate*2*1024 // bytes, not KiB, at twice the speed
				break
			}
		}
	}
	return n.recording(t)
}

// asRecorded is a capture that "gdr_exporter capture" wrote on a host that there
// was: soft-roce in a test kernel, the others beside real GPUs.
//
//	vmtest --devices 2 --share DIR -- gdr_exporter capture -o DIR/soft-roce.txt.gz
//	go test ./collector/capture/embedded -update -recorded soft-roce=DIR/soft-roce.txt.gz
func asRecorded(name, about string) func(*testing.T) *capture.Recording {
	return func(t *testing.T) *capture.Recording {
		from := fileOf(name)
		if of, file, is := strings.Cut(*recordedFrom, "="); is && of == name {
			from = file
		}
		file, err := os.Open(from)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		recording, err := capture.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		recording.Header.About = about
		return recording
	}
}

// gdrLost: the pair of the first GPU and NIC.
func gdrLost(t *testing.T) *capture.Recording {
	return h100Node(t, "GPUDirect RDMA is lost on one pair: the memory of GPU 0000:18:00.0 can no longer be registered with mlx5_0 by either method, and what a job sends there goes by copies through host memory, "+
		"at 0.4 of the rate. Nothing else on the node says so.",
		func(n *node, _ *gputest.Machine) {
			pair := pairIn(n.prober, gpuAddresses[0], nics[0])
			*pair = lost(*pair, -4*time.Minute, true)
			n.prober.Runs[prober.RunKind{Depth: prober.DepthFull, Result: prober.RunFailed}] = 4
		})
}

// demo: the same, while one looks on.
func demo(t *testing.T) *capture.Recording {
	const failsAt, confirmedAt = 120, 150
	return h100Node(t, "All is well for two minutes; then GPUDirect RDMA is lost on the pair of GPU 0000:18:00.0 and mlx5_0: a measurement fails, which is repeated, and 30 s later it is confirmed. From then on the job's traffic on mlx5_0 is at 0.4 of what it was.",
		func(n *node, _ *gputest.Machine) {
			n.scenario.About = "A training job; after two minutes GPUDirect RDMA is lost on the pair of GPU 0000:18:00.0 and mlx5_0."
			n.scenario.Counts = withoutTraffic(n.scenario.Counts, n.tree, 0)
			n.scenario.Counts = append(n.scenario.Counts, portTraffic(n.tree, 0, capture.Span{Until: failsAt}, h100.bandwidth*0.33, 90)...)
			n.scenario.Counts = append(n.scenario.Counts, portTraffic(n.tree, 0, capture.Span{From: failsAt}, h100.bandwidth*0.13, 90)...)
			n.scenario.Changes = append(n.scenario.Changes,
				proberChange(t, capture.Span{From: failsAt, Until: confirmedAt}, n.prober, func(s *prober.Status) {
					pair := pairIn(s, gpuAddresses[0], nics[0])
					*pair = lost(*pair, (failsAt-2)*time.Second, false)
					s.Runs[prober.RunKind{Depth: prober.DepthFull, Result: prober.RunFailed}] = 1
				}),
				proberChange(t, capture.Span{From: confirmedAt}, n.prober, func(s *prober.Status) {
					pair := pairIn(s, gpuAddresses[0], nics[0])
					*pair = lost(*pair, (confirmedAt-2)*time.Second, true)
					s.Runs[prober.RunKind{Depth: prober.DepthFull, Result: prober.RunFailed}] = 4
				}))
		})
}

// proberChange has the prober show something else, a changed copy of what it shows.
func proberChange(t *testing.T, span capture.Span, status *prober.Status, change func(*prober.Status)) capture.Change {
	t.Helper()
	copied := capture.NewProberStatus(status).Status()
	copied.Skips = map[prober.Reason]uint64{}
	for reason, count := range status.Skips {
		copied.Skips[reason] = count
	}
	change(copied)
	r := capture.NewRecorder(nil, capture.Header{}, func() time.Time { return recordedAt })
	r.Prober(copied)
	for _, answer := range r.Recording().Answers {
		if answer.Question == capture.QuestionProber {
			return capture.Change{Span: span, Target: capture.Target{Part: answer.Part, Question: answer.Question}, Value: &answer.Last}
		}
	}
	t.Fatal("the prober was not recorded")
	return capture.Change{}
}

func acsOn(t *testing.T) *capture.Recording {
	n, _ := hgx(h100, rdmatest.HGXOptions{ACS: 0x1d})
	n.about = "ACS redirects on all ports of the PCIe switches (0x1d, as a kernel sets it that was booted with an IOMMU): what goes from GPU to NIC makes a detour through the root port, and GPUDirect RDMA works " +
		"at half the rate. The rest is as in " + healthy + ", synthetic as that is."
	for i := range n.prober.Pairs {
		slow(&n.prober.Pairs[i], map[loopback.Path]float64{loopback.PathGPURead: 0.46, loopback.PathGPUWrite: 0.72, loopback.PathGPU: 0.45})
	}
	n.prober.Runs[prober.RunKind{Depth: prober.DepthFull, Result: prober.RunSlow}] = 24
	return n.recording(t)
}

func pcieDowntrained(t *testing.T) *capture.Recording {
	return h100Node(t, "The PCIe link of GPU 0000:9a:00.0 came up with 8 lanes at 8 GT/s in place of 16 at 32 GT/s: 7.9 GB/s, a third of what the NICs beside it can do.",
		func(n *node, machine *gputest.Machine) {
			at, _ := n.tree.Real("sys/bus/pci/devices/" + gpuAddresses[4])
			for _, end := range []string{at, path.Dir(at)} {
				n.tree.File(end+"/current_link_speed", "8.0 GT/s PCIe\n")
				n.tree.File(end+"/current_link_width", "8\n")
			}
			machine.GPUs[4].Generation, machine.GPUs[4].Width = 3, 8
			slow(pairIn(n.prober, gpuAddresses[4], nics[4]), map[loopback.Path]float64{loopback.PathGPURead: 0.29, loopback.PathGPUWrite: 0.3, loopback.PathGPU: 0.27})
			n.prober.Runs[prober.RunKind{Depth: prober.DepthFull, Result: prober.RunSlow}] = 3
		})
}

func nvlinkDown(t *testing.T) *capture.Recording {
	return h100Node(t, "Two of the 18 NVLinks of GPU 0000:9b:00.0 (7 and 12) are down after errors on both; the others carry on.",
		func(_ *node, machine *gputest.Machine) {
			for _, link := range []int{7, 12} {
				l := &machine.GPUs[5].Links[link]
				l.State = nvml.FEATURE_DISABLED
				l.Fields[nvml.FI_DEV_NVLINK_GET_STATE] = 0
				l.Fields[nvml.FI_DEV_NVLINK_GET_SPEED] = 0
				l.Fields[nvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY] = 41
				l.Fields[nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY] = 1733
				l.Fields[nvml.FI_DEV_NVLINK_ERROR_DL_CRC] = 25810
			}
		})
}

func portFlapping(t *testing.T) *capture.Recording {
	const device = 2
	return h100Node(t, "The link of mlx5_2 goes down for 15 s every minute, the first time after 30 s, as with a bad cable: its port changes between ACTIVE and DOWN, and link_downed and symbol errors count.",
		func(n *node, _ *gputest.Machine) {
			down := capture.Span{From: 30, Until: 45, Every: 60}
			port := portOf(n.tree, nics[device])
			s := n.scenario
			s.About = "The link of mlx5_2 goes down for 15 s every minute."
			s.Counts = withoutTraffic(s.Counts, n.tree, device)
			for _, up := range []capture.Span{{Until: 30}, {From: 45, Until: 90, Every: 60}} {
				s.Counts = append(s.Counts, portTraffic(n.tree, device, up, h100.bandwidth*0.3, 60)...)
			}
			for _, errors := range []struct {
				file string
				rate float64
				max  uint64
			}{{"link_downed", 1, 255}, {"link_error_recovery", 3, 255}, {"symbol_error", 25, 65535}} {
				s.Counts = append(s.Counts, capture.Count{
					Span: capture.Span{From: 30, Until: 31, Every: 60}, Target: capture.Target{Path: port + "/counters/" + errors.file, Op: capture.OpRead},
					Rate: errors.rate, Max: errors.max,
				})
			}
			s.Changes = append(s.Changes,
				value(down, capture.PartNetlink, fmt.Sprintf("PORT_GET %d 1", device), `{"state":1,"physical_state":2,"lid":33,"sm_lid":1}`))
		})
}

func countersSaturated(t *testing.T) *capture.Recording {
	return h100Node(t, "Error counters of InfiniBand ports stick at their largest value until somebody clears them: on mlx5_6 symbol_error (65535) and link_downed (255) have, and port_rcv_errors of mlx5_1 gets there after some two minutes. "+
		"Their rate is 0 from then on, however sick the link is.",
		func(n *node, _ *gputest.Machine) {
			stuck := strings.TrimPrefix(portOf(n.tree, nics[6]), "/")
			n.tree.File(stuck+"/counters/symbol_error", "65535\n")
			n.tree.File(stuck+"/counters/link_downed", "255\n")
			counts := portOf(n.tree, nics[1]) + "/counters/port_rcv_errors"
			n.tree.File(strings.TrimPrefix(counts, "/"), "53000\n")
			n.scenario.About = "port_rcv_errors of mlx5_1 counts until it sticks at 65535."
			n.scenario.Counts = append(n.scenario.Counts, capture.Count{Target: capture.Target{Path: counts, Op: capture.OpRead}, Rate: 100, Max: 65535})
		})
}

func driverMismatch(t *testing.T) *capture.Recording {
	return h100Node(t, "The NVIDIA driver was upgraded on disk while the old one (570.86.15) is still loaded: the library is of 580.95.05 and refuses to talk to it (\"Driver/library version mismatch\"). Nothing is known of the GPUs but what the PCI bus says, "+
		"and nothing can be measured until the node is rebooted.",
		func(n *node, machine *gputest.Machine) {
			const loaded = "570.86.15"
			host := drivertest.Host{Tree: n.tree}
			for _, module := range []string{"nvidia", "nvidia_modeset", "nvidia_peermem"} {
				host.File(drivertest.Modules+module+"/version", loaded+"\n")
			}
			version, _ := host.Content("proc/driver/nvidia/version")
			host.File("proc/driver/nvidia/version", strings.ReplaceAll(version, drivertest.Version, loaded))
			host.File(drivertest.MemoryPeers+"nv_mem/version", loaded+"\n")
			machine.Init = nvml.ERROR_LIB_RM_VERSION_MISMATCH
			for i := range n.prober.Pairs {
				pair := &n.prober.Pairs[i]
				pair.Full, pair.Registration, pair.Withdrawn, pair.Skip = nil, nil, prober.WithdrawnDriver, prober.ReasonGPU
			}
			n.prober.Skips[prober.ReasonGPU] = uint64(len(n.prober.Pairs))
			n.scenario = &capture.Scenario{About: "Nothing runs on the node: only management traffic counts."}
			for i := range nics {
				n.scenario.Counts = append(n.scenario.Counts, portTraffic(n.tree, i, capture.Span{}, 2000, 60)...)
			}
		})
}

func busyNode(t *testing.T) *capture.Recording {
	return h100Node(t, "A job keeps all GPUs and NICs at work, for hours: no full measurement of GPUDirect RDMA could be made since, only registrations, and the rates that stand are seven hours old. That is no fault.",
		func(n *node, machine *gputest.Machine) {
			for _, g := range machine.GPUs {
				g.Processes, g.Utilization = 1, nvml.Utilization{Gpu: 98, Memory: 71}
				g.Memory.Used = g.Memory.Total / 100 * 91
				g.Memory.Free = g.Memory.Total - g.Memory.Used
			}
			for i := range n.prober.Pairs {
				pair := &n.prober.Pairs[i]
				registered := pair.Full.Time
				full := *pair.Full
				full.Time = full.Time.Add(-7 * time.Hour)
				full.Staged, full.Result.Started = full.Time, full.Time
				pair.Registration = &prober.Completed{Depth: prober.DepthRegister, Time: registered, Judgement: loopback.Judgement{Outcome: loopback.Fine, Reasons: []string{}},
					Result: loopback.Result{Device: pair.Device, Port: 1, RegisterOnly: true, Started: registered, Registrations: full.Result.Registrations}, Identity: full.Identity}
				pair.Full, pair.Due = &full, full.Time.Add(time.Hour)
				pair.LastSuccess = map[prober.Depth]time.Time{prober.DepthFull: full.Time, prober.DepthRegister: registered}
				pair.Skip = prober.ReasonNICBusy
			}
			n.prober.Skips[prober.ReasonNICBusy] = 56
			n.scenario = traffic(h100.bandwidth * 2.4)
			n.scenario.About = "A job that keeps all ports at four fifths of their rate."
		})
}

// withoutNIC has a prober lack a NIC. The GPU that was measured with it is then
// measured with the other NIC below its switch too: at a time after the
// recording's end, or not yet if that is 0.
func withoutNIC(status *prober.Status, device int, measured time.Duration) {
	gone := pairIn(status, gpuAddresses[device], nics[device])
	gone.Full, gone.Registration, gone.Withdrawn, gone.Skip = nil, nil, prober.WithdrawnNICGone, prober.ReasonPort
	status.Skips[prober.ReasonPort] = 1
	other := measuredPair(gone.GPU, nics[device-1], -measured, h100.bandwidth)
	if measured == 0 {
		other = prober.PairStatus{Candidate: other.Candidate, Due: recordedAt.Add(4 * time.Minute)}
	} else {
		status.Runs[prober.RunKind{Depth: prober.DepthFull, Result: prober.RunFine}]++
	}
	at := slices.IndexFunc(status.Pairs, func(pair prober.PairStatus) bool { return pair.GPU == gone.GPU })
	status.Pairs = slices.Insert(status.Pairs, at, other)
}

func nicGone(t *testing.T) *capture.Recording {
	const device, at = 3, 60
	n, _ := hgx(h100, rdmatest.HGXOptions{})
	n.about = "After a minute mlx5_3 vanishes from the PCI bus, as a NIC does whose firmware died: no port is down, there is none. The rest is as in " + healthy + ", synthetic as that is."
	gone := capture.Span{From: at}
	function, _ := n.tree.Real("sys/class/infiniband/" + nics[device])
	function = path.Dir(path.Dir(function))
	s := n.scenario
	s.About = "mlx5_3 vanishes after a minute."
	s.Changes = append(s.Changes, capture.Change{Span: gone, Target: capture.Target{Path: "/" + function}, Gone: true})
	for _, link := range n.tree.Paths() { // what led there
		real, found := n.tree.Real(link)
		if found && real != link && !strings.HasPrefix(link, function) && (real == function || strings.HasPrefix(real, function+"/")) {
			s.Changes = append(s.Changes, capture.Change{Span: gone, Target: capture.Target{Path: "/" + link}, Gone: true})
		}
	}
	const measuredAt = 240
	s.Changes = append(s.Changes,
		proberChange(t, capture.Span{From: at, Until: measuredAt}, n.prober, func(status *prober.Status) { withoutNIC(status, device, 0) }),
		proberChange(t, capture.Span{From: measuredAt}, n.prober, func(status *prober.Status) { withoutNIC(status, device, measuredAt*time.Second) }))
	recording := n.recording(t)
	s.Changes = slices.DeleteFunc(s.Changes, func(c capture.Change) bool { return !concerns(recording, c.Target) })
	for i := range recording.Answers {
		if a := &recording.Answers[i]; a.Part == capture.PartNetlink && a.Question == "GET" {
			s.Changes = append(s.Changes, value(gone, a.Part, a.Question, without(t, a.Last.JSON, nics[device])))
		}
	}
	return recording
}
