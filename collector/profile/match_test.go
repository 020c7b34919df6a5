package profile

import (
	"strings"
	"testing"

	"gdr_exporter/collector/sysread"
)

// node returns the facts of a machine with GPUs of one model.
func node(vendor, product, model string, gpus int, virtual bool) *Facts {
	f := &Facts{GPUs: sysread.Some(gpus), Virtual: sysread.Some(virtual)}
	if vendor != "" {
		f.Vendor, f.Product = sysread.Some(vendor), sysread.Some(product)
	}
	if model != "" {
		f.Models = sysread.Some([]string{model})
	}
	return f
}

// Names as NVML gives them.
const (
	a100 = "NVIDIA A100-SXM4-80GB"
	h100 = "NVIDIA H100 80GB HBM3"
	h200 = "NVIDIA H200"
	b200 = "NVIDIA B200"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		name string
		node *Facts
		want string
	}{
		{"DGX A100", node("NVIDIA", "DGXA100 920-23687-2531-001", a100, 8, false), "dgx-a100"},
		{"DGX H100", node("NVIDIA", "DGXH100", h100, 8, false), "dgx-h100"},
		{"DGX H200", node("NVIDIA", "DGX H200", h200, 8, false), "dgx-h200"},
		{"DGX B200", node("NVIDIA", "DGXB200", b200, 8, false), "dgx-b200"},
		{"DGX H100 that has lost one GPU", node("NVIDIA", "DGXH100", h100, 7, false), "dgx-h100"},
		{"DGX H100 with half its GPUs", node("NVIDIA", "DGXH100", h100, 4, false), ""},
		{"DGX H100 with other GPUs", node("NVIDIA", "DGXH100", "NVIDIA L40S", 8, false), ""},
		{"HGX H100", node("Dell Inc.", "PowerEdge XE9680", h100, 8, false), "hgx-h100"},
		{"a board of four", node("Dell Inc.", "PowerEdge XE8640", h100, 4, false), ""},
		{"more GPUs than there can be", node("Somebody", "X", h100, 16, false), ""},
		{"an unknown machine without DMI", node("", "", h200, 8, false), "hgx-h200"},
		{"a virtual machine of somebody", node("QEMU", "Standard PC (Q35 + ICH9, 2009)", h100, 8, true), ""},
		{"H100 NVL", node("Somebody", "X", "NVIDIA H100 NVL", 8, false), ""},
		{"A100 PCIe", node("Somebody", "X", "NVIDIA A100-PCIE-40GB", 8, false), ""},
		{"export models", node("Somebody", "X", "NVIDIA H800", 8, false), ""},
		{"GB200", node("NVIDIA", "GB200 NVL", "NVIDIA GB200", 4, false), "gb200-tray"},
		{"Azure ND A100 v4", node("Microsoft Corporation", "Virtual Machine", a100, 8, true), "azure-nd-a100-v4"},
		{"Azure ND H100 v5", node("Microsoft Corporation", "Virtual Machine", h100, 8, true), "azure-nd-h100-v5"},
		{"Azure NC H100", node("Microsoft Corporation", "Virtual Machine", "NVIDIA H100 NVL", 2, true), ""},
		{"AWS p4d", node("Amazon EC2", "p4d.24xlarge", "NVIDIA A100-SXM4-40GB", 8, true), "aws-p4d"},
		{"AWS p5", node("Amazon EC2", "p5.48xlarge", h100, 8, true), "aws-p5"},
		{"AWS p5en", node("Amazon EC2", "p5en.48xlarge", h200, 8, true), "aws-p5en"},
		{"AWS p5 with one GPU", node("Amazon EC2", "p5.4xlarge", h100, 1, true), ""},
		{"GCP a3-mega", node("Google", "Google Compute Engine", h100, 8, true), "gcp-a3-high-or-mega"},
		{"GCP a3-highgpu-4g", node("Google", "Google Compute Engine", h100, 4, true), ""},
		{"GCP a3-ultra", node("Google", "Google Compute Engine", h200, 8, true), "gcp-a3-ultra"},
		{"no GPU", node("NVIDIA", "DGXH100", "", 0, false), ""},
	} {
		got := nameOf(Match(Embedded(), c.node, ""))
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestMatchStays: the profile stays while the driver or the bus says less.
func TestMatchStays(t *testing.T) {
	silent := node("NVIDIA", "DGXH100", "", 8, false)
	silent.Virtual = sysread.Maybe[bool]{}
	for name, c := range map[string]struct {
		node   *Facts
		before string
		want   string
	}{
		"no names, none before":        {silent, "", ""},
		"no names":                     {silent, "dgx-h100", "dgx-h100"},
		"two GPUs of eight":            {node("NVIDIA", "DGXH100", h100, 2, false), "dgx-h100", "dgx-h100"},
		"other GPUs":                   {node("NVIDIA", "DGXH100", h200, 8, false), "dgx-h100", "hgx-h200"},
		"another machine":              {node("NVIDIA", "DGXB200", b200, 8, false), "dgx-h100", "dgx-b200"},
		"nothing known at all":         {&Facts{}, "dgx-h100", "dgx-h100"},
		"nothing known of a board":     {&Facts{}, "hgx-h100", "hgx-h100"},
		"a name that is not there now": {&Facts{}, "vanished", ""},
	} {
		if got := nameOf(Match(Embedded(), c.node, c.before)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestAmbiguous(t *testing.T) {
	profiles, err := parseProfiles([]byte("profiles: [{name: a, match: {gpu: '.*'}}, {name: b, match: {gpu: 'NVIDIA.*'}}]"))
	if err != nil {
		t.Fatal(err)
	}
	if p := Match(profiles, node("", "", h100, 8, false), ""); p != nil {
		t.Errorf("matches %s", p.Name)
	}
}

// TestEmbedded: every number has a source, and every name is there once.
func TestEmbedded(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Embedded() {
		if p.Name == "" || seen[p.Name] || p.Match.GPU == "" {
			t.Errorf("profile %q", p.Name)
		}
		seen[p.Name] = true
		for field, source := range p.Sources {
			if len(source) < 10 || strings.Contains(source, "TODO") {
				t.Errorf("%s: source of %s: %q", p.Name, field, source)
			}
		}
	}
	if len(seen) < 15 {
		t.Errorf("%d profiles", len(seen))
	}
	for text, want := range map[string]string{
		"profiles: [{name: a, gpus: 8}]":                          "no source of gpus",
		"profiles: [{name: a, match: {product: '('}}]":            "missing closing )",
		"profiles: [{name: a, match: {board: x}}]":                "field board not found",
		"profiles: [{name: a, gpus: 0, sources: {gpus: nobody}}]": "0 is not from 1",
		"profiles: [null]":                                        "nothing in it",
	} {
		if _, err := parseProfiles([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
