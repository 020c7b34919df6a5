package collector

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/rdmatest"
)

var update = flag.Bool("update", false, "rewrite the golden pages")

// goldens are the trees whose pages are kept in testdata. Together they hold a
// device of every builder.
var goldens = map[string]func(*rdmatest.Tree){
	"none": func(t *rdmatest.Tree) { t.Dir("sys/class") },
	"mlx5": func(t *rdmatest.Tree) {
		t.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
		t.MLX5RoCE(rdmatest.Options{Ordinal: 1})
		t.MLX5VF(rdmatest.Options{Ordinal: 2})
		t.MLX5SF(rdmatest.Options{Ordinal: 3})
	},
	"mlx5-special": func(t *rdmatest.Tree) {
		t.MLX5Switchdev(rdmatest.Options{Ordinal: 1})
		t.Bond(rdmatest.Options{Ordinal: 2})
		t.MLX5XDR(rdmatest.Options{Name: "mlx5_9", Ordinal: 4})
		t.SMI(rdmatest.Options{Name: "smi1", Ordinal: 4})
		t.Compat(rdmatest.Options{Name: "mlx5_7", PCIAddress: "0001:18:00.0", Ordinal: 5})
		t.Down(t.MLX5IB(rdmatest.Options{Name: "mlx5_8", PCIAddress: "0001:3b:00.0", Ordinal: 6}), 1)
	},
	"others": func(t *rdmatest.Tree) {
		t.BNXT(rdmatest.Options{Ordinal: 1})
		t.IRDMA(rdmatest.Options{Ordinal: 2})
		t.EFA(rdmatest.Options{Ordinal: 3})
		t.MANA(rdmatest.Options{Ordinal: 4})
		t.ERDMA(rdmatest.Options{Ordinal: 5})
		t.MLX4(rdmatest.Options{Ordinal: 6})
		t.OldExt(rdmatest.Options{Name: "mthca0", PCIAddress: "0003:18:00.0", Ordinal: 7})
		t.QEDR(rdmatest.Options{Ordinal: 8})
	},
	// With RDMA netlink beside sysfs; the others are from sysfs alone.
	"netlink": func(t *rdmatest.Tree) {
		t.MLX5IB(rdmatest.Options{Name: "mlx5_0"})
		t.MLX5RoCE(rdmatest.Options{Ordinal: 1})
	},
	"irdma-gen3":  func(t *rdmatest.Tree) { t.IRDMAGen3(rdmatest.Options{}) },
	"hfi1":        func(t *rdmatest.Tree) { t.HFI1(rdmatest.Options{}) },
	"soft":        func(t *rdmatest.Tree) { t.RXE(rdmatest.Options{}); t.SIW(rdmatest.Options{Ordinal: 1}) },
	"multi-plane": func(t *rdmatest.Tree) { t.MultiPlane(rdmatest.Options{}) },
	"saturated": func(t *rdmatest.Tree) {
		for _, c := range rdmatest.Cases() {
			if c.ID == "saturated" {
				*t = *c.Scene().Tree
			}
		}
	},
	"no-pma": func(t *rdmatest.Tree) { t.LegacyI40IW(rdmatest.Options{}) },
}

// goldenTime is the clock of golden pages.
var goldenTime = time.Unix(1_800_000_000, 0)

// goldenPage returns the text page of a tree, with what time makes set to 0.
func goldenPage(t *testing.T, name string, build func(*rdmatest.Tree)) string {
	t.Helper()
	tree := rdmatest.New()
	build(tree)
	dir := tempTree(t)
	if err := tree.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	options := rdma.Options{Sysfs: filepath.Join(dir, "sys"), Descriptors: 1024}
	if name == "netlink" {
		netlink := tree.Netlink()
		monitor, stop := netlink.Monitor()
		t.Cleanup(stop)
		for counts, _ := monitor.Events(); counts["register"] < 2; counts, _ = monitor.Events() {
			time.Sleep(time.Millisecond)
		}
		options.Netlink, options.Monitor, options.NetlinkWait = netlink.Dial, monitor, time.Minute // a machine may stall
	}
	reader := rdma.NewReader(options)
	taker := snapshot.New(snapshot.Options{Deadline: time.Minute, Now: func() time.Time { return goldenTime }}).RDMA(reader, nil).Taker()
	defer taker.Close()
	h := newHandler(Config{Taker: taker, Enabled: []string{"rdma"}, Roles: noRoles{}})
	families, done, err := h.gather(t.Context(), []string{"rdma"})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	flatten(t, families)
	var b bytes.Buffer
	for _, mf := range families {
		if _, err := expfmt.MetricFamilyToText(&b, mf); err != nil {
			t.Fatal(err)
		}
	}
	return durations.ReplaceAllString(b.String(), "$1 0")
}

var durations = regexp.MustCompile(`(?m)^(gdr_[a-z_]*duration_seconds\{.*\}) .*$`)

func TestGolden(t *testing.T) {
	for name, build := range goldens {
		t.Run(name, func(t *testing.T) {
			got := goldenPage(t, name, build)
			path := filepath.Join("testdata", name+".metrics")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatalf("%v; go test ./collector -run TestGolden -update writes it", err)
			}
			if diff := firstDifference(string(want), got); diff != "" {
				t.Errorf("%s: %s", path, diff)
			}
		})
	}
}

func TestNoStaleGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if goldens[strings.TrimSuffix(filepath.Base(file), ".metrics")] == nil {
			t.Errorf("%s belongs to no tree", file)
		}
	}
}

func firstDifference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(a), len(b)) {
		switch {
		case i >= len(a):
			return "more lines: " + b[i]
		case i >= len(b):
			return "lines missing: " + a[i]
		case a[i] != b[i]:
			return "want " + a[i] + "\n      got  " + b[i]
		}
	}
	return ""
}

// goldenFamilies returns every family of the golden pages, with its type and
// label names.
func goldenFamilies(t *testing.T) map[string]shape {
	t.Helper()
	files, err := goldenFiles()
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	all := map[string]shape{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		addShapes(all, string(text))
	}
	return all
}

// shape is what a README table says of a family.
type shape struct {
	kind   string
	labels string // names, sorted, separated by spaces
}

var labelName = regexp.MustCompile(`([a-z_]+)="`)

func addShapes(all map[string]shape, page string) {
	kinds := map[string]string{}
	for line := range strings.Lines(page) {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[1] == "TYPE" {
			kinds[fields[2]] = fields[3]
		}
		if strings.HasPrefix(line, "#") || len(fields) < 2 {
			continue
		}
		name, _, _ := strings.Cut(fields[0], "{")
		var labels []string
		for _, match := range labelName.FindAllStringSubmatch(line, -1) {
			labels = append(labels, match[1])
		}
		sort.Strings(labels)
		if joined := strings.Join(labels, " "); len(joined) >= len(all[name].labels) {
			all[name] = shape{kinds[name], joined}
		}
	}
}

// goldenFiles are all golden pages, those of network interfaces and devlink too.
func goldenFiles() (files []string, err error) {
	for _, pattern := range []string{"testdata/*.metrics", "testdata/*/*.metrics"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	return files, nil
}
