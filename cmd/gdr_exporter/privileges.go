package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/status"
)

// privilege is something that the exporter has not been given, and what that costs.
type privilege struct {
	missing string
	costs   string
}

// tellPrivileges logs once, at start, where the exporter runs and what it cannot do
// for want of a privilege. None of it keeps the rest from being served. That the
// kernel's log cannot be read, that nothing is kept and that there is no control
// socket is told where it is noticed.
func (d *daemon) tellPrivileges(s *snapshot.Snapshot) {
	page := d.pageOf(s)
	runs := page.Document().Context
	d.logger.Info("where the exporter runs", zap.String("where", runs.Sentence), zap.Strings("capabilities", runs.Capabilities))
	for _, lost := range d.lostPrivileges(s, &runs) {
		d.logger.Warn("a privilege is missing; the rest is served", zap.String("missing", lost.missing), zap.String("costs", lost.costs))
	}
	for _, evidence := range runs.Missing {
		if strings.Contains(evidence.What, "--collector.") || strings.Contains(evidence.What, "--peer.enabled") {
			continue // switched off, which is no privilege
		}
		d.logger.Info("not judged for want of evidence", zap.String("missing", evidence.What), zap.Strings("rules", evidence.Rules))
	}
}

// lostPrivileges are the privileges that are missing.
func (d *daemon) lostPrivileges(s *snapshot.Snapshot, runs *status.DocContext) []privilege {
	lost := d.config.lostMounts()
	if runs.HostNetwork != nil && !*runs.HostNetwork {
		lost = append(lost, privilege{"the host's network namespace",
			"no ethtool statistics, PFC, trust and addresses of RoCE ports, no health reporters; of RDMA devices only those of this namespace are answered for by netlink"})
	}
	if d.config.schedule.interval > 0 && d.measuringOff() == "" && s.RDMA != nil && len(s.RDMA.Units) > 0 {
		lost = append(lost, d.lostMeasuring(s)...)
	}
	return lost
}

// lostMounts are the trees that hold nothing.
func (c *config) lostMounts() []privilege {
	var lost []privilege
	for _, tree := range []struct{ path, entry, flag, costs string }{
		{c.sysfs, "class", "--path.sysfs", "no RDMA devices, ports, counters, PCIe"},
		{c.procfs, "self", "--path.procfs", "no driver and module versions, no processes; all else is served"},
	} {
		if _, err := os.Lstat(filepath.Join(tree.path, tree.entry)); errors.Is(err, fs.ErrNotExist) {
			lost = append(lost, privilege{fmt.Sprintf("%s=%s is not mounted: it has no %s", tree.flag, tree.path, tree.entry), tree.costs})
		}
	}
	return lost
}

// lostMeasuring is what keeps measurements from being made, whatever the pair.
func (d *daemon) lostMeasuring(s *snapshot.Snapshot) []privilege {
	var lost []privilege
	const costs = "nothing is measured: gdr_probe_skipped says why for each pair, verdicts rest on what is read"
	if err := d.proberHost.memlock(d.config.scheduledSpec().Registers()); err != nil {
		lost = append(lost, privilege{err.Error(), costs})
	}
	if dir := filepath.Dir(d.config.schedule.lock); !makeable(dir) {
		lost = append(lost, privilege{"no writable " + dir, costs})
	}
	// One is enough to say: the device directory as a whole is what is missing.
	for i := range s.RDMA.Units {
		if err := d.proberHost.uverbsNode(s.RDMA.Units[i].Name); err != nil {
			lost = append(lost, privilege{err.Error(), costs})
			break
		}
	}
	return lost
}

// makeable reports whether this process may make files in a directory, or make the
// directory where its parent is.
func makeable(dir string) bool {
	for {
		err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
		if !errors.Is(err, unix.ENOENT) || dir == "/" || dir == "." {
			return err == nil
		}
		dir = filepath.Dir(dir)
	}
}
