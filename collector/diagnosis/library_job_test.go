package diagnosis

import (
	"strings"
	"testing"

	"gdr_exporter/collector/process"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
)

// TestJob: each variable of the facts, with what it does and with a value that
// does nothing.
func TestJob(t *testing.T) {
	usual := JobHost{Devices: []string{"mlx5_0", "mlx5_1"}, NCCLPeermem: sysread.Some(true), UCXPeermem: sysread.Some(true)}
	grace := JobHost{C2C: true, DataDirect: true, NCCL: "2.27.3"}
	bare := JobHost{NCCLPeermem: sysread.Some(false), UCXPeermem: sysread.Some(false)}
	for _, test := range []struct {
		variable, value string
		host            JobHost
		effect          Effect // "": nothing is said
		text            string
	}{
		{"NCCL_NET_GDR_LEVEL", "LOC", usual, EffectStages, "GPUDirect RDMA is off"},
		{"NCCL_NET_GDR_LEVEL", "0", usual, EffectStages, "off"},
		{"NCCL_NET_GDR_LEVEL", "NVL", usual, EffectStages, "off"},
		{"NCCL_NET_GDR_LEVEL", "PIX", usual, EffectRemark, "PXB"},
		{"NCCL_NET_GDR_LEVEL", "PXB", usual, "", ""},
		{"NCCL_NET_GDR_LEVEL", "2", usual, "", ""},
		{"NCCL_NET_GDR_LEVEL", "SYS", usual, EffectRemark, "forces nothing"},
		{"NCCL_NET_GDR_LEVEL", "5", usual, EffectRemark, "forces nothing"},
		{"NCCL_NET_GDR_LEVEL", "sys", usual, EffectInvalid, "in capitals"},
		{"NCCL_NET_GDR_LEVEL", "NODE", usual, EffectInvalid, "names no distance"},
		{"NCCL_IB_GDR_LEVEL", "5", usual, EffectNone, "NCCL_NET_GDR_LEVEL"},
		{"NCCL_NET_GDR_READ", "0", usual, EffectStages, "sends"},
		{"NCCL_NET_GDR_READ", "no", usual, EffectInvalid, "for 0, and sends"},
		{"NCCL_NET_GDR_READ", "1", usual, "", ""},
		{"NCCL_NET_GDR_C2C", "0", grace, EffectStages, "NVLink-C2C"},
		{"NCCL_NET_GDR_C2C", "1", grace, "", ""},
		{"NCCL_NET_GDR_C2C", "0", usual, EffectNone, "no GPU here"},
		{"NCCL_NET_GDR_C2C", "1", JobHost{C2C: true, NCCL: "2.25.1"}, EffectNone, "from NCCL 2.26 on"},
		{"NCCL_DMABUF_ENABLE", "0", usual, EffectRemark, "depends on peer memory"},
		{"NCCL_DMABUF_ENABLE", "0", bare, EffectStages, "finds no peer memory"},
		{"NCCL_DMABUF_ENABLE", "0", JobHost{}, EffectRemark, "depends on peer memory"},
		{"NCCL_DMABUF_ENABLE", "0", JobHost{NCCL: "2.12.10"}, EffectNone, "from NCCL 2.13 on"},
		{"NCCL_DMABUF_ENABLE", "true", usual, EffectInvalid, "switches dma-buf off"},
		{"NCCL_DMABUF_ENABLE", process.Withheld, usual, EffectInvalid, "no number"},
		{"NCCL_DMABUF_ENABLE", "1", bare, "", ""},
		{"NCCL_IB_DATA_DIRECT", "0", grace, EffectRemark, "data-direct"},
		{"NCCL_IB_DATA_DIRECT", "2", grace, "", ""},
		{"NCCL_IB_DATA_DIRECT", "0", usual, EffectNone, "no NIC here"},
		{"NCCL_IB_PCI_RELAXED_ORDERING", "0", usual, EffectRemark, "relaxed ordering"},
		{"NCCL_IB_PCI_RELAXED_ORDERING", "1", usual, "", ""},
		{"NCCL_IB_DISABLE", "1", usual, EffectStages, "sockets"},
		{"NCCL_IB_DISABLE", "0", usual, "", ""},
		{"NCCL_IB_DISABLE", "true", usual, EffectInvalid, "nothing is switched off"},
		{"NCCL_NET", "Socket", usual, EffectStages, "sockets"},
		{"NCCL_NET", "IB", usual, "", ""},
		{"NCCL_NET", "IBext", usual, EffectRemark, "plugin"},
		{"NCCL_IB_HCA", "mlx5_9", usual, EffectStages, "every compute device"},
		{"NCCL_IB_HCA", "^mlx5_1", usual, EffectRemark, "1 of 2 compute devices of this node: mlx5_1"},
		{"NCCL_IB_HCA", "mlx5", usual, "", ""},
		{"NCCL_IB_HCA", "mlx5_9", JobHost{}, "", ""},
		{"NCCL_IB_HCA", process.Withheld, usual, "", ""},
		{"NCCL_TOPO_FILE", process.Withheld, usual, EffectRemark, "distances from that file"},
		{"NCCL_IB_CUDA_SUPPORT", "1", usual, EffectNone, "since 2.4"},
		{"NCCL_GPUDIRECT", "1", usual, EffectNone, "no NCCL ever had it"},
		{"NCCL_GPUDIRECT_RDMA", process.Withheld, usual, EffectNone, "no NCCL ever had it"},
		{"NCCL_GDRCOPY_ENABLE", "1", usual, EffectNone, "processor's access"},
		{"UCX_IB_GPU_DIRECT_RDMA", "no", usual, EffectStages, "copies"},
		{"UCX_IB_GPU_DIRECT_RDMA", "Try", usual, "", ""},
		{"UCX_IB_GPU_DIRECT_RDMA", "yes", usual, "", ""},
		{"UCX_IB_GPU_DIRECT_RDMA", "always", usual, EffectInvalid, "try, yes and no"},
		{"UCX_CUDA_COPY_DMABUF", "no", bare, EffectStages, "UCX finds no peer memory"},
		{"UCX_CUDA_COPY_DMABUF", "no", usual, EffectRemark, "depends on peer memory"},
		{"UCX_CUDA_COPY_DMABUF", "try", bare, "", ""},
		{"UCX_TLS", "rc,sm", usual, EffectStages, "cuda_copy"},
		{"UCX_TLS", "all", usual, "", ""},
		{"UCX_TLS", "^rc", usual, "", ""},
		{"UCX_TLS", "rc,cuda_copy", usual, "", ""},
		{"UCX_TLS", process.Withheld, usual, "", ""},
		{"UCX_DISTANCE_BW", process.Withheld, usual, EffectRemark, "distances"},
		{"PATH", "/bin", usual, "", ""},
		{"NCCL_NET_GDR_LEVEL", "", usual, "", ""},
	} {
		notes := Job(map[string]string{test.variable: test.value}, test.host)
		if test.effect == "" {
			if len(notes) > 0 {
				t.Errorf("%s=%s: %+v, want nothing", test.variable, test.value, notes)
			}
			continue
		}
		if len(notes) != 1 || notes[0].Effect != test.effect || !strings.Contains(notes[0].Text, test.text) || notes[0].Variable != test.variable {
			t.Errorf("%s=%s: %+v, want %s: %s", test.variable, test.value, notes, test.effect, test.text)
			continue
		}
		if want := strings.TrimPrefix(test.value, process.Withheld); notes[0].Value != want {
			t.Errorf("%s: value %q, want %q", test.variable, notes[0].Value, want)
		}
	}
}

// TestJobOrder: the worst first, then by name.
func TestJobOrder(t *testing.T) {
	notes := Job(libraryEnv("NCCL_GPUDIRECT", "1", "NCCL_NET_GDR_LEVEL", "LOC", "UCX_TLS", "rc", "NCCL_NET_GDR_READ", "x", "NCCL_NET", "plugin"), JobHost{})
	var got []string
	for _, n := range notes {
		got = append(got, n.Variable)
	}
	if want := "NCCL_NET_GDR_LEVEL UCX_TLS NCCL_NET_GDR_READ NCCL_GPUDIRECT NCCL_NET"; strings.Join(got, " ") != want {
		t.Errorf("order %v, want %s", got, want)
	}
}

// TestJobVariablesAreKept: the values that are judged are kept of processes; of
// some the name is enough.
func TestJobVariablesAreKept(t *testing.T) {
	names := map[string]bool{"NCCL_TOPO_FILE": true, "NCCL_GPUDIRECT*": true, "UCX_DISTANCE_BW": true}
	for _, name := range JobVariables {
		if process.Valued[name] == nil && !names[name] {
			t.Errorf("the value of %s is not kept", name)
		}
	}
}

func TestJobOf(t *testing.T) {
	s := libraryNode(2)
	libraryMarkers()(s)
	libraryFirstGPU(func(g *gpu.GPU) { g.C2CLinks = sysread.Some(uint64(10)) })(s)
	running := &process.Job{
		Variables: sysread.Some(libraryEnv("NCCL_DMABUF_ENABLE", "0", "NCCL_IB_HCA", "mlx5_1", "NCCL_NET_GDR_C2C", "0", "UCX_CUDA_COPY_DMABUF", "no")),
		Others:    []string{"NCCL_TOPO_FILE", "NCCL_DEBUG"}, NCCL: sysread.Some("2.28.3"),
	}
	got := map[string]Effect{}
	for _, n := range JobOf(s, running) {
		got[n.Variable] = n.Effect
	}
	want := map[string]Effect{
		"NCCL_DMABUF_ENABLE": EffectStages, "NCCL_IB_HCA": EffectRemark, "NCCL_NET_GDR_C2C": EffectStages, "UCX_CUDA_COPY_DMABUF": EffectStages, "NCCL_TOPO_FILE": EffectRemark,
	}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s: %q, want %q", name, got[name], want[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("notes on %v", got)
	}
	running.Variables.Known = false
	if notes := JobOf(s, running); notes != nil {
		t.Errorf("%v of an environment that is not known", notes)
	}
	// The markers that an old NCCL looks for are others.
	libraryMarkers("module/nvidia_peermem")(s)
	running.Variables, running.NCCL = sysread.Some(libraryEnv("NCCL_DMABUF_ENABLE", "0")), sysread.Some("2.21.5")
	running.Others = nil
	if notes := JobOf(s, running); len(notes) != 1 || notes[0].Effect != EffectStages {
		t.Errorf("of an old NCCL: %+v", notes)
	}
	running.NCCL = sysread.Some("2.23.4")
	if notes := JobOf(s, running); len(notes) != 1 || notes[0].Effect != EffectRemark {
		t.Errorf("of a newer NCCL: %+v", notes)
	}
}

// FuzzEnvironment: no value of any variable breaks anything, and what a job is told
// is of the variables that it has.
func FuzzEnvironment(f *testing.F) {
	for i, value := range []string{"", "LOC", "0", "^=mlx5_0:1,", "-9223372036854775808", "0x", "99999999999999999999", "rc,cuda", process.Withheld, "\x00\xff"} {
		f.Add(i, value)
	}
	host := JobHost{Devices: []string{"mlx5_0", "mlx5_1"}, C2C: true, DataDirect: true}
	f.Fuzz(func(t *testing.T, i int, value string) {
		name := strings.TrimSuffix(JobVariables[uint(i)%uint(len(JobVariables))], "*")
		variables := libraryEnv(name, value)
		for _, n := range Job(variables, host) {
			if n.Variable != name || n.Text == "" || n.Effect == "" {
				t.Errorf("%s=%q: %+v", name, value, n)
			}
		}
		s := libraryNode(1)
		choices, open := ChoicesOf(s, expectedPairs(s), variables)
		if len(choices)+len(open) != len(Generations) {
			t.Errorf("%s=%q: %d choices, %d open", name, value, len(choices), len(open))
		}
	})
}
