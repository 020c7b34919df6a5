package collector

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gdr_exporter/rdma/rdmatest"
)

// covered says what shows that a case from the field is handled: inputs of
// rdmatest.Cases, which TestCases and `make survival` serve beside a healthy
// device, and tests by name, each in the package below the module's root.
type covered struct {
	what   string
	inputs []string
	tests  []string // "package:TestName"
}

func inputs(what string, ids ...string) covered { return covered{what: what, inputs: ids} }
func tests(what string, names ...string) covered {
	return covered{what: what, tests: names}
}

// fieldCases are the cases that were collected from public reports, numbered as
// there: 1 to 52 are inputs of RDMA devices, the others of GPUs and links.
var fieldCases = [...]covered{
	1:  inputs("rate 400 Gb/sec (4X NDR)", "rate-4x-ndr"),
	2:  inputs("a bond reports one rail", "bond"),
	3:  inputs("rate 800 Gb/sec (4X XDR)", "rate-4x-xdr"),
	4:  tests("InfiniBand grade of an Ethernet speed", "rdma:TestParseRate"),
	5:  tests("same rate, three widths", "rdma:TestParseRate"),
	6:  tests("fractional rates", "rdma:TestParseRate"),
	7:  inputs("rate of a port that is down is a placeholder", "rate-down-sdr"),
	8:  inputs("as 7, Disabled", "rate-down-qdr"),
	9:  inputs("rate EINVAL", "rate-einval-mana"),
	10: inputs("rate empty or missing", "rate-empty", "rate-missing"),
	11: inputs("no PCI parent", "rxe", "siw"),
	12: inputs("old kernels print SDR", "rate-no-grade"),
	13: tests("every state, and numbers without a name", "rdma:TestParseStateID"),
	14: inputs("state fails or is empty: unknown, not down", "state-empty", "garbage"),
	15: inputs("N/A (no PMA)", "counters-no-pma", "counters-no-pma-mlx4-vf"),
	16: {"restricted function", []string{"restricted"}, []string{"rdma:TestRestrictedDirectoryIsLeftAlone", "rdma:TestExcludedDeviceIsNotTouched"}},
	17: inputs("as 16", "restricted"),
	18: inputs("port_rcv_data EINVAL beside rx_bytes", "counter-einval-bnxt"),
	19: inputs("no counters directory", "no-counters", "no-counters-irdma", "efa"),
	20: inputs("identity files absent", "identity-missing", "fw-ver-missing", "mana"),
	21: inputs("names with signs, very many", "hfi1", "names-collide"),
	22: inputs("counters at device level", "hfi1", "efa"),
	23: inputs("saturated counters", "saturated"),
	24: inputs("widths of the PMA counters", "saturated"),
	25: inputs("Q counters wrap", "q-counter-wraps"),
	26: inputs("beyond the precision of a float", "efa-large", "words-beyond-2^62"),
	27: {"one pair of byte counters", []string{"efa-large"}, []string{"rdma:TestBytesOfEveryDriver"}},
	28: inputs("LAG", "bond"),
	29: inputs("other network namespace", "netns"),
	30: inputs("a VF vanishes", "vf-vanishes"),
	31: inputs("multi-plane", "multi-plane"),
	32: inputs("SMI sub-device", "smi"),
	33: inputs("second function", "function-1"),
	34: inputs("names", "names"),
	35: inputs("renamed while running", "renamed"),
	36: inputs("gone half way", "gone-halfway"),
	37: inputs("class absent, empty, vanishing", "class-absent", "class-empty", "class-vanishes"),
	38: inputs("empty GID slots", "gids-einval"),
	39: inputs("EFA", "efa", "link-layer-unknown"),
	40: tests("ethtool EOPNOTSUPP", "rdma/netdev:TestUnsupported", "collector:TestSurvival"),
	41: inputs("Disabled by design", "port-disabled"),
	42: inputs("errnos of firmware recovery", "counter-eio", "counter-enodev", "counter-etimedout", "counter-eagain", "counter-ebusy"),
	43: inputs("a read that blocks", "hang", "hang-state", "hang-open", "slow"),
	44: inputs("counter text", "counter-empty", "counter-negative"),
	45: inputs("one name in two directories", "same-name"),
	46: inputs("lifespan", "lifespan"),
	47: inputs("memory_peers absent", "peermem-no-client"),
	48: inputs("use count 0", "peermem-unused"),
	49: inputs("no module", "peermem-absent"),
	50: inputs("sub-functions", "sub-function"),
	51: inputs("logical and physical state differ", "vf-down-link-up"),
	52: inputs("nine ports", "nine-ports"),

	53: tests("which markers there are, by name", "gpu/driver:TestScenes", "collector:TestDriverGolden"),
	54: tests("loaded and registered are two facts", "collector:TestDriverCases"),
	55: tests("as 54", "collector:TestDriverCases"),
	56: tests("module gone while RDMA devices are there", "collector:TestDriverCases"),
	57: tests("as 56", "collector:TestDriverCases"),
	58: tests("judged by the ratio to host memory", "rdma/loopback:TestJudge"),
	59: tests("as 58", "rdma/loopback:TestJudge"),
	60: tests("ACS redirects, or unknown", "gpu/affinity:TestACSText", "collector:TestAffinityGolden"),
	61: tests("registering fails, with its errno", "rdma/loopback:TestInKernelUnregistrable", "collector:TestDriverCases"),
	62: tests("dma-buf alone is enough", "gpu/cuda:TestDMABuf"),
	63: tests("both ways, errno of each", "rdma/loopback:TestRegisterOnlyFails"),
	64: tests("errno of registering, told apart", "rdma/loopback:TestErrorJSON"),
	65: tests("unsupported is not 0", "rdma/loopback:TestSkipReason"),
	66: tests("host memory in the same cycle", "rdma/loopback:TestJudge"),
	67: tests("device memory only", "gpu/cuda:TestMemory"),
	68: tests("data-direct function", "gpu/affinity:TestBridgesToDataDirect", "collector:TestAffinityGolden"),
	69: tests("all links inactive on one GPU", "collector:TestGPUCases"),
	70: tests("as 69 and the code", "collector:TestGPUCases", "gpu:TestXids"),
	71: tests("recoveries per link", "collector:TestGPUCases"),
	72: tests("Xids by code", "gpu:TestXids"),
	73: tests("in progress", "collector:TestGPUCases"),
	74: tests("completed, status bad", "collector:TestGPUCases"),
	75: tests("not started", "collector:TestGPUCases"),
	76: tests("state from NVML alone", "gpu:TestFabric"),
	77: tests("not supported is neutral", "collector:TestGPUNothingAlarming"),
	78: tests("P2P status per pair", "gpu:TestPairs"),
	79: tests("fewer links are usual", "collector:TestGPUNothingAlarming"),
	80: tests("count from the device", "collector:TestGPUCases"),
	81: tests("unsupported is no series", "gpu:TestB200"),
	82: tests("speed is shown, not judged", "collector:TestGPUNothingAlarming"),
	83: tests("current and possible speed", "collector:TestAffinityGolden"),
	84: tests("replays are a counter", "collector:TestGPUGolden"),
	85: tests("width lost", "collector:TestGPUCases"),
	86: tests("fallen off the bus", "collector:TestGPUCases"),
	87: tests("gone without a word", "collector:TestGPUPresence"),
	88: tests("Xids by code", "gpu:TestXids"),
	89: tests("lost in the middle of a scrape", "gpu:TestLost", "collector:TestSurvival"),
	90: tests("a call that never returns", "collector:TestGPUHang"),
	91: tests("version mismatch", "collector:TestGPUCases", "gpu:TestUpgradeWhileQuiesced"),
	92: tests("open device files block an upgrade", "gpu:TestQuiesce"),
	93: tests("a driver without a function", "gpu:TestOldDriver", "collector:TestSurvival"),
	94: tests("one call at a time", "gpu:TestConcurrent"),
	95: tests("no GPU, no RDMA", "gpu:TestNoDriver", "cmd/gdr_exporter:TestNodeWithoutRDMA"),
	96: {"excluded before the first read", nil, []string{"rdma:TestExcludedDeviceIsNotTouched"}},
	97: inputs("as 15 and 19", "counters-no-pma", "no-counters"),
	98: tests("include, exclude, roles", "cmd/gdr_exporter:TestFilters", "cmd/gdr_exporter:TestRoles"),
}

// TestFieldCases: every case from the field has something that shows how it is
// handled, and that exists.
func TestFieldCases(t *testing.T) {
	const rows = 98
	if len(fieldCases) != rows+1 {
		t.Fatalf("%d rows, not %d", len(fieldCases)-1, rows)
	}
	known := map[string]bool{}
	for _, c := range rdmatest.Cases() {
		known[c.ID] = true
	}
	names := testNames(t)
	for i := 1; i <= rows; i++ {
		row := &fieldCases[i]
		if row.what == "" || len(row.inputs)+len(row.tests) == 0 {
			t.Errorf("case %d is not covered", i)
		}
		for _, id := range row.inputs {
			if !known[id] {
				t.Errorf("case %d (%s): there is no input %s", i, row.what, id)
			}
		}
		for _, name := range row.tests {
			if !names[name] {
				t.Errorf("case %d (%s): there is no test %s", i, row.what, name)
			}
		}
	}
}

// testNames finds the module's tests, as "package:TestName".
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(filepath.Clean(path))
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel("..", filepath.Dir(path))
		for line := range bytes.Lines(text) {
			if rest, is := bytes.CutPrefix(line, []byte("func Test")); is {
				name, _, _ := bytes.Cut(rest, []byte("("))
				names[pkg+":Test"+string(name)] = true
			}
		}
		return err
	})
	if err != nil || len(names) == 0 {
		t.Fatal(len(names), err)
	}
	return names
}
