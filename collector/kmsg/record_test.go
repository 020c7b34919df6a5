package kmsg

import (
	"fmt"
	"strings"
	"testing"
)

// escape writes text as /dev/kmsg does.
func escape(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; c < ' ' || c >= 127 || c == '\\' {
			fmt.Fprintf(&b, `\x%02x`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, raw, want string
	}{
		{"plain", "6,339,5140900,-;NET: Registered protocol family 10\n", "0 339 5140900 NET: Registered protocol family 10 ''"},
		{"device", "4,340,5690716,-;mlx5_core 0000:3b:00.0: text\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n", "0 340 5690716 mlx5_core 0000:3b:00.0: text '0000:3b:00.0'"},
		{"network device", "6,341,1,c;text\n SUBSYSTEM=net\n DEVICE=n5\n", "0 341 1 text ''"},
		{"caller", "6,342,2,-,caller=T123;text\n", "0 342 2 text ''"},
		{"user", "12,343,3,-;NVRM: Xid\n", "1 343 3 NVRM: Xid ''"},
		{"daemon", "30,344,4,-;text\n", "3 344 4 text ''"},
		{"semicolons", "6,345,5,-;a;b;c\n", "0 345 5 a;b;c ''"},
		{"no line end", "6,346,6,-;text", "0 346 6 text ''"},
		{"only three fields", "6,347,7;text\n", "0 347 7 text ''"},
		{"empty text", "6,348,0,-;\n", "0 348 0  ''"},
	} {
		r, is := parse([]byte(c.raw))
		if got := fmt.Sprintf("%d %d %d %s '%s'", r.facility, r.sequence, r.micros, r.text, r.device); !is || got != c.want {
			t.Errorf("%s: %s (%v), want %s", c.name, got, is, c.want)
		}
	}
	for _, raw := range []string{"", "\n", ";", "6;text", "6,1;text", "a,1,2,-;text", "6,b,2,-;text", "6,1,c,-;text", "6,1,2,-", "-6,1,2,-;text", "6,18446744073709551616,2,-;text"} {
		if r, is := parse([]byte(raw)); is {
			t.Errorf("%q is %+v", raw, r)
		}
	}
}

func TestUnescape(t *testing.T) {
	for escaped, want := range map[string]string{
		"plain": "plain", `a\x0ab`: "a\nb", `\x5cx41`: `\x41`, `\x`: `\x`, `\x4`: `\x4`, `\xzz`: `\xzz`, `end\`: `end\`, `\xc3\xa4`: "ä", `\x+1`: `\x+1`,
	} {
		if got := unescape([]byte(escaped)); got != want {
			t.Errorf("%q is %q, want %q", escaped, got, want)
		}
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte("6,339,5140900,-;NET: Registered protocol family 10\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"))
	f.Add([]byte("12,343,3,-,caller=T1;a\\x0ab\n"))
	for _, l := range lines {
		f.Add([]byte("3,1,2,-;" + escape(l.line) + "\n"))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, is := parse(raw)
		if !is {
			return
		}
		text := unescape(r.text)
		if again := unescape([]byte(escape(text))); again != text {
			t.Errorf("%q becomes %q", text, again)
		}
		if event, matches := match(r.text); matches {
			if !event.Pattern.Known() || len(event.Text) > maxText || event.Address != address(event.Address) || event.Code < 0 {
				t.Errorf("%q is %+v", raw, event)
			}
			if strings.IndexFunc(event.Text, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
				t.Errorf("the text %q", event.Text)
			}
			if plain := Plain(event.Text); !strings.Contains(plain, "?") && !strings.HasPrefix(event.Text, plain) {
				t.Errorf("of %q is left %q", event.Text, plain)
			}
		}
	})
}
