package collector

import (
	"fmt"
	"strings"
	"testing"
)

func (l labels) text() string {
	var b strings.Builder
	for _, pair := range l {
		fmt.Fprintf(&b, "%s=%q ", pair.GetName(), pair.GetValue())
	}
	return b.String()
}

// TestKeptLabels: labels that are kept are those that would be made anew, however
// alike two sets are, and sets are not changed by what is made of them.
func TestKeptLabels(t *testing.T) {
	for range 2 {
		a := pairs("address", "x", "b", "")
		same(t, a, `address="x" b="" `)
		same(t, pairs("address", "", "b", "x"), `address="" b="x" `)
		same(t, pairs("address", "x\x01b", "b", ""), `address="x\\x01b" b="" `)
		fatal, other := a.with("severity", "fatal"), a.with("severity", "nonfatal")
		same(t, fatal.with("type", "T"), `address="x" b="" severity="fatal" type="T" `)
		same(t, other.with("type", "T"), `address="x" b="" severity="nonfatal" type="T" `)
		same(t, a.with("type", "T"), `address="x" b="" type="T" `)
		same(t, a.with("a", "first"), `a="first" address="x" b="" `)
		same(t, a, `address="x" b="" `)
		same(t, labels(nil).with("x", "y"), `x="y" `)
		same(t, pairs(), "")
	}
	if l := pairs("p", "q"); &l[0] != &pairs("p", "q")[0] {
		t.Error("made twice")
	}
}

func same(t *testing.T, l labels, want string) {
	t.Helper()
	if got := l.text(); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestKeptLabelsAreBounded: values that change all the time do not fill memory.
func TestKeptLabelsAreBounded(t *testing.T) {
	k := &keptLabels{}
	for i := range 3 * maxKeptLabels {
		text := fmt.Sprint(i)
		l := k.with(k.pairs([]string{"a", text}), "b", text)
		if want := fmt.Sprintf("a=%q b=%q ", text, text); l.text() != want {
			t.Fatal(l.text())
		}
		if n := len(k.all) + len(k.more); n > maxKeptLabels {
			t.Fatal(n)
		}
	}
}

// BenchmarkPairs makes the labels of a GPU's facts: anew, and as they are kept.
func BenchmarkPairs(b *testing.B) {
	facts := []string{
		"gpu_address", "0000:18:00.0", "uuid", "GPU-00000000-0000-0000-0000-000000000000", "index", "0", "bus_id", "00000000:18:00.0", "name", "NVIDIA H100 80GB HBM3",
		"vbios", "96.00.5E.00.01", "architecture", "hopper", "compute_capability", "9.0", "driver", "nvidia", "presence", "nvml", "numa_node", "0", "cpu_affinity", "0-47", "virtualization", "none",
	}
	b.Run("anew", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			makePairs(facts)
		}
	})
	b.Run("kept", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			pairs(facts...)
		}
	})
}
