// Package compose_test checks the files for docker compose. There is no Docker where the
// tests run: what is checked is that they parse, fit together, and are what promtool and
// amtool take.
package compose_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v2"

	"gdr_exporter/collector/capture/embedded"
)

func load(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"compose.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// comes are files that other parts of the project bring: until they do, this cannot run.
var comes = []string{"gdr-fleet.json", "gdr-node.json", "gdr-rdma-fabric.json", "Dockerfile"}

// exists fails if there is no such file, and tells of one that is yet to come.
func exists(t *testing.T, path string) {
	t.Helper()
	_, err := os.Stat(path)
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist) && slices.Contains(comes, filepath.Base(path)):
		t.Skipf("%s is not there yet", filepath.Base(path))
	default:
		t.Error(err)
	}
}

// TestFiles: what is mounted, and built from, is there.
func TestFiles(t *testing.T) {
	mounted := 0
	for _, service := range load(t).Services {
		if service.Build != nil {
			t.Run(service.Name+" Dockerfile", func(t *testing.T) { exists(t, filepath.Join(service.Build.Context, service.Build.Dockerfile)) })
		}
		for _, volume := range service.Volumes {
			if volume.Type != types.VolumeTypeBind {
				continue
			}
			mounted++
			if !volume.ReadOnly {
				t.Errorf("%s: %s may be written", service.Name, volume.Target)
			}
			t.Run(service.Name+" "+filepath.Base(volume.Source), func(t *testing.T) { exists(t, volume.Source) })
		}
	}
	if mounted < 9 {
		t.Errorf("%d files are mounted", mounted)
	}
}

// TestPorts: nothing is offered to other machines.
func TestPorts(t *testing.T) {
	ports := 0
	for _, service := range load(t).Services {
		for _, port := range service.Ports {
			ports++
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is bound to %q", service.Name, port.Published, port.HostIP)
			}
		}
	}
	if ports != 4 {
		t.Errorf("%d ports, and the README names four", ports)
	}
}

// TestTargets: what is scraped are the exporters, each a replay of a capture there is.
func TestTargets(t *testing.T) {
	text, err := os.ReadFile("targets.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var groups []struct {
		Targets []string `yaml:"targets"`
	}
	if err := yaml.UnmarshalStrict(text, &groups); err != nil {
		t.Fatal(err)
	}
	var scraped, exporters []string
	for _, group := range groups {
		scraped = append(scraped, group.Targets...)
	}
	for _, service := range load(t).Services {
		for _, argument := range service.Command {
			if name, is := strings.CutPrefix(argument, "--replay="); is {
				exporters = append(exporters, service.Name+":10479")
				if !slices.Contains(embedded.Names(), name) {
					t.Errorf("%s: no capture %s is embedded", service.Name, name)
				}
			}
		}
	}
	slices.Sort(scraped)
	slices.Sort(exporters)
	if !slices.Equal(scraped, exporters) {
		t.Errorf("scraped are %v, and the exporters are %v", scraped, exporters)
	}
}

// inContainer puts what a service mounts where it is in its container, below a directory,
// and returns the path of a file there.
func inContainer(t *testing.T, project *types.Project, name, file string) (path, root string) {
	t.Helper()
	root = t.TempDir()
	for _, volume := range project.Services[name].Volumes {
		if volume.Type != types.VolumeTypeBind {
			continue
		}
		to := filepath.Join(root, volume.Target)
		if err := os.MkdirAll(filepath.Dir(to), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(volume.Source, to); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(root, file), root
}

// configFile is what a service's --config.file names.
func configFile(t *testing.T, project *types.Project, name string) string {
	t.Helper()
	for _, argument := range project.Services[name].Command {
		if file, is := strings.CutPrefix(argument, "--config.file="); is {
			return file
		}
	}
	t.Fatalf("%s has no --config.file", name)
	return ""
}

func check(t *testing.T, program, of string, arguments ...string) {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("%s is not installed (Debian's package %s)", program, of)
	}
	if output, err := exec.CommandContext(t.Context(), path, arguments...).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", program, err, output)
	}
}

// TestPrometheus: promtool takes the configuration with the rules and targets that the
// container sees.
func TestPrometheus(t *testing.T) {
	project := load(t)
	path, root := inContainer(t, project, "prometheus", configFile(t, project, "prometheus"))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// promtool has no root directory to be given.
	moved := strings.ReplaceAll(string(text), "[/etc/", "["+root+"/etc/")
	if strings.Count(moved, root) != 2 {
		t.Fatalf("rules and targets are not where they were:\n%s", moved)
	}
	for _, pattern := range []string{"etc/prometheus/rules/gdr-*.yaml", "etc/prometheus/gdr_exporter/*.yaml"} {
		if names, err := filepath.Glob(filepath.Join(root, pattern)); err != nil || len(names) == 0 {
			t.Errorf("the container has no %s", pattern)
		}
	}
	file := filepath.Join(root, "moved.yaml")
	if err := os.WriteFile(file, []byte(moved), 0o600); err != nil {
		t.Fatal(err)
	}
	check(t, "promtool", "prometheus", "check", "config", file)
}

func TestAlertmanager(t *testing.T) {
	project := load(t)
	path, _ := inContainer(t, project, "alertmanager", configFile(t, project, "alertmanager"))
	check(t, "amtool", "prometheus-alertmanager", "check-config", path)
	// scrape.yaml finds it on localhost.
	if mode := project.Services["alertmanager"].NetworkMode; mode != "service:prometheus" {
		t.Errorf("its network is %q", mode)
	}
}

// TestGrafana: the dashboards lie where the provisioning looks for them, and their source
// is Prometheus's service.
func TestGrafana(t *testing.T) {
	project := load(t)
	var dashboards struct {
		APIVersion int `yaml:"apiVersion"`
		Providers  []struct {
			Options struct {
				Path string `yaml:"path"`
			} `yaml:"options"`
		} `yaml:"providers"`
	}
	var sources struct {
		Datasources []struct {
			Type string `yaml:"type"`
			URL  string `yaml:"url"`
		} `yaml:"datasources"`
	}
	for name, into := range map[string]any{"grafana/dashboards/gdr.yaml": &dashboards, "grafana/datasources/gdr.yaml": &sources} {
		text, err := os.ReadFile(name)
		if err == nil {
			err = yaml.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(dashboards.Providers) != 1 || len(sources.Datasources) != 1 {
		t.Fatalf("%d providers, %d sources", len(dashboards.Providers), len(sources.Datasources))
	}
	if got := fmt.Sprint(sources.Datasources[0]); got != "{prometheus http://prometheus:9090}" {
		t.Errorf("the source is %s", got)
	}
	found := 0
	for _, volume := range project.Services["grafana"].Volumes {
		if strings.HasSuffix(volume.Source, ".json") && filepath.Dir(volume.Target) == dashboards.Providers[0].Options.Path {
			found++
		}
	}
	if found != 3 {
		t.Errorf("%d dashboards are where Grafana looks for them", found)
	}
}
