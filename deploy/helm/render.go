// Package chart renders the chart gdr-exporter with Helm's own packages, and
// makes what is generated from or for it: the chart's copies of rules and
// dashboards, the table of values in its README, and the plain manifests.
package chart

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	v2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
)

// Folder is the chart's, below this one.
const Folder = "gdr-exporter"

// Release names what a chart is installed as.
type Release struct {
	Name, Namespace string
}

// Rendered is what a chart comes to: objects as YAML, and what is told to the
// one who installs it.
type Rendered struct {
	Objects []string
	Notes   string
}

// Load reads the chart below root, the folder of this package.
func Load(root string) (*v2.Chart, error) {
	loaded, err := loader.Load(path.Join(root, Folder))
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", Folder, err)
	}
	return loaded, nil
}

// Render is helm template: values are checked against the schema, then come
// the chart's own checks.
func Render(chart *v2.Chart, release Release, values map[string]any) (*Rendered, error) {
	options := common.ReleaseOptions{Name: release.Name, Namespace: release.Namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, values, options, common.DefaultCapabilities)
	if err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, fmt.Errorf("templates: %w", err)
	}
	r := &Rendered{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		switch base := path.Base(name); {
		case base == "NOTES.txt":
			r.Notes = files[name]
		case !strings.HasPrefix(base, "_"):
			r.Objects = append(r.Objects, split(files[name])...)
		}
	}
	return r, nil
}

// split takes a file's YAML documents apart. Text within a block is indented:
// a line of three dashes begins a document.
func split(text string) []string {
	var documents []string
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		if trimmed := strings.TrimSpace(document); trimmed != "" {
			documents = append(documents, trimmed+"\n")
		}
	}
	return documents
}
