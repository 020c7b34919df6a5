package chart

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestLint is helm lint: an icon is the only thing it may miss.
func TestLint(t *testing.T) {
	eachCase(t, func(t *testing.T, _, values string) {
		linter := lint.RunAll(Folder, parse(t, values), "monitoring", lint.WithKubeVersion(&common.DefaultCapabilities.KubeVersion))
		for _, message := range linter.Messages {
			if message.Severity > support.InfoSev {
				t.Errorf("%v", message)
			}
		}
	})
}

// TestDecodes decodes all objects of all cases strictly, and looks at what
// holds for each.
func TestDecodes(t *testing.T) {
	eachCase(t, func(t *testing.T, name, values string) {
		objects, notes := render(t, values)
		if len(objects) < 1 {
			t.Fatal("no objects")
		}
		if strings.Contains(notes, "<no value>") || strings.TrimSpace(notes) == "" {
			t.Errorf("notes:\n%s", notes)
		}
		set := daemonSet(t, objects)
		pod := set.Spec.Template.Spec
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
			t.Error("the service account's token is mounted")
		}
		container := pod.Containers[0]
		if container.Resources.Limits.Memory().IsZero() {
			t.Error("no memory limit")
		}
		for _, resources := range []core.ResourceList{container.Resources.Limits, container.Resources.Requests} {
			for resource := range resources {
				if strings.Contains(string(resource), "/") {
					t.Errorf("takes %s from jobs", resource)
				}
			}
		}
		if !slices.Contains(container.Args, "--probe.isolation=process") {
			t.Errorf("a measurement may take the exporter with it: %q", container.Args)
		}
		checkVolumes(t, pod)
		for key, value := range set.Spec.Selector.MatchLabels {
			if set.Spec.Template.Labels[key] != value {
				t.Errorf("selector %s=%s does not match the pods' labels", key, value)
			}
		}
	})
}

// checkVolumes: every mount has its volume and the reverse.
func checkVolumes(t *testing.T, pod core.PodSpec) {
	t.Helper()
	volumes := map[string]bool{}
	for _, volume := range pod.Volumes {
		volumes[volume.Name] = true
	}
	paths := map[string]bool{}
	for _, mount := range pod.Containers[0].VolumeMounts {
		if !volumes[mount.Name] {
			t.Errorf("mount %s has no volume", mount.Name)
		}
		if paths[mount.MountPath] {
			t.Errorf("two mounts at %s", mount.MountPath)
		}
		paths[mount.MountPath] = true
		delete(volumes, mount.Name)
	}
	for name := range volumes {
		t.Errorf("volume %s is not mounted", name)
	}
}

// TestStrict: the decoder of these tests sees a mistyped field, and one twice.
func TestStrict(t *testing.T) {
	for _, text := range []string{
		"apiVersion: apps/v1\nkind: DaemonSet\nspec: {template: {spec: {hostNetwrok: true}}}",
		"apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\ndata: {a: c}",
		"apiVersion: v1\nkind: Pod",
	} {
		if _, err := decode(text); err == nil {
			t.Errorf("accepted: %s", text)
		}
	}
}

// TestRules: all alerts of the files are in the PrometheusRules, but those
// left out, and lead to the runbooks that the values name.
func TestRules(t *testing.T) {
	files, err := filepath.Glob(Folder + "/files/rules/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no rules: %v", err)
	}
	objects, _ := render(t, "prometheusRule: {enabled: true, exclude: [GDRExporterDown], runbookURL: 'https://r.example.com/'}")
	rules := of[*monitoring.PrometheusRule](objects)
	if len(rules) != len(files) {
		t.Errorf("%d PrometheusRules of %d files", len(rules), len(files))
	}
	alerts, records := 0, 0
	for _, rule := range rules {
		for _, group := range rule.Spec.Groups {
			for _, r := range group.Rules {
				switch {
				case r.Record != "":
					records++
				case r.Alert == "GDRExporterDown":
					t.Error("an excluded alert is there")
				case r.Annotations["runbook_url"] != "https://r.example.com/"+r.Alert:
					t.Errorf("%s: runbook %s", r.Alert, r.Annotations["runbook_url"])
				default:
					alerts++
				}
			}
		}
	}
	wantAlerts, wantRecords := countRules(t)
	if alerts != wantAlerts-1 || records != wantRecords {
		t.Errorf("%d alerts and %d records, want %d and %d", alerts, records, wantAlerts-1, wantRecords)
	}
}

func countRules(t *testing.T) (alerts, records int) {
	t.Helper()
	for _, file := range load(t).Files {
		if !strings.HasPrefix(file.Name, "files/rules/") {
			continue
		}
		var spec monitoring.PrometheusRuleSpec
		if err := yaml.UnmarshalStrict(file.Data, &spec); err != nil {
			t.Fatalf("%s: %v", file.Name, err)
		}
		for _, group := range spec.Groups {
			for _, rule := range group.Rules {
				if rule.Alert != "" {
					alerts++
				} else {
					records++
				}
			}
		}
	}
	return alerts, records
}

// TestDashboards gives the chart a dashboard whose text Helm must not touch.
func TestDashboards(t *testing.T) {
	const text = "{\n  \"title\": \"{{ not for Helm }}\",\n  \"legend\": \"{{device}}\"\n}\n"
	loaded := load(t)
	loaded.Files = slices.DeleteFunc(loaded.Files, func(f *common.File) bool { return strings.HasPrefix(f.Name, "files/dashboards/") })
	if _, err := Render(loaded, Release{"g", "m"}, parse(t, "dashboards: {enabled: true}")); err == nil {
		t.Error("without dashboards there is no error")
	}
	loaded.Files = append(loaded.Files, &common.File{Name: "files/dashboards/gdr-node.json", Data: []byte(text)})
	rendered, err := Render(loaded, Release{"gdr-exporter", "m"}, parse(t, "dashboards: {enabled: true, annotations: {folder: GDR}}"))
	if err != nil {
		t.Fatal(err)
	}
	maps := of[*core.ConfigMap](decodeAll(t, rendered.Objects))
	if len(maps) != 1 || maps[0].Name != "gdr-exporter-dashboard-node" || maps[0].Labels["grafana_dashboard"] != "1" || maps[0].Annotations["folder"] != "GDR" {
		t.Fatalf("%+v", maps)
	}
	var want, got any
	if json.Unmarshal([]byte(text), &want) != nil || json.Unmarshal([]byte(maps[0].Data["gdr-node.json"]), &got) != nil {
		t.Fatal("not JSON")
	}
	if strings.TrimSpace(maps[0].Data["gdr-node.json"]) != strings.TrimSpace(text) {
		t.Errorf("changed: %s", maps[0].Data["gdr-node.json"])
	}
}

// TestSize: Helm keeps chart and objects of a release in one Secret, of 1 MiB at
// most, and so does a dashboard's ConfigMap.
func TestSize(t *testing.T) {
	const most, mostObject = 768 << 10, 900 << 10
	loaded := load(t)
	values := parse(t, "monitor: {enabled: true}\nprometheusRule: {enabled: true}")
	if slices.ContainsFunc(loaded.Files, func(f *common.File) bool { return strings.HasPrefix(f.Name, "files/dashboards/") }) {
		values["dashboards"] = map[string]any{"enabled": true}
	}
	rendered, err := Render(loaded, Release{"g", "m"}, values)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range rendered.Objects {
		if len(object) > mostObject {
			t.Errorf("an object of %d bytes: %.200s", len(object), object)
		}
	}
	var kept bytes.Buffer
	out := gzip.NewWriter(&kept)
	if err := json.NewEncoder(out).Encode(struct {
		Chart    any
		Manifest []string
	}{loaded, rendered.Objects}); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	if size := kept.Len() * 4 / 3; size > most {
		t.Errorf("a release is %d bytes, of 1 MiB", size)
	}
}
