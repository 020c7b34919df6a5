package stack

import (
	"fmt"
	"net"
	"net/http"
	"runtime"
	"time"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/host"
	"gdr_exporter/collector/process"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/devlink"
)

// Node is a node that Prometheus scrapes: a replay within this process, by the readers
// and views of the exporter, or an exporter elsewhere.
type Node struct {
	// Name and Cluster are its labels; Cluster "" is main.
	Name, Cluster string
	// Recording is replayed, by the clock; nil: an exporter at Address is scraped.
	Recording *capture.Recording
	Address   string
	// Profile says what the node should have, as --profile does; nil: what the
	// exporter knows by itself.
	Profile *profile.Site
	// Copies is by how many names more the same page is scraped: NAME-1, NAME-2, ...
	Copies int
	// Silent says when the node does not answer, in seconds of the clock; nil: never.
	Silent *capture.Span
	// Deadline is for how long the making of a page waits for a device that hangs, on the
	// wall clock; 0 for long enough that a slow machine does not look like one.
	Deadline time.Duration
}

// longDeadline is so long that no machine is taken for a device that hangs.
const longDeadline = time.Minute

func (n *Node) deadline() time.Duration {
	if n.Deadline > 0 {
		return n.Deadline
	}
	return longDeadline
}

// farm serves the pages of all nodes that are replayed.
type farm struct {
	nodes  []Node
	server *http.Server
	where  string
	pages  []*page
}

// newFarm serves nodes, whose pages are made every so often. Of their families only those
// in only are shown, nil: all.
func newFarm(nodes []Node, clock Clock, every time.Duration, only map[string]bool) (*farm, error) {
	f := &farm{nodes: nodes}
	mux := http.NewServeMux()
	for i := range nodes {
		n := &nodes[i]
		if n.Recording == nil {
			continue
		}
		page, err := n.page(clock)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		page.only = only
		f.pages = append(f.pages, page)
		mux.Handle(n.path(), page)
	}
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, page := range f.pages {
		go page.renew(every, turns)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f.where = listener.Addr().String()
	f.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = f.server.Serve(listener) }()
	return f, nil
}

func (f *farm) close() error {
	err := f.server.Close()
	for _, page := range f.pages {
		page.close()
	}
	return err
}

func (n *Node) path() string { return "/" + n.Name + "/metrics" }

// group is a group of targets as a file of Prometheus names them.
type group struct {
	Targets []string          `yaml:"targets"`
	Labels  map[string]string `yaml:"labels"`
}

func (f *farm) targets() []group {
	var all []group
	for i := range f.nodes {
		n := &f.nodes[i]
		for copied := range n.Copies + 1 {
			labels, where := map[string]string{"node": n.Name}, n.Address
			if copied > 0 {
				labels["node"] = fmt.Sprintf("%s-%d", n.Name, copied)
			}
			if n.Cluster != "" {
				labels["cluster"] = n.Cluster
			}
			if n.Recording != nil {
				labels["__metrics_path__"], where = n.path(), f.where
			}
			all = append(all, group{[]string{where}, labels})
		}
	}
	return all
}

// noRoles has no device be given a role.
type noRoles struct{}

func (noRoles) Role(string) string { return "" }

// taker reads a replay by all readers, as the exporter does.
func (n *Node) taker(p *capture.Player, clock Clock) *snapshot.Taker {
	readers := &n.Recording.Header.Readers
	options := rdma.Options{Sysfs: readers.Sysfs, Files: p.Files(), Descriptors: 1024, Netlink: p.Netlink(), Monitor: p.Monitor(), Now: clock.Now}
	if p.Has(capture.PartNetdev) {
		options.Ethtool, options.Kernel = true, p.Kernel()
	}
	builder := snapshot.New(snapshot.Options{Deadline: n.deadline(), Now: clock.Now}).
		RDMA(rdma.NewReader(options), nil).
		GPU(gpu.NewReader(gpu.Options{Files: p.Files(), Procfs: readers.Procfs, Roots: readers.DriverRoots, NVLink: true, Fabric: true, Open: p.NVML()})).
		Driver(driver.NewReader(driver.Options{Sysfs: readers.Sysfs, Procfs: readers.Procfs, Roots: readers.DriverRoots, Files: p.Files()})).
		Affinity(affinity.NewReader(affinity.Options{Sysfs: readers.Sysfs, Files: p.Files(), Descriptors: 1024, Now: clock.Now})).
		ProbeOf(p.Ledger).Prober(p.Prober).
		Process(process.NewReader(process.Options{Kernel: p.Process()}))
	if kernelLog := p.KernelLog(); kernelLog != nil {
		builder.KernelLog(kernelLog)
	}
	if p.Has(capture.PartDevlink) {
		builder.Devlink(devlink.NewReaderOf(p.Devlink()), 0)
	}
	if p.Has(capture.PartHost) {
		builder.Host(host.NewReader(host.Options{Sysfs: readers.Sysfs, Procfs: readers.Procfs, Files: p.Files(), Kernel: p.Host()}))
	}
	book := profile.New(profile.Options{Site: n.Profile, Platforms: profile.Embedded()})
	builder.Expect(book.Expect)
	return builder.Taker()
}
