// Package scene is what the dashboards are shown and tested with: a node for each embedded
// capture, replayed, and pages of the collector's tests for what no capture has.
package scene

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"gdr_exporter/collector/capture/embedded"
	"gdr_exporter/deploy/stack"
)

// pages are golden pages below collector/testdata, by the name of the node that serves
// them. The exporter's own readers and views made them, of devices that no embedded
// capture has. They do not move: their rates are 0.
var pages = map[string]string{
	"page-roce":           "netdev/mlx5-ofed.metrics",
	"page-global-pause":   "netdev/mlx5-global.metrics",
	"page-kernel-log":     "kmsg/events.metrics",
	"page-devlink":        "devlink/mlx5.metrics",
	"page-processes":      "process/jobs.metrics",
	"page-nvlink":         "gpu/per-link.metrics",
	"page-gpu-lost":       "gpu/lost.metrics",
	"page-nvml-stuck":     "gpu/stuck.metrics",
	"page-pcie":           "affinity/sick.metrics",
	"page-probe-gone":     "probe/withdrawn.metrics",
	"page-probe-hung":     "probe/hung.metrics",
	"page-probe-quiesced": "probe/quiesced.metrics",
	"page-old-irdma":      "irdma-gen3.metrics",
	"page-jobs":           "jobs/all.metrics",
	"page-pods":           "pods/all.metrics",
	"page-peers":          "peer/trouble.metrics",
}

// Cluster is the label of all nodes.
const Cluster = "replayed"

// Nodes returns the nodes, and what ends the pages among them.
func Nodes() (nodes []stack.Node, end func() error, err error) {
	for _, name := range embedded.Names() {
		recording, err := embedded.Open(name)
		if err != nil {
			return nil, nil, err
		}
		// Ports that are up when the replay begins are expected, as an exporter learns.
		site, err := stack.ProfileOf(recording)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		nodes = append(nodes, stack.Node{Name: name, Cluster: Cluster, Recording: recording, Profile: site})
	}
	root, err := repository()
	if err != nil {
		return nil, nil, err
	}
	var servers []*http.Server
	end = func() error {
		var all []error
		for _, s := range servers {
			all = append(all, s.Close())
		}
		return errors.Join(all...)
	}
	for name, file := range pages {
		text, err := os.ReadFile(filepath.Join(root, "collector", "testdata", filepath.FromSlash(file)))
		if err != nil {
			return nil, nil, errors.Join(err, end())
		}
		address, server, err := serve(text)
		if err != nil {
			return nil, nil, errors.Join(err, end())
		}
		servers = append(servers, server)
		nodes = append(nodes, stack.Node{Name: name, Cluster: Cluster, Address: address})
	}
	return nodes, end, nil
}

// serve serves a page, with the version that each exporter has and golden pages leave out.
func serve(text []byte) (address string, server *http.Server, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = w.Write(text)
		_, _ = w.Write([]byte("# TYPE gdr_exporter_build_info gauge\ngdr_exporter_build_info{version=\"golden\"} 1\n"))
	})}
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String(), server, nil
}

// repository is the directory above with the module's go.mod.
func repository() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		above := filepath.Dir(dir)
		if above == dir {
			return "", errors.New("no go.mod here or above: start this in the repository")
		}
		dir = above
	}
	return "", err
}
