package profile

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback/prober"
)

const siteFile = `
name: ours
gpus: 8
devices: 8
nvlinks: 18
direct_pairs: 16
port_gbps: 400
loopback_gbps: 380
ports:
  - {device: mlx5_0}
  - {device: mlx5_1, port: 2, gbps: 200}
`

func TestSite(t *testing.T) {
	site, err := Parse([]byte(siteFile))
	if err != nil {
		t.Fatal(err)
	}
	learned := &Learned{Ports: []LearnedPort{{Device: "mlx5_7", Port: 1}}, GPUs: 4}
	got := Merge(site, Embedded()[0], learned)
	want := Expectation{
		Name: "ours", Source: SourceFile,
		From: map[Field]Source{
			FieldGPUs: SourceFile, FieldDevices: SourceFile, FieldNVLinks: SourceFile, FieldDirectPairs: SourceFile,
			FieldPortRate: SourceFile, FieldLoopback: SourceFile, FieldPorts: SourceFile,
		},
		GPUs: sysread.Some(8), Devices: sysread.Some(8), NVLinks: sysread.Some(18), DirectPairs: sysread.Some(16),
		PortRate: sysread.Some(uint64(50e9)), Loopback: sysread.Some(47.5e9),
		Ports: map[prober.Port]sysread.Maybe[uint64]{{Device: "mlx5_0", Number: 1}: sysread.Some(uint64(50e9)), {Device: "mlx5_1", Number: 2}: sysread.Some(uint64(25e9))},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestOrder: a file counts before a platform, a platform before what was learned.
func TestOrder(t *testing.T) {
	site, err := Parse([]byte("learn: true\nnvlinks: 12"))
	if err != nil {
		t.Fatal(err)
	}
	eight, sixteen, gbps := Count(8), Count(16), 400.0
	platform := &Profile{Name: "p", Want: Want{GPUs: &eight, NVLinks: &sixteen, PortGbps: &gbps}}
	learned := &Learned{GPUs: 7, NVLinks: 18, Devices: 9, Ports: []LearnedPort{{Device: "a", Port: 1, Rate: 5}}}
	port := prober.Port{Device: "a", Number: 1}
	e := Merge(site, platform, learned)
	if e.NVLinks != sysread.Some(12) || e.GPUs != sysread.Some(8) || e.Devices != sysread.Some(9) || e.Ports[port] != sysread.Some(uint64(50e9)) || e.Source != SourceFile ||
		e.From[FieldNVLinks] != SourceFile || e.From[FieldGPUs] != SourceEmbedded || e.From[FieldPorts] != SourceLearned {
		t.Errorf("%+v", e)
	}
	site.Learn = false
	if e := Merge(site, platform, learned); e.GPUs.Known || e.Devices.Known || e.Ports != nil {
		t.Errorf("a file that does not say learn: %+v", e)
	}
	if e := Merge(nil, nil, learned); e.Source != SourceLearned || e.Ports[port] != sysread.Some(uint64(5)) || e.GPUs != sysread.Some(7) {
		t.Errorf("learned: %+v", e)
	}
	if e := Merge(nil, platform, nil); e.Source != SourceEmbedded || e.Name != "p" || e.Ports != nil {
		t.Errorf("embedded: %+v", e)
	}
	if e := Merge(nil, nil, &Learned{}); e.Source != SourceNone || len(e.From) != 0 {
		t.Errorf("none: %+v", e)
	}
}

func TestBadSites(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "nothing in it",
		"# nothing":                       "nothing in it",
		"gpu: 8":                          "field gpu not found",
		"gpus: eight":                     "cannot unmarshal",
		"gpus: -1":                        "gpus: -1 is not",
		"gpus: 5000":                      "gpus: 5000 is not",
		"nvlinks: 1.5":                    "no whole number",
		"gpus: .nan":                      "no whole number",
		"gpus: 1e300":                     "no whole number",
		"gpus: '8'":                       "cannot unmarshal",
		"port_gbps: .nan":                 "port_gbps",
		"port_gbps: .inf":                 "port_gbps",
		"loopback_gbps: 0":                "loopback_gbps",
		"gpus: 8\ngpus: 8":                "already set",
		"gpus: 8\n---\ngpus: 8":           "more than one document",
		"ports: [{port: 1}]":              "one has no device",
		"ports: [{device: a/b}]":          "no name of a device",
		"ports: [{device: a, port: 300}]": "no port of a",
		"ports: [{device: a}, {device: a, port: 1}]": "there twice",
		"ports: [{device: a, gbps: -3}]":             "gbps of a",
		"{":                                          "did not find",
		"a: &a [*a]":                                 "",
	} {
		_, err := Parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.ContainsAny(err.Error(), "\n") || strings.Contains(err.Error(), "profile.") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "site.yaml")
	if err := os.WriteFile(path, []byte("gpus: 8\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if site, err := Load(path); err != nil || site.Name != "site.yaml" || *site.GPUs != 8 {
		t.Errorf("%+v, %v", site, err)
	}
	if err := os.WriteFile(path+"2", []byte("#"+strings.Repeat(" ", maxFile)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{dir: "no regular file", path + "2": "longer than", path + "3": "no such file or directory"} {
		if _, err := Load(path); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func FuzzSite(f *testing.F) {
	f.Add([]byte(siteFile))
	f.Add([]byte("learn: true"))
	f.Add([]byte("a: &a [*a, *a]\nb: *a"))
	f.Fuzz(func(t *testing.T, text []byte) {
		site, err := Parse(text)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r\x1b") || len(err.Error()) > 400 {
				t.Errorf("an error that is no line: %q", err)
			}
			return
		}
		e := Merge(site, nil, nil)
		if len(e.Ports) != len(site.Ports) || e.Source != SourceFile || e.GPUs.Known && e.GPUs.Value < 1 {
			t.Errorf("%+v", e)
		}
	})
}
