package chart

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// What the chart ships copies of: Helm reads nothing outside of a chart.
var copies = []struct{ from, pattern, to string }{
	{"../prometheus/rules", "*.yaml", Folder + "/files/rules"},
	{"../../dashboards", "*.json", Folder + "/files/dashboards"},
}

// File is a generated file, its path below the folder of this package.
type File struct {
	Path    string
	Content []byte
}

// Copies are the rules and dashboards for the chart. missing names folders
// that are not there, whose copies are left as they are.
func Copies(root string) (files []File, missing []string, err error) {
	for _, c := range copies {
		originals, err := filepath.Glob(filepath.Join(root, c.from, c.pattern))
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", c.from, err)
		}
		if len(originals) == 0 {
			missing = append(missing, c.from)
		}
		for _, original := range originals {
			content, err := os.ReadFile(original)
			if err != nil {
				return nil, nil, fmt.Errorf("original of a file of the chart: %w", err)
			}
			files = append(files, File{filepath.Join(c.to, filepath.Base(original)), content})
		}
	}
	return files, missing, nil
}

// Stale are copies below root whose original is gone, of the folders that are
// there.
func Stale(root string) ([]string, error) {
	var stale []string
	for _, c := range copies {
		if _, err := os.Stat(filepath.Join(root, c.from)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		kept, err := filepath.Glob(filepath.Join(root, c.to, c.pattern))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.to, err)
		}
		for _, file := range kept {
			if _, err := os.Stat(filepath.Join(root, c.from, filepath.Base(file))); errors.Is(err, fs.ErrNotExist) {
				stale = append(stale, file)
			}
		}
	}
	return stale, nil
}

// manifestsFolder has the plain manifests.
const manifestsFolder = "../kubernetes"

// manifests are the plain manifests: a namespace that allows what a mode
// needs, and what the chart makes of a few values.
var manifests = []struct {
	name, about string
	namespace   bool
	values      map[string]any
	keep        func(object string) bool
}{
	{"privileged.yaml", "everything works", true, map[string]any{"mode": "privileged"}, all},
	{"nvidia-runtime.yaml", "devices by NVIDIA's container toolkit, the capability IPC_LOCK alone", true, map[string]any{"mode": "nvidia-runtime"}, all},
	{"metrics-only.yaml", "no devices, no capabilities, nothing is measured", true, map[string]any{"mode": "metrics-only"}, all},
	{"monitoring.yaml", "PodMonitor, alerts and recording rules for the Prometheus operator", false,
		map[string]any{"monitor": map[string]any{"enabled": true}, "prometheusRule": map[string]any{"enabled": true}}, forOperator},
}

func all(string) bool { return true }

// inOrder puts DaemonSets last: their pods need the other objects, and kubectl
// makes objects in a file's order.
func inOrder(objects []string) []string {
	isDaemonSet := func(object string) int {
		if strings.HasPrefix(object, "apiVersion: apps/v1\nkind: DaemonSet\n") {
			return 1
		}
		return 0
	}
	sorted := slices.Clone(objects)
	slices.SortStableFunc(sorted, func(a, b string) int { return isDaemonSet(a) - isDaemonSet(b) })
	return sorted
}

func forOperator(object string) bool {
	return strings.HasPrefix(object, "apiVersion: monitoring.coreos.com/")
}

// helmsOwn are labels that say what Helm looks after.
var helmsOwn = regexp.MustCompile(`(?m)^ +(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n`)

const namespaceManifest = `apiVersion: v1
kind: Namespace
metadata:
  name: gdr-exporter
  labels:
    # The exporter needs the node's network and folders in every mode.
    pod-security.kubernetes.io/enforce: privileged
`

// Manifests are the plain manifests, made from the chart below root.
func Manifests(root string) ([]File, error) {
	loaded, err := Load(root)
	if err != nil {
		return nil, err
	}
	var files []File
	for _, m := range manifests {
		rendered, err := Render(loaded, Release{"gdr-exporter", "gdr-exporter"}, m.values)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		var documents []string
		if m.namespace {
			documents = append(documents, namespaceManifest)
		}
		for _, object := range inOrder(rendered.Objects) {
			if m.keep(object) {
				documents = append(documents, helmsOwn.ReplaceAllString(object, ""))
			}
		}
		text := fmt.Sprintf("# gdr_exporter: %s. Generated from the chart deploy/helm/gdr-exporter: change that, then \"make chart\".\n---\n%s",
			m.about, strings.Join(documents, "---\n"))
		files = append(files, File{filepath.Join(manifestsFolder, m.name), []byte(text)})
	}
	return files, nil
}
