package host

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"gdr_exporter/collector/sysread"
)

// daemons are the names (comm, which has 15 characters at most) of processes that
// start jobs: containers and batch jobs inherit their limits.
var daemons = []string{
	"containerd", "dockerd", "crio", "podman", "kubelet", "k3s-server", "k3s-agent", "rke2", "nomad",
	"slurmd", "slurmstepd", "pbs_mom", "sbatchd", "condor_startd",
}

// maxProcesses bounds how many processes are looked at.
const maxProcesses = 1 << 16

// maxLimits bounds /proc/PID/limits, which has 16 lines of 80 bytes.
const maxLimits = 1 << 14

// Daemons looks at the name of every process. A process that ends meanwhile is
// none.
func (s system) Daemons() ([]Daemon, error) {
	io := sysread.IO{Files: s.files}
	names, err := sysread.ReadNames(&io, s.procfs)
	if err != nil {
		return nil, err
	}
	found := []Daemon{}
	for _, pid := range processes(names) {
		dir := s.procfs + "/" + strconv.Itoa(pid)
		name, err := sysread.ReadOnce(&io, dir+"/comm")
		if err != nil || !slices.Contains(daemons, name) {
			continue
		}
		daemon := Daemon{Name: name, PID: pid}
		if soft, hard, err := readMemlock(&io, dir+"/limits"); err == nil {
			daemon.Soft, daemon.Hard = sysread.Some(soft), sysread.Some(hard)
		} else if sysread.Vanished(err) {
			continue
		}
		if found = append(found, daemon); len(found) == MaxDaemons {
			break
		}
	}
	return found, nil
}

// processes are the ids among the names in procfs, in their order.
func processes(names []string) []int {
	var pids []int
	for _, name := range names {
		if name == "" || name[0] < '1' || name[0] > '9' {
			continue
		}
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids[:min(len(pids), maxProcesses)]
}

// memlockLine begins the line of RLIMIT_MEMLOCK in /proc/PID/limits.
const memlockLine = "Max locked memory"

// readMemlock reads the limits of locked memory of a process.
func readMemlock(io *sysread.IO, path string) (soft, hard uint64, err error) {
	text, err := io.ReadLines(path, maxLimits, func(line []byte) bool { return strings.HasPrefix(string(line), memlockLine) })
	if err != nil {
		return 0, 0, err
	}
	return parseMemlock(string(text))
}

// parseMemlock reads "Max locked memory  65536  unlimited  bytes".
func parseMemlock(text string) (soft, hard uint64, err error) {
	rest, found := strings.CutPrefix(text, memlockLine)
	fields := strings.Fields(rest)
	if !found || len(fields) < 2 {
		return 0, 0, sysread.Invalid(text)
	}
	if soft, err = parseLimit(fields[0]); err != nil {
		return 0, 0, err
	}
	hard, err = parseLimit(fields[1])
	return soft, hard, err
}

func parseLimit(text string) (uint64, error) {
	if text == "unlimited" {
		return math.MaxUint64, nil
	}
	return sysread.ParseCounter([]byte(text))
}
