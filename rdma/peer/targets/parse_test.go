package targets

import (
	"fmt"
	"strings"
	"testing"
)

const exampleYAML = `# the same as the JSON below
- targets: [node1, 'node2:7']
  labels: {cluster: a, rail_0: mlx5_0, __meta_rack: 12}
- targets: ["10.0.0.1"]
- targets: []
`

const exampleJSON = `[
  {"targets": ["node1", "node2:7"], "labels": {"cluster": "a", "rail_0": "mlx5_0", "__meta_rack": "12"}},
  {"targets": ["10.0.0.1"]},
  {"targets": []}
]`

func TestParse(t *testing.T) {
	for name, text := range map[string]string{"peers.yml": exampleYAML, "peers.yaml": exampleJSON, "peers.json": exampleJSON} {
		all, err := Parse(name, []byte(text), Ports{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := fmt.Sprint(addresses(NewList(all, Self{}))); got != "[10.0.0.1:10480 node1:10480 node2:7]" {
			t.Errorf("%s: %s", name, got)
		}
		if all[1].Labels["__meta_rack"] != "12" || all[1].Rail("mlx5_0", 1) != "0" || all[1].Source != name || all[2].Labels != nil {
			t.Errorf("%s: %+v", name, all)
		}
	}
}

func TestParsePorts(t *testing.T) {
	for _, c := range []struct {
		ports Ports
		want  string
	}{
		{Ports{Default: 5}, "[10.0.0.1:5 node1:5 node2:7]"},
		{Ports{Always: 9}, "[10.0.0.1:9 node1:9 node2:9]"},
	} {
		all, err := Parse("peers.yml", []byte(exampleYAML), c.ports)
		if got := fmt.Sprint(addresses(NewList(all, Self{}))); err != nil || got != c.want {
			t.Errorf("%+v: %s, %v", c.ports, got, err)
		}
	}
}

// TestParseRefuses: one clear line says where the mistake is.
func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a.yml", "", "nothing in it"},
		{"a.json", "", "nothing in it"},
		{"a.yml", "# only a comment\n", "nothing in it"},
		{"a.json", "null", "nothing in it"},
		{"a.yml", "null", "nothing in it"},
		{"a.yml", "- null", "group 1 is empty"},
		{"a.json", `[{"targets":["a"]},null]`, "group 2 is empty"},
		{"a.yml", "- targets: [node1, 'a b']", `group 1, target 2 ("a b"): it is no host name`},
		{"a.json", `[{"targets":[]},{"targets":["http://node1:10479"]}]`, `group 2, target 1 ("http://node1:10479"): host and port are wanted`},
		{"a.yml", "- targets: [node1, null]", `group 1, target 2 (""): it is empty`},
		{"a.yml", "- targets: [10.0.0.256]", "neither an address nor a host name"},
		{"a.yml", "- target: [node1]", "line 1: field target not found"},
		{"a.json", `[{"target":["node1"]}]`, `unknown field "target"`},
		{"a.json", `[{"targets":["node1"`, "byte"},
		{"a.json", `[{"targets":[1]}]`, "cannot unmarshal number"},
		{"a.json", `[] []`, "behind the list"},
		{"a.json", `[]x`, "behind the list"},
		{"a.yml", "[]\n---\n[]\n", "more than one document"},
		{"a.yml", "targets: [a]", "line 1: cannot unmarshal !!map"},
		{"a.yml", "- targets: [a\n", "line 1"},
		{"a.yml", "- targets: [a]\n  labels: {a-b: c}", `group 1: "a-b" is no name of a label`},
		{"a.yml", "- targets: [a]\n  labels: {1: c}", `"1" is no name of a label`},
		{"a.yml", "- targets: [a]\n  labels: {a: " + strings.Repeat("x", 1025) + "}", "longer than 1024 bytes"},
		{"a.yml", "- targets: [" + strings.Repeat("x", 3000) + "]", "longer than a name can be"},
		{"a.yml", "\xff\xfe", ""},
	} {
		all, err := Parse(c.name, []byte(c.text), Ports{})
		if err == nil || all != nil {
			t.Errorf("%.60q: %v", c.text, all)
			continue
		}
		if text := err.Error(); !strings.Contains(text, c.want) || strings.Contains(text, "\n") || len(text) > 300 || strings.Contains(text, "[]*") {
			t.Errorf("%.60q: %s", c.text, text)
		}
	}
	list := `[{"targets":[` + strings.Repeat(`"a",`, maxEntries) + `"a"]}]`
	if _, err := Parse("a.json", []byte(list), Ports{}); err == nil || !strings.Contains(err.Error(), "group 1: more than 262144 targets") {
		t.Errorf("%d targets: %v", maxEntries+1, err)
	}
	// YAML that says the same thing over and over.
	list = "- &a {targets: [" + strings.Repeat("a,", 1000) + "]}\n" + strings.Repeat("- *a\n", 3000)
	if _, err := Parse("a.yml", []byte(list), Ports{}); err == nil {
		t.Errorf("3,000,000 targets in %d bytes are taken", len(list))
	}
	var many strings.Builder
	many.WriteString("- targets: [a]\n  labels:\n")
	for i := range maxLabels + 1 {
		fmt.Fprintf(&many, "    l%d: x\n", i)
	}
	if _, err := Parse("a.yml", []byte(many.String()), Ports{}); err == nil {
		t.Errorf("%d labels are taken", maxLabels+1)
	}
}

// TestCutShort: a JSON file cut off anywhere is refused; in YAML only where the rest
// would be a list too, which is why a file must rest before it is read.
func TestCutShort(t *testing.T) {
	for end := range len(exampleJSON) {
		if all, err := Parse("a.json", []byte(exampleJSON[:end]), Ports{}); err == nil {
			t.Errorf("%q: %v", exampleJSON[:end], all)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(exampleYAML, false)
	f.Add(exampleJSON, true)
	f.Add("- &a {targets: [x], labels: {b: c}}\n- *a\n", false)
	f.Add("- targets: !!binary aGk=\n", false)
	f.Fuzz(func(t *testing.T, text string, isJSON bool) {
		name := "a.yml"
		if isJSON {
			name = "a.json"
		}
		all, err := Parse(name, []byte(text), Ports{})
		if err != nil {
			if all != nil || strings.ContainsAny(err.Error(), "\n\r\x00") || len(err.Error()) > 2500 {
				t.Errorf("%q: %v, %q", text, all, err)
			}
			return
		}
		for _, target := range NewList(all, Self{}).Targets() {
			if again, err := ParseAddress(target.Address(), 1); err != nil || again.Address() != target.Address() {
				t.Errorf("%q: %s reads as %s, %v", text, target.Address(), again.Address(), err)
			}
		}
	})
}
