package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/rdma/rdmatest"
)

var update = flag.Bool("update", false, "rewrite the golden tables")

// topologies are the trees whose tables are kept in testdata.
var topologies = map[string]func() *rdmatest.Tree{
	"hgx":          func() *rdmatest.Tree { return rdmatest.HGX(rdmatest.HGXOptions{}) },
	"hgx-acs":      func() *rdmatest.Tree { return rdmatest.HGX(rdmatest.HGXOptions{ACS: 0x1d, IOMMU: "DMA-FQ"}) },
	"unprivileged": func() *rdmatest.Tree { return rdmatest.HGX(rdmatest.HGXOptions{}).Unprivileged() },
	"pcie-server":  rdmatest.PCIeServer,
	"flat-vm":      rdmatest.FlatVM,
	"gpu-only":     rdmatest.GPUOnly,
	"rdma-only": func() *rdmatest.Tree {
		t := rdmatest.New()
		t.MLX5IB(rdmatest.Options{})
		return t
	},
	"soft": func() *rdmatest.Tree {
		t := rdmatest.GPUOnly()
		t.RXE(rdmatest.Options{})
		return t
	},
	"none": rdmatest.New,
}

func topologyOf(t *testing.T, tree *rdmatest.Tree) Topology {
	t.Helper()
	dir, err := rdmatest.MkdirTemp()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := tree.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	taker := snapshot.New(snapshot.Options{Deadline: time.Minute}).
		Affinity(affinity.NewReader(affinity.Options{Sysfs: filepath.Join(dir, "sys")})).Taker()
	defer taker.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	topology, err := NewTopology(taker.Take(ctx, func(string) bool { return true }).Affinity)
	if err != nil {
		t.Fatal(err)
	}
	return topology
}

func TestTopology(t *testing.T) {
	for name, build := range topologies {
		t.Run(name, func(t *testing.T) {
			topology := topologyOf(t, build())
			var table, asJSON bytes.Buffer
			if err := errors.Join(topology.WriteTable(&table), topology.WriteJSON(&asJSON)); err != nil {
				t.Fatal(err)
			}
			golden(t, "topo-"+name+".txt", table.Bytes())
			if name == "pcie-server" || name == "hgx-acs" || name == "none" {
				golden(t, "topo-"+name+".json", asJSON.Bytes())
			}
			var back Topology
			if err := json.Unmarshal(asJSON.Bytes(), &back); err != nil {
				t.Error(err)
			}
			if len(back.Pairs) != len(topology.Pairs) || len(back.GPUs) != len(topology.GPUs) {
				t.Error("JSON has not all pairs and GPUs")
			}
		})
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
		t.Fatalf("%v; go test ./collector/status -update writes it", err)
	}
	if !bytes.Equal(want, got) {
		t.Errorf("%s: want\n%s\ngot\n%s", path, want, got)
	}
}

func TestNoStaleTopology(t *testing.T) {
	files, err := filepath.Glob("testdata/topo-*")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		name := strings.TrimPrefix(filepath.Base(file), "topo-")
		if topologies[strings.TrimSuffix(name, filepath.Ext(name))] == nil {
			t.Errorf("%s belongs to no tree", file)
		}
	}
}

// TestUnknownIsNull: what could not be read is null in JSON and unknown in the
// table, never 0 or no.
func TestUnknownIsNull(t *testing.T) {
	part := &snapshot.AffinityPart{Listing: affinity.Listing{
		Functions: []affinity.Node{{Address: "0000:1b:00.0", Kind: affinity.KindGPU}, {Address: "0000:1c:00.0", Kind: affinity.KindNIC, RDMA: []string{"mlx5_0"}}},
		Pairs: []affinity.Pair{{
			GPU: "0000:1b:00.0", NIC: "0000:1c:00.0", Device: "mlx5_0", Distance: affinity.PIX, Common: "0000:1a:00.0", Nearest: true,
		}},
	}, Units: []snapshot.UnitPart[affinity.Function]{{Name: "0000:1b:00.0", StuckFor: time.Second}}}
	topology, err := NewTopology(part)
	if err != nil {
		t.Fatal(err)
	}
	var table, asJSON bytes.Buffer
	if err := errors.Join(topology.WriteTable(&table), topology.WriteJSON(&asJSON)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"bytes_per_second": null`, `"redirected": null`, `"numa_node": null`, `"link_width": null`, `"gpu_side": []`, `"role": "unknown"`, `"iommu": []`} {
		if !strings.Contains(asJSON.String(), want) {
			t.Errorf("JSON lacks %s: %s", want, asJSON.String())
		}
	}
	if n := strings.Count(table.String(), "unknown"); n < 4 {
		t.Errorf("the table says unknown %d times:\n%s", n, table.String())
	}
}

func TestUnlistable(t *testing.T) {
	if _, err := NewTopology(&snapshot.AffinityPart{Err: os.ErrPermission}); !errors.Is(err, os.ErrPermission) {
		t.Errorf("error %v", err)
	}
}
