package nccllog

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

// FuzzRead: no log makes the reader fail, count wrongly or print what is not text.
func FuzzRead(f *testing.F) {
	logs, err := filepath.Glob("testdata/*.log")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0(1)/GDRDMA\x1b[31mb:1:2 [0] NCCL WARN \x00\xff"))
	f.Fuzz(func(t *testing.T, log []byte) {
		report, err := Read(t.Context(), bytes.NewReader(log), Options{})
		if err != nil {
			if !bytes.HasPrefix(log, []byte{0x1f, 0x8b}) {
				t.Fatal(err)
			}
			return
		}
		var text bytes.Buffer
		if err := report.WriteTable(&text); err != nil {
			t.Fatal(err)
		}
		if err := report.WriteJSON(io.Discard); err != nil {
			t.Fatal(err)
		}
		if at := strings.IndexFunc(text.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); at >= 0 {
			t.Errorf("not printable at %d: %q", at, text.String())
		}
		c := report.Connections
		if markers := uint64(bytes.Count(log, []byte(" via "))); !bytes.HasPrefix(log, []byte{0x1f, 0x8b}) && !bytes.ContainsAny(log, "\x00\x1b\x7f") && c.Direct+c.Staged+c.Socket > markers {
			t.Errorf("%d lines, %+v", markers, c)
		}
		if report.Verdict == VerdictDirect && c.Staged > 0 || report.Verdict == VerdictUnknown && report.ExitCode() == ExitFine {
			t.Errorf("%s %+v", report.Verdict, c)
		}
	})
}
