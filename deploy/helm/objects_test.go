package chart

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	v2 "helm.sh/helm/v4/pkg/chart/v2"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// kinds are the objects that the chart may make: any other is a mistake.
var kinds = map[string]func() any{
	"apps/v1 DaemonSet":                       func() any { return &apps.DaemonSet{} },
	"v1 ConfigMap":                            func() any { return &core.ConfigMap{} },
	"v1 Namespace":                            func() any { return &core.Namespace{} },
	"v1 Secret":                               func() any { return &core.Secret{} },
	"v1 Service":                              func() any { return &core.Service{} },
	"v1 ServiceAccount":                       func() any { return &core.ServiceAccount{} },
	"monitoring.coreos.com/v1 PodMonitor":     func() any { return &monitoring.PodMonitor{} },
	"monitoring.coreos.com/v1 ServiceMonitor": func() any { return &monitoring.ServiceMonitor{} },
	"monitoring.coreos.com/v1 PrometheusRule": func() any { return &monitoring.PrometheusRule{} },
}

// decode takes an object strictly: a field that its type does not have, or one
// that is there twice, is an error, which the API server would drop silently.
func decode(text string) (any, error) {
	var meta struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal([]byte(text), &meta); err != nil {
		return nil, err
	}
	kind := meta.APIVersion + " " + meta.Kind
	makeOne, known := kinds[kind]
	if !known {
		return nil, fmt.Errorf("unexpected kind %q", kind)
	}
	object := makeOne()
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	return object, nil
}

func load(t *testing.T) *v2.Chart {
	t.Helper()
	loaded, err := Load(".")
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

// parse reads values as --set-file would.
func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	values := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// render returns the decoded objects and the notes.
func render(t *testing.T, values string) ([]any, string) {
	t.Helper()
	rendered, err := Render(load(t), Release{"gdr-exporter", "monitoring"}, parse(t, values))
	if err != nil {
		t.Fatal(err)
	}
	return decodeAll(t, rendered.Objects), rendered.Notes
}

func decodeAll(t *testing.T, texts []string) []any {
	t.Helper()
	var objects []any
	for _, text := range texts {
		object, err := decode(text)
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		objects = append(objects, object)
	}
	return objects
}

// of are the objects of one type.
func of[T any](objects []any) []T {
	var found []T
	for _, object := range objects {
		if typed, is := object.(T); is {
			found = append(found, typed)
		}
	}
	return found
}

// daemonSet is the first one.
func daemonSet(t *testing.T, objects []any) *apps.DaemonSet {
	t.Helper()
	found := of[*apps.DaemonSet](objects)
	if len(found) == 0 {
		t.Fatal("no DaemonSet")
	}
	return found[0]
}

// cases are the files in ci, by name.
func cases(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(Folder + "/ci/*-values.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in ci: %v", err)
	}
	found := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimSuffix(filepath.Base(file), "-values.yaml")] = string(text)
	}
	return found
}

// eachCase runs a test for every file in ci.
func eachCase(t *testing.T, run func(t *testing.T, name, values string)) {
	t.Helper()
	all := cases(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) { run(t, name, all[name]) })
	}
}
