package nlattr

import (
	"bytes"
	"testing"
)

func TestAll(t *testing.T) {
	var b []byte
	b = Append(b, 1, []byte("eth0\x00"))
	b = Append(b, 2|1<<15, []byte{7})
	type attr struct {
		kind  uint16
		value string
	}
	want := []attr{{1, "eth0\x00"}, {2, "\x07"}}
	for cut := range len(b) + 1 {
		var got []attr
		for kind, value := range All(b[:cut]) {
			got = append(got, attr{kind, string(value)})
		}
		switch {
		case cut >= len(b)-3 && len(got) != 2, cut < 9 && len(got) != 0, cut >= 9 && cut < len(b)-3 && len(got) != 1:
			t.Errorf("%d bytes: %+v", cut, got)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("%d bytes: %+v", cut, got)
			}
		}
	}
}

func TestValues(t *testing.T) {
	if got := Text([]byte("ab\x00c")); got != "ab" {
		t.Errorf("Text %q", got)
	}
	if got := Text(nil); got != "" {
		t.Errorf("Text %q", got)
	}
	for _, width := range []int{1, 2, 4, 8} {
		if got, is := Number(bytes.Repeat([]byte{0xff}, width)); !is || got != 1<<(8*width)-1 {
			t.Errorf("%d bytes: %d, %v", width, got, is)
		}
	}
	if _, is := Number(make([]byte, 3)); is {
		t.Error("a number of 3 bytes")
	}
}

func FuzzAll(f *testing.F) {
	f.Add(Append(nil, 1, []byte("x")))
	f.Add([]byte{0, 0, 1, 0})
	f.Add([]byte{0xff, 0xff, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		total := 0
		for _, value := range All(b) {
			total += headerSize + len(value)
		}
		if total > len(b) {
			t.Errorf("%d bytes of attributes in %d", total, len(b))
		}
	})
}
