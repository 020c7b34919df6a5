package status

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// TestTidy has HTML Tidy judge the pages: an error or a warning of it is one here.
func TestTidy(t *testing.T) {
	path, err := exec.LookPath("tidy")
	if err != nil {
		t.Skip("no tidy here: the HTML is judged by this package's own checks only")
	}
	pages := browserPages(t)
	pages["hostile"] = hostilePage()
	for name, p := range pages {
		for kind, write := range map[string]func(*bytes.Buffer) error{
			"page":  func(b *bytes.Buffer) error { return p.WriteHTML(b) },
			"index": func(b *bytes.Buffer) error { return p.WriteRunbooks(b) },
			"runbook": func(b *bytes.Buffer) error {
				_, err := p.WriteRunbook(b, "path_staged")
				return err
			},
		} {
			var page bytes.Buffer
			if err := write(&page); err != nil {
				t.Fatal(err)
			}
			command := exec.CommandContext(t.Context(), path, "-quiet", "-errors", "--drop-empty-elements", "no")
			command.Stdin = &page
			said, err := command.CombinedOutput()
			if text := strings.TrimSpace(string(said)); text != "" || err != nil {
				t.Errorf("%s of %s: %v: %.2000s", kind, name, err, text)
			}
		}
	}
}
