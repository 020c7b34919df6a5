package affinity

import (
	"strconv"
	"strings"
	"testing"
)

// FuzzCPUList: what is taken for a list of CPUs is one, of numbers that fit.
func FuzzCPUList(f *testing.F) {
	for _, seed := range []string{"0-55,112-167", "", "0", "1,", "-1", "0-", "1234567"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !cpuListPattern.MatchString(text) || text == "" {
			return
		}
		for span := range strings.SplitSeq(text, ",") {
			first, last, isSpan := strings.Cut(span, "-")
			for _, number := range []string{first, last} {
				if _, err := strconv.ParseUint(number, 10, 20); err != nil && (isSpan || number == first) {
					t.Errorf("%q: %v", text, err)
				}
			}
		}
	})
}
