package status

import (
	"bytes"
	"strings"
	"testing"

	"gdr_exporter/collector/snapshot"
)

// TestLandingReplay: a replay is marked in the title and before anything else,
// whatever its name is made of, and no other page is.
func TestLandingReplay(t *testing.T) {
	for _, sentence := range []string{"Replay of the capture <script>x</script>: nothing here is of this host.", ""} {
		var b bytes.Buffer
		if err := (Page{Replay: sentence, Snapshot: &snapshot.Snapshot{}}).WriteHTML(&b); err != nil {
			t.Fatal(err)
		}
		page := b.String()
		mark, lead := strings.Index(page, `<p class="replay"`), strings.Index(page, `<p class="lead"`)
		if marked := mark > 0; marked != (sentence != "") || mark > lead || strings.Contains(page, "(replay)</title>") != marked || strings.Contains(page, "<script>") {
			t.Errorf("%q: mark at %d, first line at %d\n%s", sentence, mark, lead, page[max(mark, 0):max(lead, 0)])
		}
	}
}
