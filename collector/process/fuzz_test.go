package process

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// FuzzFilter: whatever the environment and the pieces that it comes in, only values
// of the list's forms, and names of the prefixes, are kept.
func FuzzFilter(f *testing.F) {
	f.Add([]byte("PASSWORD=x\x00NCCL_NET_GDR_LEVEL=LOC\x00UCX_TLS=all\x00NCCL_DEBUG=INFO\x00"), 7)
	f.Add([]byte("NCCL_NET_GDR_LEVEL=LO\xff\x00NCCL_a=1\x00NCCL_IB_HCA="), 1)
	f.Fuzz(func(t *testing.T, text []byte, piece int) {
		if piece <= 0 {
			piece = 1
		}
		got := filtered(string(text), piece)
		if whole := filtered(string(text), len(text)+1); !reflect.DeepEqual(got, whole) {
			t.Errorf("%+v in pieces, %+v as a whole", got, whole)
		}
		for name, value := range got.Variables {
			if form := Valued[name]; form == nil || value != Withheld && value != "" && !form.MatchString(value) {
				t.Errorf("%s=%q is kept", name, value)
			}
			if value != Withheld && !bytes.Contains(text, []byte(name+"="+value)) {
				t.Errorf("%s=%q is not in the environment", name, value)
			}
		}
		for _, name := range got.Others {
			if !usualName.MatchString(name) || !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
				t.Errorf("%q is kept", name)
			}
		}
		if len(got.Others) > MaxOthers || len(slices.Collect(maps.Keys(got.Variables))) > len(Valued) {
			t.Errorf("%d names, %d values", len(got.Others), len(got.Variables))
		}
	})
}

// FuzzMemlock: what is read is what the line has.
func FuzzMemlock(f *testing.F) {
	f.Add("Max locked memory         8388608              8388608              bytes     \n")
	f.Add("Max locked memory unlimited unlimited bytes")
	f.Fuzz(func(t *testing.T, line string) {
		limit, err := parseMemlock(line)
		if err == nil && !strings.Contains(line, "unlimited") && !strings.Contains(line, fmt.Sprint(limit)) {
			t.Errorf("%d of %q", limit, line) // leading zeros aside, which no kernel writes
		}
	})
}

// FuzzMaps: pieces make no difference, and a version is one that is in the text.
func FuzzMaps(f *testing.F) {
	f.Add("7f-80 r--p 0 fe:01 1 /usr/lib/libnccl.so.2.23.4\n7f-80 r--p 0 fe:01 1 /x/libucp.so.0\n", 5)
	f.Fuzz(func(t *testing.T, text string, piece int) {
		if piece <= 0 {
			piece = 1
		}
		got := scanned(text, piece)
		if whole := scanned(text, len(text)+1); got != whole {
			t.Errorf("%+v in pieces, %+v as a whole", got, whole)
		}
		if got.NCCL != "" && got.NCCL != unversioned && !strings.Contains(text, ".so."+got.NCCL) {
			t.Errorf("version %q of %q", got.NCCL, text)
		}
	})
}

// FuzzStat: no text makes it fail otherwise than by its error, which does not have
// the process's name.
func FuzzStat(f *testing.F) {
	f.Add("7 (a) S 1 2 2 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 123456 1000 100 1")
	f.Fuzz(func(t *testing.T, text string) {
		if stat, _, err := parseStat(text); err == nil && !strings.Contains(text, ")") || err != nil && stat != (Stat{}) {
			t.Errorf("%q: %+v, %v", text, stat, err)
		}
	})
}
