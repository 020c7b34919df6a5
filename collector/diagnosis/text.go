package diagnosis

import (
	"fmt"
	"strings"
	"time"
)

// rate is a rate as people write it.
func rate(bytesPerSecond float64) string { return fmt.Sprintf("%.1f GB/s", bytesPerSecond/1e9) }

// stamp is a time as people write it.
func stamp(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05 UTC") }

// days is a long time as people write it, rounded down.
func days(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", int(d.Hours()))
	}
	return fmt.Sprintf("%d minutes", int(d.Minutes()))
}

func joined(texts []string) string { return strings.Join(texts, "; ") }

// size is a number of bytes as people write it.
func size(bytes uint64) string {
	switch {
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	case bytes >= 1<<20:
		return fmt.Sprintf("%.0f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%d KiB", bytes>>10)
}
