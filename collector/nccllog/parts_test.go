package nccllog

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestWay(t *testing.T) {
	for _, test := range []struct {
		text string
		cut  bool
		want way
	}{
		{"IB/0/GDRDMA", false, way{network: "IB", device: 0, direct: true, clear: true}},
		{"IB/3(2)/GDRDMA(PCI)/Shared", false, way{network: "IB", device: 3, direct: true, pci: true, pxn: true, clear: true}},
		{"IB/12/GDRDMA/flush=None", true, way{network: "IB", device: 12, direct: true, clear: true}},
		{"IB/0", false, way{network: "IB", clear: true}},
		{"IB/0/Shared", false, way{network: "IB", clear: true}},
		{"IB/0/GDCopy", false, way{network: "IB", clear: true}},
		{"AWS Libfabric/1", false, way{network: "AWS Libfabric", device: 1, clear: true}},
		{"NCCL RDMA Plugin v9/3", false, way{network: "NCCL RDMA Plugin v9", device: 3, clear: true}},
		{"IB/0", true, way{network: "IB"}},
		{"IB/0/", false, way{network: "IB"}},
		{"IB/0/GDR", false, way{network: "IB"}},
		{"IB/0/GDRDM", true, way{network: "IB"}},
		{"IB/0/Shared", true, way{network: "IB", clear: true}},
		{"IB/", false, way{}},
		{"IB", false, way{}},
		{"IB/99999999999/GDRDMA", false, way{}},
		{"", true, way{}},
	} {
		if got := parseWay(test.text, test.cut); got != test.want {
			t.Errorf("%q: %+v, want %+v", test.text, got, test.want)
		}
	}
}

func TestSplit(t *testing.T) {
	p := newParser()
	for _, test := range []struct {
		text                         string
		start                        int
		host, pid, dev, source, rest string
	}{
		{"node-a:12:34 [0] ", 0, "node-a", "12", "0", "", ""},
		{"[1,0]<stdout>:node.b:1:2 [-1] ", 14, "node.b", "1", "-1", "", ""},
		{"[2024-01-02 03:04:05] n:1:2 [7] transport/net_ib.cc:2453 ", 22, "n", "1", "7", "transport/net_ib.cc:2453", ""},
		{"n:1:2 [1] transport/net_ib/[p2p.cc:648](x) ", 0, "n", "1", "1", "transport/net_ib/[p2p.cc:648](x)", ""},
		{"via NET/IB/0/GDRDMAnode-a:5:6 [3] ", 19, "node-a", "5", "3", "", ""}, // node-a is known by now
		{"nothing of it ", 14, "", "", "", "", ""},
		{"a [0] ", 6, "", "", "", "", ""},
		{":1:2 [0] ", 9, "", "", "", "", ""},
		{"", 0, "", "", "", "", ""},
	} {
		start, e := p.prefix(test.text)
		if start != test.start || e.host != test.host || e.pid != test.pid || e.dev != test.dev || e.source != test.source {
			t.Errorf("%q: %d %+v", test.text, start, e)
		}
	}
}

// A line that another process's output cuts off is not taken for a staged one.
func TestGlued(t *testing.T) {
	log := "a:1:2 [0] NCCL INFO Using network IB\nb:1:2 [0] NCCL INFO Using network IB\n" +
		"a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0b:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0/GDRDMA\n" +
		"/GDRDMA\n"
	report := read(t, strings.NewReader(log))
	if c := report.Connections; c.Direct != 1 || c.Staged != 0 || c.Unclear != 1 || report.Verdict != VerdictDirect || report.Input.Hosts != 2 {
		t.Errorf("%+v %+v", c, report.Input)
	}
}

// Where lines are broken in two, what looks staged may be the first half of a
// direct one.
func TestTails(t *testing.T) {
	log := "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n/GDRDMA\na:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA\n"
	if report := read(t, strings.NewReader(log)); report.Verdict != VerdictUnknown || report.ExitCode() != ExitNotJudged {
		t.Error(report.Headline)
	}
}

func TestEffects(t *testing.T) {
	for _, test := range []struct {
		name, value string
		want        Effect
	}{
		{"NCCL_GPUDIRECT", "1", EffectNothing}, {"NCCL_GPUDIRECT_RDMA_ENABLE", "1", EffectNothing}, {"NCCL_IB_CUDA_SUPPORT", "1", EffectNothing},
		{"NCCL_NET_GDR_LEVEL", "LOC", EffectDisables}, {"NCCL_NET_GDR_LEVEL", "0", EffectDisables}, {"NCCL_NET_GDR_LEVEL", "SYS", EffectChanges},
		{"NCCL_NET", "Socket", EffectDisables}, {"NCCL_NET", "IB", EffectNone}, {"NCCL_IB_DISABLE", "0", EffectNone}, {"NCCL_DEBUG", "INFO", EffectNone},
	} {
		if got, note := effectOf(test.name, test.value); got != test.want || (got != EffectNone) != (note != "") {
			t.Errorf("%s=%s: %q %q", test.name, test.value, got, note)
		}
	}
}

func TestAssignments(t *testing.T) {
	report := read(t, strings.NewReader("mpirun -x NCCL_DEBUG=INFO -x NCCL_GPUDIRECT_RDMA=1 -x NCCL_=2 app\nexport NCCL_IB_GDR_LEVEL='3' NCCL_IB_CUDA_SUPPORT\n"))
	if len(report.Settings) != 2 || report.Settings[0].Name != "NCCL_GPUDIRECT_RDMA" || report.Settings[0].Read || report.Settings[1].Name != "NCCL_IB_GDR_LEVEL" {
		t.Errorf("%+v", report.Settings)
	}
}

func TestSeveralVersions(t *testing.T) {
	report := read(t, strings.NewReader("NCCL version 2.18.5+cuda12.2\na:1:2 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\nNCCL version unknown\n"))
	if len(report.NCCLVersions) != 2 || len(report.Findings) == 0 || !strings.Contains(report.Findings[0].Seen, "several versions") {
		t.Errorf("%+v %+v", report.NCCLVersions, report.Findings)
	}
}

func TestCompletions(t *testing.T) {
	for _, text := range []string{
		"NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129",
		"NET/IB : Got completion from peer 10.5.0.34<33956> with error 12, opcode 0, len 1, vendor err 129 (Recv) localGid ::ffff:10.6.0.35",
		"NET/IB: Got completion from peer 10.5.0.34<33956> with status=12 opcode=129 len=65536 vendor err 129 (Recv)",
		"NET/gIB : Got completion from peer 192.168.0.9<55224> with status = 12 opcode = 0 len = 0 vendor err 129 ( Recv )",
		"NET/IB: Got completion from peer 10.5.0.34<33956> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Recv",
	} {
		p := newParser()
		if !p.failure(text, "h") {
			t.Errorf("%q: not taken", text)
		}
		if f := p.errors.known(errorKey{FailureCompletion, "h", "", "12 RETRY_EXC_ERR", "129"}); f == nil || f.Count != 1 || f.Hint == "" {
			t.Errorf("%q: %+v", text, p.errors.rows)
		}
	}
}

// NCCL weighs all pairs; only those that are used explain anything.
func TestRefusals(t *testing.T) {
	log := "a:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0\n" +
		"a:1:2 [0] NCCL INFO GPU Direct RDMA Enabled for GPU 0 / HCA 0 (distance 4 <= 5), read 1 mode Default\n" +
		"a:1:2 [0] NCCL INFO GPU Direct RDMA Disabled for GPU 0 / HCA 1 (distance 8 > 5)\n" +
		"a:1:2 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for GPU 0[0] / HCA 12 (distance 3 >= 2)\n" +
		"a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/%\n"
	report := read(t, strings.NewReader(strings.ReplaceAll(strings.ReplaceAll(log, "HCA 12", "HCA"), "%", "0")))
	if len(report.Refusals) != 1 || report.Refusals[0].Device != "mlx5_1" || report.Refusals[0].Distance != "8 > 5" || strings.Contains(report.Findings[0].Seen, "mlx5_1") {
		t.Errorf("%+v %+v", report.Refusals, report.Findings)
	}
	report = read(t, strings.NewReader(strings.ReplaceAll(log, "%", "1")))
	if len(report.Refusals) != 2 || !strings.Contains(report.Findings[0].Seen, "GPU 0 and NIC mlx5_1 on a (8 > 5)") {
		t.Errorf("%+v %+v", report.Refusals, report.Findings)
	}
}

func TestTimeouts(t *testing.T) {
	report := read(t, strings.NewReader("[rank3]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE) ran for 600029 milliseconds before timing out.\n"+
		"a:1:2 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.\nthe epoch timed out\n"))
	if len(report.Failures) != 1 || report.Failures[0].Kind != FailureTimeout || report.Failures[0].Count != 1 || len(report.Settings) != 1 {
		t.Errorf("%+v %+v", report.Failures, report.Settings)
	}
}

// The factors are those of nccl-tests' PERFORMANCE.md.
func TestFactors(t *testing.T) {
	for program, want := range map[string]float64{"all_reduce_perf": 1.875, "all_gather_perf": 0.9375, "reduce_scatter_perf": 0.9375, "alltoall_perf": 0.9375, "broadcast_perf": 1, "reduce_perf": 1, "sendrecv_perf": 1} {
		b := benchmarks{}
		b.program("running ./" + program + " -b 8")
		for i := range collectives {
			if row := &collectives[i]; row.program == program && (b.next.Collective != program || math.Abs(row.of(16)-want) > 1e-9) {
				t.Errorf("%s: taken for %q, factor %v", program, b.next.Collective, row.of(16))
			}
		}
	}
}

func TestBenchmarkRows(t *testing.T) {
	header := "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
	report := read(t, strings.NewReader(header+
		"  1024 256 float sum -1 10.0 1.00 1.50 0 10.0 1.00 1.50 N/A\n"+
		"  2048 512 float sum -1 10.0 2.00 3.00 7 10.0\n"+ // cut off
		"  4096 1024 bfloat16 sum -1 NaN 2.00 3.00 7 10.0 1 2 3\n"+
		"  8192 2048 half none 0 10.0 2.00 2.00 1 10.0 4.00 4.00 2\n"))
	b := report.Benchmarks[0]
	if len(b.Sizes) != 2 || b.WrongValues != 3 || b.Sizes[0].InPlace.Wrong != nil || *b.Sizes[0].OutOfPlace.Wrong != 0 || b.Peak != 4e9 || b.Factor != 1 || b.Average != nil {
		t.Errorf("%+v", b)
	}
	// One half only, more tables and more rows than are kept: nothing wrong is lost.
	one := "# size count type redop root time algbw busbw #wrong\n"
	var log strings.Builder
	for range mostBenchmarks + 2 {
		log.WriteString(one + strings.Repeat("8 2 float sum -1 1.0 1.0 1.0 0\n", mostSizes+1) + "# Avg bus bandwidth    : 1 \n")
	}
	log.WriteString(one + "8 2 float sum -1 1.0 1.0 1.0 5\n")
	report = read(t, strings.NewReader(log.String()))
	if len(report.Benchmarks) != mostBenchmarks || report.Benchmarks[0].LeftOut != 1 || report.LeftOut["benchmarks"] != 3 || report.ExitCode() != ExitCritical {
		t.Errorf("%d tables, %v, exit code %d", len(report.Benchmarks), report.LeftOut, report.ExitCode())
	}
}

// stream makes a log of a size without holding it: many hosts, ranks and names,
// more than the tables take.
type stream struct {
	left, made int
	buffered   bytes.Buffer
}

func (s *stream) Read(to []byte) (int, error) {
	for s.buffered.Len() < len(to) && s.left > 0 {
		n := s.made
		s.made++
		host := n % 20000
		fmt.Fprintf(&s.buffered, "host-%05d:%d:%d [%d] NCCL INFO Channel %02d/0 : %d[%d] -> %d[%d] [send] via NET/IB/%d/GDRDMA\n", host, n%100000, n, n%8, n%32, n, n%8, n+1, n%8, n%9)
		fmt.Fprintf(&s.buffered, "host-%05d:%d:%d [0] NCCL INFO NCCL_X%d set by environment to %d\n", host, n%100000, n, n, n)
		fmt.Fprintf(&s.buffered, "host-%05d:%d:%d [0] a.cc:%d NCCL WARN text %c%c%c of many\nepoch %d of anything else\n", host, n, n, n, 'g'+n%19, 'g'+n/19%19, 'g'+n/361%19, n)
		fmt.Fprintf(&s.buffered, "host-%05d:%d:%d [0] NCCL INFO NET/IB : Using [0]mlx5_%d:1/IB [RO]; OOB eth0\n", host, n%100000, n, n)
	}
	n, _ := s.buffered.Read(to[:min(len(to), max(s.left, 0))])
	s.left -= n
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// A log of any size is read in bounded memory, with most of it beyond the tables.
func TestBoundedMemory(t *testing.T) {
	const size, most = 50 << 20, 64 << 20
	var before, during runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	started := time.Now()
	p := newParser()
	source, err := newLines(&stream{left: size})
	if err != nil {
		t.Fatal(err)
	}
	for {
		line, ended, err := source.next()
		if err != nil {
			break
		}
		p.line(line, ended)
	}
	took := time.Since(started)
	runtime.GC()
	runtime.ReadMemStats(&during)
	grown := int64(during.HeapAlloc) - int64(before.HeapAlloc)
	report := p.report(Options{})
	t.Logf("%d MiB in %v, %d KiB kept, left out: %v", size>>20, took.Round(time.Millisecond), grown>>10, report.LeftOut)
	if grown > most {
		t.Errorf("%d MiB kept", grown>>20)
	}
	if report.Connections.Direct == 0 || report.LeftOut["hosts"] == 0 || report.LeftOut["rails"] == 0 || report.LeftOut["settings"] == 0 || report.LeftOut["devices"] == 0 || report.LeftOut["warnings"] == 0 {
		t.Errorf("tables were not filled: %v", report.LeftOut)
	}
	if report.Connections.Direct+report.Connections.Unclear < size/600 {
		t.Errorf("connections lost: %+v", report.Connections)
	}
}

// A stream without any line end costs no more than one with.
func TestNoLineEnds(t *testing.T) {
	report := read(t, io.LimitReader(endless('x'), 8<<20))
	if report.Input.LongLines != 8<<20/chunk || report.ExitCode() != ExitNotJudged {
		t.Errorf("%+v", report.Input)
	}
}

// What is made to be slow is not: no line costs more than in proportion to its
// length. The limit leaves room for a slow machine; a quadratic reader takes minutes.
func TestHostileIsFast(t *testing.T) {
	for name, unit := range map[string]string{
		"variables": "NCCL_A", "assignments": "NCCL_A=", "brackets": "[", "devices": "[0]", "escapes": "\x1b]", "escapes CSI": "\x1b[", "markers": "NCCL INFO ", "hosts": "a:1:2 [0] NCCL INFO ",
		"NICs": "NET/IB : Using [0]x", "vias": " via NET/", "hashes": "#", "numbers": "1 ", "returns": "\r", "commas": "GPU Direct RDMA (", "quotes": "GPU Direct RDMA Enabled for HCA 0 '",
	} {
		for _, before := range []string{"", "a:1:2 [0] NCCL INFO NET/IB : Using [0]x"} {
			log := before + strings.Repeat(unit, (4<<20)/len(unit)) + "= [0] NCCL INFO"
			started := time.Now()
			read(t, strings.NewReader(log))
			if took := time.Since(started); took > 20*time.Second {
				t.Errorf("%s after %q: %v", name, before, took)
			} else if took > time.Second {
				t.Logf("%s after %q: %v", name, before, took)
			}
		}
	}
}

type endless byte

func (e endless) Read(to []byte) (int, error) {
	for i := range to {
		to[i] = byte(e)
	}
	return len(to), nil
}
