package process

import (
	"math"
	"strconv"
	"strings"

	"gdr_exporter/collector/sysread"
)

// memlockLine begins the line of /proc/PID/limits about locked memory. Its columns
// are soft limit, hard limit and unit. prometheus/procfs reads the same file, but
// from the running system only.
const memlockLine = "Max locked memory"

// maxLimits bounds /proc/PID/limits, which has 17 lines.
const maxLimits = 1 << 16

// Memlock reads /proc/PID/limits.
func (p *Proc) Memlock(pid int) (uint64, error) {
	line, err := p.files().ReadLines(p.path(pid, "limits"), maxLimits, func(line []byte) bool {
		return strings.HasPrefix(string(line), memlockLine)
	})
	if err != nil {
		return 0, err
	}
	return parseMemlock(string(line))
}

func parseMemlock(line string) (uint64, error) {
	columns, is := strings.CutPrefix(line, memlockLine)
	fields := strings.Fields(columns)
	if !is || len(fields) < 2 {
		return 0, sysread.Invalid(line)
	}
	if fields[0] == "unlimited" {
		return math.MaxUint64, nil
	}
	limit, err := strconv.ParseUint(fields[0], 10, 64)
	if err != nil {
		return 0, sysread.Invalid(line)
	}
	return limit, nil
}
