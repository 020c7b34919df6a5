package chart

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// same fails if a generated file is not what it would be now.
func same(t *testing.T, file File) {
	t.Helper()
	got, err := os.ReadFile(file.Path)
	if err != nil {
		t.Errorf("%v: run make chart", err)
		return
	}
	if !bytes.Equal(got, file.Content) {
		t.Errorf("%s is not up to date: run make chart", file.Path)
	}
}

func TestCopies(t *testing.T) {
	files, missing, err := Copies(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		same(t, file)
	}
	stale, err := Stale(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range stale {
		t.Errorf("%s has no original any more: run make chart", file)
	}
	if len(missing) > 0 {
		t.Skipf("no originals to compare with in %s", strings.Join(missing, ", "))
	}
}

func TestReadmeTable(t *testing.T) {
	file, err := Readme(".")
	if err != nil {
		t.Fatal(err)
	}
	same(t, file)
}

func TestManifests(t *testing.T) {
	files, err := Manifests(".")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, file := range files {
		names[filepath.Clean(file.Path)] = true
		same(t, file)
		text := string(file.Content)
		if strings.Contains(text, "Helm\n") || strings.Contains(text, "helm.sh/") {
			t.Errorf("%s says that Helm looks after it", file.Path)
		}
		_, documents, _ := strings.Cut(text, "\n")
		objects := decodeAll(t, split(documents))
		if _, monitoring := strings.CutSuffix(file.Path, "monitoring.yaml"); !monitoring {
			daemonSet(t, objects)
			if spaces := of[*core.Namespace](objects); len(spaces) != 1 || spaces[0].Labels["pod-security.kubernetes.io/enforce"] != "privileged" {
				t.Errorf("%s: namespace %+v", file.Path, spaces)
			}
		}
	}
	there, err := filepath.Glob(manifestsFolder + "/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range there {
		if !names[filepath.Clean(file)] {
			t.Errorf("%s is not generated", file)
		}
	}
}

// TestSchema: every value is in the schema, and the reverse, so that no value
// is accepted that does nothing.
func TestSchema(t *testing.T) {
	var schema map[string]any
	text, err := os.ReadFile(Folder + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if text, err = os.ReadFile(valuesFile); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		t.Fatal(err)
	}
	compare(t, "", schema, values)
}

// compare goes down as far as values do: what is empty by default has a
// structure of its own.
func compare(t *testing.T, path string, schema map[string]any, values map[string]any) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	if schema["additionalProperties"] != false {
		t.Errorf("%s: the schema takes any name", path)
	}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if _, there := values[name]; !there && name != "global" { // Helm's own
			t.Errorf("%s%s is in the schema and not in values.yaml", path, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		property, there := properties[name].(map[string]any)
		if !there {
			t.Errorf("%s%s is in values.yaml and not in the schema", path, name)
			continue
		}
		below, structured := values[name].(map[string]any)
		if _, fixed := property["properties"]; structured && fixed && len(below) > 0 && !partial[path+name] {
			compare(t, path+name+".", property, below)
		}
	}
}

// partial are values whose defaults set only some of what is accepted.
var partial = map[string]bool{"livenessProbe": true, "readinessProbe": true, "updateStrategy": true}

// TestValuesAreUsed: a value that no template reads does nothing.
func TestValuesAreUsed(t *testing.T) {
	text, err := os.ReadFile(valuesFile)
	if err != nil {
		t.Fatal(err)
	}
	values, err := Values(text)
	if err != nil {
		t.Fatal(err)
	}
	var templates strings.Builder
	for _, file := range load(t).Templates {
		templates.Write(file.Data)
	}
	for _, value := range values {
		last := value.Path[strings.LastIndex(value.Path, ".")+1:]
		if !strings.Contains(templates.String(), "."+last) {
			t.Errorf("no template reads %s", value.Path)
		}
		if len(value.About) < 5 {
			t.Errorf("%s is not explained: %q", value.Path, value.About)
		}
	}
}
