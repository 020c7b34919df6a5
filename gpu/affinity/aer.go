package affinity

import (
	"strings"

	"gdr_exporter/collector/sysread"
)

// maxAERTypes bounds the types taken from one file. The kernel knows up to 32
// bits per register.
const maxAERTypes = 64

// parseAER reads an AER file: a line per type of error, name and count, the
// last being TOTAL_ERR_COR, _NONFATAL or _FATAL. Early kernels print names with
// spaces, so the count is the last field and the name what is before it.
func parseAER(text string) (AERCounts, error) {
	var counts AERCounts
	var first error
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		name, count, err := aerLine(line)
		switch {
		case err != nil:
			if first == nil {
				first = err
			}
		case strings.HasPrefix(name, "TOTAL_ERR_"):
			counts.Total = sysread.Some(count)
		case len(counts.Types) < maxAERTypes:
			counts.Types = append(counts.Types, AERCount{name, count})
		}
	}
	if first == nil && !counts.Total.Known && len(counts.Types) == 0 {
		first = sysread.Invalid(text)
	}
	return counts, first
}

func aerLine(line string) (string, uint64, error) {
	at := strings.LastIndexAny(line, " \t")
	if at < 0 {
		return "", 0, sysread.Invalid(line)
	}
	count, err := sysread.ParseCounter([]byte(line[at+1:]))
	if err != nil {
		return "", 0, sysread.Invalid(line)
	}
	return strings.TrimSpace(line[:at]), count, nil
}
