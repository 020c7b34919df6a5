package nccllog

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unicode"
)

var update = flag.Bool("update", false, "rewrite the golden reports")

func read(t *testing.T, r io.Reader) *Report {
	t.Helper()
	report, err := Read(t.Context(), r, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func fixture(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// outcome is what a log comes to.
type outcome struct {
	name                           string
	verdict                        Verdict
	exit                           int
	direct, staged, socket, unsure uint64
	nccl                           string
	says                           []string // in the text
}

// fixtures are all logs of testdata with what they come to.
var fixtures = []outcome{
	{"nccl-2.4", VerdictDirect, ExitWarning, 8, 0, 0, 0, "2.4.8", []string{"NCCL_IB_CUDA_SUPPORT=1 does nothing", "mlx5_0, mlx5_1"}},
	{"nccl-2.8", VerdictStaged, ExitCritical, 0, 8, 0, 0, "2.8.4", []string{"NOT used", "GPU 1b000 and NIC mlx5_0 on node-a (6 > 4)", "NCCL_NET_GDR_LEVEL"}},
	{"nccl-2.12", VerdictStaged, ExitCritical, 0, 8, 0, 0, "2.12.12", []string{"(no module)", "nvidia-peermem", "2.23.4", "4 by PXN"}},
	{"nccl-2.18", VerdictDirect, ExitFine, 16, 0, 0, 0, "2.18.5", []string{"is used", "all_reduce_perf, 4 ranks on 2 hosts", "1.5 for 4 ranks", "not twice"}},
	{"nccl-2.21", VerdictDirect, ExitFine, 16, 0, 0, 0, "2.21.5", []string{"NCCL_NET_GDR_LEVEL=SYS"}},
	{"one-bad-rail-2.23", VerdictStaged, ExitWarning, 12, 4, 0, 0, "2.23.4", []string{"4 of 16", "mlx5_1 on node-b (one bad rail)"}},
	{"nccl-2.27", VerdictStaged, ExitWarning, 8, 8, 0, 0, "2.27.3", []string{"direction send", "NCCL_NET_GDR_READ=0"}},
	{"nccl-2.30", VerdictDirect, ExitCritical, 16, 0, 0, 0, "2.30.3", []string{"12 RETRY_EXC_ERR", "mlx5_1", "The job met errors"}},
	{"hpcx", VerdictStaged, ExitCritical, 0, 4, 0, 0, "2.21.5", []string{"IBext_v8", "mlx5_0+mlx5_1", "farther apart"}},
	{"socket", VerdictSocket, ExitWarning, 0, 0, 4, 0, "2.22.3", []string{"TCP", "/dev/infiniband"}},
	{"socket-despite-ib", VerdictSocket, ExitCritical, 0, 0, 4, 0, "2.20.5", []string{"although NCCL sees RDMA devices", "NCCL_NET=Socket"}},
	{"aws-ofi", VerdictDirect, ExitFine, 4, 0, 0, 0, "2.31.2", []string{"Libfabric", "aws-ofi-nccl 1.16.0"}},
	{"aws-ofi-no-gdr", VerdictStaged, ExitWarning, 0, 2, 0, 0, "2.18.5", []string{"AWS Libfabric", "type of machine"}},
	{"truncated", VerdictUnknown, ExitNotJudged, 0, 0, 0, 0, "2.21.5", []string{"ends before any connection"}},
	{"cut", VerdictUnknown, ExitNotJudged, 0, 0, 0, 1, "2.21.5", []string{"cut off"}},
	{"single-node", VerdictUnknown, ExitNotJudged, 0, 0, 0, 0, "2.27.3", []string{"within a node"}},
	{"real-2x-h200", VerdictUnknown, ExitNotJudged, 0, 0, 0, 0, "2.28.9", []string{"within a node", "P2P (48)", "of up to 2 ranks", "13.0"}},
	{"nccl-tests-wrong", VerdictUnknown, ExitCritical, 0, 0, 0, 0, "", []string{"DATA ARRIVED WRONG", "3 wrong values"}},
	{"nccl-tests-2.0", VerdictUnknown, ExitNotJudged, 0, 0, 0, 0, "", []string{"wrong values: 0", "167.51"}},
	{"errors", VerdictDirect, ExitCritical, 4, 0, 0, 0, "2.20.5", []string{"4 LOC_PROT_ERR", "ACS", "EFAULT", "ENOMEM", "user buffer", "Message truncated : received # bytes"}},
}

func TestFixtures(t *testing.T) {
	for _, test := range fixtures {
		t.Run(test.name, func(t *testing.T) {
			report := read(t, bytes.NewReader(fixture(t, test.name)))
			var text, asJSON bytes.Buffer
			if err := report.WriteTable(&text); err != nil {
				t.Fatal(err)
			}
			if err := report.WriteJSON(&asJSON); err != nil {
				t.Fatal(err)
			}
			c := report.Connections
			if report.Verdict != test.verdict || report.ExitCode() != test.exit || c.Direct != test.direct || c.Staged != test.staged || c.Socket != test.socket || c.Unclear != test.unsure {
				t.Errorf("%s, exit code %d, connections %+v\n%s", report.Verdict, report.ExitCode(), c, &text)
			}
			if nccl := values(report.NCCLVersions); test.nccl != "" && nccl != test.nccl || test.nccl == "" && len(report.NCCLVersions) > 0 {
				t.Errorf("NCCL %q", nccl)
			}
			for _, part := range test.says {
				if !strings.Contains(text.String(), part) {
					t.Errorf("the text lacks %q:\n%s", part, &text)
				}
			}
			golden(t, test.name+".txt", text.Bytes())
			golden(t, test.name+".json", asJSON.Bytes())
		})
	}
}

// Every log in testdata has a row above, and says what in it is real.
func TestFixturesComplete(t *testing.T) {
	logs, err := filepath.Glob("testdata/*.log")
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	for _, path := range logs {
		name := strings.TrimSuffix(filepath.Base(path), ".log")
		if !slices.ContainsFunc(fixtures, func(f outcome) bool { return f.name == name }) {
			t.Errorf("%s: no test", path)
		}
		text := string(fixture(t, name))
		if !strings.Contains(text, "\n# real: ") || !strings.Contains(text, "\n# made up: ") {
			t.Errorf("%s does not say what is real and what made up", path)
		}
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; go test ./collector/nccllog -update writes it", err)
	}
	if !bytes.Equal(want, got) {
		t.Errorf("%s differs; -update rewrites it. Got:\n%s", name, got)
	}
}

// Prefixes of launchers, and how a log is stored, change nothing.
func TestSameWithPrefixes(t *testing.T) {
	raw := fixture(t, "one-bad-rail-2.23")
	want := read(t, bytes.NewReader(raw))
	prefixed := func(prefix, suffix string) []byte {
		var b bytes.Buffer
		for line := range strings.Lines(string(raw)) {
			b.WriteString(prefix + strings.TrimSuffix(line, "\n") + suffix + "\n")
		}
		return b.Bytes()
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(raw)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, log := range map[string][]byte{
		"mpirun": prefixed("[1,0]<stdout>:", ""), "mpirun stderr": prefixed("[1,13]<stderr>: ", ""), "srun": prefixed("12: ", ""), "srun old": prefixed("7:", ""),
		"torchrun": prefixed("[default0]:", ""), "torchrun rank": prefixed("[rank3]: ", ""), "kubectl": prefixed("[pod/job-0/main] ", ""),
		"CRI": prefixed("2024-05-01T10:11:12.123456789Z stderr F ", ""), "docker": prefixed(`{"log":"`, `\n","stream":"stderr","time":"2024-05-01T10:11:12Z"}`),
		"pdsh": prefixed("node-a: ", ""), "colour": prefixed("\x1b[1;32m", "\x1b[0m"), "CRLF": prefixed("", "\r"), "title": prefixed("\x1b]0;x\a", ""), "gzip": packed.Bytes(),
		"progress": bytes.ReplaceAll(raw, []byte("\n"), []byte("\rstep 1\r")),
	} {
		t.Run(name, func(t *testing.T) {
			got := read(t, bytes.NewReader(log))
			if got.Headline != want.Headline || got.Connections.Direct != want.Connections.Direct || got.Input.Hosts != want.Input.Hosts || len(got.Devices) != len(want.Devices) {
				t.Errorf("%s\n%+v\n%+v", got.Headline, got.Input, got.Connections)
			}
		})
	}
}

// Read in small pieces, a log says the same.
func TestSmallReads(t *testing.T) {
	raw := fixture(t, "nccl-2.21")
	whole, pieces := read(t, bytes.NewReader(raw)), read(t, iotest.OneByteReader(bytes.NewReader(raw)))
	a, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(pieces)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Errorf("%s\n%s", a, b)
	}
}

func TestDamage(t *testing.T) {
	raw := bytes.Repeat(fixture(t, "nccl-2.18"), 20)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(raw)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	t.Run("gzip cut off", func(t *testing.T) {
		report := read(t, bytes.NewReader(packed.Bytes()[:packed.Len()-packed.Len()/8]))
		if report.Input.Damage == "" || report.Verdict != VerdictDirect || report.Connections.Direct == 0 {
			t.Errorf("%+v %s", report.Input, report.Verdict)
		}
	})
	t.Run("gzip in name only", func(t *testing.T) {
		if _, err := Read(t.Context(), strings.NewReader("\x1f\x8bnonsense"), Options{}); err == nil {
			t.Error("no error")
		}
	})
	t.Run("read error at once", func(t *testing.T) {
		failure := errors.New("broken")
		if _, err := Read(t.Context(), iotest.ErrReader(failure), Options{}); !errors.Is(err, failure) {
			t.Error(err)
		}
	})
	t.Run("read error later", func(t *testing.T) {
		report := read(t, io.MultiReader(bytes.NewReader(raw), iotest.ErrReader(errors.New("broken"))))
		if !strings.Contains(report.Input.Damage, "broken") || report.Connections.Direct != 20*16 {
			t.Errorf("%+v %+v", report.Input, report.Connections)
		}
	})
	t.Run("empty", func(t *testing.T) {
		if report := read(t, strings.NewReader("")); report.ExitCode() != ExitNotJudged || !strings.Contains(report.Headline, "NCCL_DEBUG=INFO") {
			t.Error(report.Headline)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Read(ctx, bytes.NewReader(bytes.Repeat([]byte("x\n"), 2*checkEveryLines)), Options{}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// What is in a log cannot reach the terminal but as text.
func TestHostile(t *testing.T) {
	evil := "\x1b[2J\x1b]0;title\a\u202e\x00\x7f\xff\x9b31m" + strings.Repeat("A", 5000)
	var log strings.Builder
	for _, form := range []string{
		"n:1:2 [0] NCCL INFO Using network %", "n:1:2 [0] NCCL INFO NET/IB : Using [0]%:1/IB [RO]; OOB e", "n:1:2 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 '%'",
		"n:1:2 [0] NCCL INFO NCCL_IB_HCA set by environment to %", "n:1:2 [0] x NCCL WARN %", "n:1:2 [0] x NCCL WARN Call to ibv_% failed", "n:1:2 [0] NCCL INFO NET/OFI Using %",
		"n:1:2 [0] NCCL INFO Channel 00/0 : 0[%] -> 1[0] [send] via NET/%/0", "n:1:2 [0] NCCL INFO GPU Direct RDMA Disabled for GPU % / HCA % (distance %)",
		"n:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 2 commId % - Init START", "%:1:2 [0] NCCL INFO Connected all rings", "NCCL_GPUDIRECT=%", "NCCL version 2.%",
		"x Got completion from peer with status=4 vendor err 1 hca %", "#  Rank  0 Pid 1 on % device 0", "# busbw #wrong", "# Out of bounds values : %", "n:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via %/x",
	} {
		log.WriteString(strings.ReplaceAll(form, "%", evil) + "\n")
	}
	report, err := Read(t.Context(), strings.NewReader(log.String()), Options{Findings: []string{evil}})
	if err != nil {
		t.Fatal(err)
	}
	var text, asJSON bytes.Buffer
	if err := report.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	if err := report.WriteJSON(&asJSON); err != nil {
		t.Fatal(err)
	}
	for name, out := range map[string]string{"text": text.String(), "JSON": asJSON.String()} {
		if at := strings.IndexFunc(out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); at >= 0 {
			t.Errorf("%s has %q", name, out[max(0, at-40):min(len(out), at+20)])
		}
		if len(out) > 32<<10 {
			t.Errorf("%s has %d bytes", name, len(out))
		}
	}
	if report.Input.NCCLLines < 12 || len(report.Settings) < 2 || len(report.NodeFindings) != 1 {
		t.Errorf("the lines were not read: %+v", report.Input)
	}
}
