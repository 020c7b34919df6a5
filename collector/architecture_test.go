package collector

import (
	"os/exec"
	"strings"
	"testing"
)

// importRules are the design's table of what a package must not import,
// directly. A trailing /... covers everything below. Readers do not import os:
// they reach files through sysread, so that a recording can take their place.
var importRules = []struct {
	packages  string
	forbidden []string
}{
	{"gdr_exporter/rdma", []string{"os", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/gpu/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "C"}},
	{"gdr_exporter/rdma/nldev", []string{"os", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/gpu/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "C"}},
	{"gdr_exporter/rdma/netdev", []string{"os", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/gpu/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "C"}},
	{"gdr_exporter/rdma/devlink", []string{"os", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/gpu/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "C"}},
	{"gdr_exporter/rdma/loopback", []string{"github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/gpu/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot"}},
	{"gdr_exporter/rdma/loopback/prober", []string{"github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/gpu/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "gdr_exporter/collector/status", "gdr_exporter/collector/capture", "gdr_exporter/collector/diagnosis", "C", "os/exec"}},
	{"gdr_exporter/rdma/loopback/isolate", []string{"github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/gpu/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "gdr_exporter/collector/status", "gdr_exporter/collector/capture", "gdr_exporter/collector/diagnosis", "C"}},
	// Only verbs knows the endpoints: the rest of the peers is tested without RDMA.
	{"gdr_exporter/rdma/peer", []string{"os", "gdr_exporter/rdma/peer/verbs", "gdr_exporter/rdma/loopback/...", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/gpu/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "gdr_exporter/collector/status", "gdr_exporter/collector/capture", "gdr_exporter/collector/diagnosis", "C", "os/exec"}},
	{"gdr_exporter/rdma/peer/session", []string{"gdr_exporter/rdma/loopback/...", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/gpu/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "gdr_exporter/collector/status", "gdr_exporter/collector/capture", "gdr_exporter/collector/diagnosis", "C", "os/exec"}},
	{"gdr_exporter/rdma/peer/schedule", []string{"os", "net/...", "gdr_exporter/rdma/loopback/...", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/gpu/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "gdr_exporter/collector/status", "gdr_exporter/collector/capture", "gdr_exporter/collector/diagnosis", "C", "os/exec"}},
	{"gdr_exporter/rdma/peer/targets", []string{"gdr_exporter/rdma/loopback/...", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/gpu/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "gdr_exporter/collector/status", "gdr_exporter/collector/capture", "gdr_exporter/collector/diagnosis", "C", "os/exec"}},
	{"gdr_exporter/rdma/peer/rails", []string{"os", "net/...", "gdr_exporter/rdma/loopback/...", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/gpu/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "gdr_exporter/collector/status", "gdr_exporter/collector/capture", "gdr_exporter/collector/diagnosis", "C", "os/exec"}},
	{"gdr_exporter/rdma/peer/verbs", []string{"github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/gpu/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "gdr_exporter/collector/status", "gdr_exporter/collector/capture", "gdr_exporter/collector/diagnosis", "os/exec"}},
	{"gdr_exporter/gpu", []string{"os", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/rdma/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "C", "gdr_exporter/gpu/affinity", "gdr_exporter/gpu/driver"}},
	{"gdr_exporter/gpu/affinity", []string{"os", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/rdma/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "C", "gdr_exporter/gpu", "gdr_exporter/gpu/driver", "github.com/NVIDIA/..."}},
	{"gdr_exporter/gpu/driver", []string{"os", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/rdma/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "C", "gdr_exporter/gpu", "gdr_exporter/gpu/affinity", "github.com/NVIDIA/..."}},
	{"gdr_exporter/gpu/cuda", []string{"github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/rdma/...", "gdr_exporter/collector/...", "gdr_exporter/gpu", "gdr_exporter/gpu/affinity", "gdr_exporter/gpu/driver", "github.com/NVIDIA/..."}},
	{"gdr_exporter/gpu/tape", []string{"os", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/rdma/...", "gdr_exporter/collector/...", "C", "github.com/NVIDIA/go-nvml/pkg/nvml/mock"}},
	// It writes no file either.
	{"gdr_exporter/collector/capture", []string{"os", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "gdr_exporter/collector/status", "C", "github.com/NVIDIA/...", "github.com/mdlayher/..."}},
	{"gdr_exporter/collector/capture/embedded", []string{"os", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "gdr_exporter/collector/status", "C"}},
	{"gdr_exporter/collector/kmsg", []string{"github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "gdr_exporter/gpu/...", "gdr_exporter/rdma/...", "C"}},
	{"gdr_exporter/collector/host", []string{"github.com/prometheus/client_golang/...", "go.uber.org/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "gdr_exporter/gpu/...", "C"}},
	{"gdr_exporter/collector/process", []string{"github.com/prometheus/client_golang/...", "go.uber.org/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "C"}},
	{"gdr_exporter/collector/podresources", []string{"os", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "gdr_exporter/gpu/...", "gdr_exporter/rdma/...", "C"}},
	{"gdr_exporter/collector/jobs", []string{"os", "github.com/prometheus/client_golang/...", "go.uber.org/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "gdr_exporter/gpu/...", "gdr_exporter/rdma/...", "C"}},
	{"gdr_exporter/collector/profile", []string{"github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "C"}},
	{"gdr_exporter/collector/nccllog", []string{"os", "github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/collector", "gdr_exporter/collector/snapshot", "gdr_exporter/gpu/...", "gdr_exporter/rdma/...", "C"}},
	{"gdr_exporter/collector/sysread", []string{"github.com/prometheus/...", "go.uber.org/...", "gdr_exporter/...", "C"}},
	{"gdr_exporter/collector", []string{"os", "github.com/NVIDIA/...", "github.com/prometheus/procfs/...", "github.com/Mellanox/...", "github.com/mdlayher/...", "github.com/vishvananda/...", "google.golang.org/grpc/...", "k8s.io/...", "C"}},
	{"gdr_exporter/collector/status", []string{"os", "github.com/prometheus/...", "github.com/NVIDIA/...", "github.com/Mellanox/...", "github.com/mdlayher/...", "C"}},
	{"gdr_exporter/collector/diagnosis", []string{"os", "net/...", "github.com/prometheus/...", "github.com/NVIDIA/...", "github.com/Mellanox/...", "github.com/mdlayher/...", "github.com/vishvananda/...", "go.uber.org/...", "gdr_exporter/collector", "gdr_exporter/collector/status", "gdr_exporter/collector/capture", "C"}},
	{"gdr_exporter/deploy/runbooks", []string{"os", "net/...", "github.com/prometheus/...", "gdr_exporter/...", "C"}},
	{"gdr_exporter/collector/snapshot", []string{"github.com/prometheus/client_golang/...", "C"}},
}

func TestImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}:{{join .Imports " "}}`, "gdr_exporter/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	imports := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		name, list, _ := strings.Cut(strings.TrimSpace(line), ":")
		imports[name] = strings.Fields(list)
	}
	for _, rule := range importRules {
		list, found := imports[rule.packages]
		if !found {
			t.Errorf("no package %s", rule.packages)
		}
		for _, imported := range list {
			for _, forbidden := range rule.forbidden {
				if covers(forbidden, imported) {
					t.Errorf("%s imports %s", rule.packages, imported)
				}
			}
		}
	}
	for name, list := range imports {
		if covers("gdr_exporter/deploy/stack/...", name) {
			continue // a tool beside the exporter, which puts its parts together as cmd does
		}
		for _, imported := range list {
			if strings.HasPrefix(imported, "github.com/NVIDIA/go-nvml") && name != "gdr_exporter/gpu" && name != "gdr_exporter/gpu/gputest" && name != "gdr_exporter/gpu/tape" {
				t.Errorf("%s imports %s: only gpu calls NVML", name, imported)
			}
			if strings.HasPrefix(imported, "github.com/prometheus/client_golang") && name != "gdr_exporter/collector" && !strings.HasPrefix(name, "gdr_exporter/cmd/") {
				t.Errorf("%s imports %s: only collector makes metrics", name, imported)
			}
		}
	}
}

func covers(pattern, path string) bool {
	if base, tree := strings.CutSuffix(pattern, "/..."); tree {
		return path == base || strings.HasPrefix(path, base+"/")
	}
	return path == pattern
}
