package status

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/net/html"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma"
)

// at is when all Snapshots here are taken.
var at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// of is a Snapshot of RDMA devices.
func of(units ...snapshot.UnitPart[rdma.Device]) *snapshot.Snapshot {
	part := &snapshot.RDMAPart{Taken: at, Units: units, Listing: snapshot.RDMAListing{Present: true, Devices: len(units)}}
	return &snapshot.Snapshot{Taken: at.Add(time.Hour), RDMA: part}
}

func answered(d rdma.Device) snapshot.UnitPart[rdma.Device] {
	return snapshot.UnitPart[rdma.Device]{Name: d.Name, Data: &d}
}

func hung(name string, since time.Duration) snapshot.UnitPart[rdma.Device] {
	return snapshot.UnitPart[rdma.Device]{Name: name, StuckFor: since}
}

// device is a healthy device with ports in the given states.
func device(name string, states ...int) rdma.Device {
	d := rdma.Device{Identity: rdma.Identity{Name: name, Driver: "mlx5_core", PCIAddress: "0000:18:00.0"}}
	for i, state := range states {
		d.Ports = append(d.Ports, rdma.Port{
			Number: i + 1, Label: string(rune('1' + i)), LinkLayer: "InfiniBand", Netdev: "ib0",
			State: sysread.Some(state), PhysicalState: sysread.Some(5), Rate: sysread.Some(rdma.Rate{BytesPerSecond: 50e9, Lanes: 4, Speed: "NDR"}),
		})
	}
	return d
}

// page renders a Snapshot and checks what every page must be.
func page(t *testing.T, s *snapshot.Snapshot) string {
	t.Helper()
	var b strings.Builder
	if err := (Page{Version: "1.2.3", MetricsPath: "/metrics", Snapshot: s}).WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	checkHTML(t, b.String())
	return b.String()
}

// text is what a reader of the page sees.
func text(page string) string {
	page = regexp.MustCompile(`(?s)<style>.*?</style>`).ReplaceAllString(page, "")
	page = regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " ")
	return strings.Join(strings.Fields(html.UnescapeString(page)), " ")
}

func want(t *testing.T, page string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text(page), part) {
			t.Errorf("the page does not say %q: %s", part, text(page))
		}
	}
}

func wantNot(t *testing.T, page string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if strings.Contains(text(page), part) {
			t.Errorf("the page says %q: %s", part, text(page))
		}
	}
}

// voidElements have no end tag.
var voidElements = map[string]bool{"meta": true, "link": true, "br": true}

// checkHTML checks that elements nest, that rows fill their table, that there is
// one main heading, and that the page is whole in itself: no script, no request.
func checkHTML(t *testing.T, page string) {
	t.Helper()
	if !utf8.ValidString(page) || !strings.HasPrefix(page, "<!DOCTYPE html>\n") {
		t.Errorf("no HTML text: %q", page)
	}
	var open []string
	count := map[string]int{}
	ids, wanted := map[string]bool{}, []string{}
	for z := html.NewTokenizer(strings.NewReader(page)); z.Next() != html.ErrorToken; {
		token := z.Token()
		switch token.Type {
		case html.StartTagToken:
			count[token.Data]++
			checkAttributes(t, token)
			for _, a := range token.Attr {
				switch target, inside := strings.CutPrefix(a.Val, "#"); {
				case a.Key == "id" && ids[a.Val]:
					t.Errorf("two elements of id %q", a.Val)
				case a.Key == "id":
					ids[a.Val] = true
				case a.Key == "href" && inside:
					wanted = append(wanted, target)
				case a.Key == "aria-labelledby":
					wanted = append(wanted, a.Val)
				}
			}
			if !voidElements[token.Data] {
				open = append(open, token.Data)
			}
		case html.EndTagToken:
			if len(open) == 0 || open[len(open)-1] != token.Data {
				t.Fatalf("</%s> while open are %v", token.Data, open)
			}
			open = open[:len(open)-1]
		case html.TextToken:
			if len(open) > 0 && open[len(open)-1] == "style" && strings.Contains(token.Data, "url(") {
				t.Error("the style loads something")
			}
		case html.SelfClosingTagToken, html.CommentToken, html.DoctypeToken, html.ErrorToken:
		}
	}
	for _, id := range wanted {
		if !ids[id] {
			t.Errorf("there is no element of id %q", id)
		}
	}
	if len(open) > 0 || count["h1"] != 1 || count["main"] != 1 || count["title"] != 1 || count["script"] > 0 || count["img"] > 0 || count["iframe"] > 0 {
		t.Errorf("open at the end: %v; elements %v", open, count)
	}
}

func checkAttributes(t *testing.T, token html.Token) {
	t.Helper()
	for _, a := range token.Attr {
		local := strings.HasPrefix(a.Val, "/") && !strings.HasPrefix(a.Val, "//") || strings.HasPrefix(a.Val, "#")
		switch {
		case strings.HasPrefix(a.Key, "on") || a.Key == "style":
			t.Errorf("<%s %s>", token.Data, a.Key)
		case a.Key == "src", a.Key == "href" && !local && a.Val != "data:,":
			t.Errorf("<%s %s=%q> leads elsewhere", token.Data, a.Key, a.Val)
		}
	}
}

// checkTable checks that each row has as many cells as the table has columns.
func checkTable(t *testing.T, page string) {
	t.Helper()
	columns := 0
	for line := range strings.Lines(page) {
		switch {
		case strings.HasPrefix(line, "<thead>"):
			columns = strings.Count(line, "<th ")
		case strings.HasPrefix(line, "<tr>"):
			if cells := strings.Count(line, "<th ") + strings.Count(line, "<td"); cells != columns {
				t.Errorf("%d cells in a table of %d columns: %s", cells, columns, line)
			}
		}
	}
}

func TestNoRDMA(t *testing.T) {
	s := of()
	s.RDMA.Listing = snapshot.RDMAListing{}
	got := page(t, s)
	want(t, got, "No RDMA device class on this host", "as it should be", "Version 1.2.3", "2026-01-02 04:04:05 UTC")
	if strings.Count(got, "<table") != 1 {
		t.Error("a table without rows, beside that of ages")
	}
}

func TestSentences(t *testing.T) {
	excluded, failed := of(), of()
	excluded.RDMA.Listing.Excluded = 3
	failed.RDMA.Err = errors.New("class/infiniband: input/output error")
	for want, s := range map[string]*snapshot.Snapshot{
		"The rdma collector is switched off.":                                         {},
		"The RDMA devices could not be listed: class/infiniband: input/output error.": failed,
		"No RDMA device: all 3 are excluded by flags.":                                excluded,
		"No RDMA device on this host: /sys/class/infiniband is empty.":                of(),
		"1 RDMA device.":  of(answered(device("a", 4))),
		"2 RDMA devices.": of(answered(device("a", 4)), hung("b", 1)),
	} {
		if got := Sentence(s); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		got := page(t, s)
		if !strings.Contains(text(got), want) {
			t.Errorf("not on the page: %q", want)
		}
	}
	wantNot(t, page(t, failed), "as it should be")
	wantNot(t, page(t, excluded), "as it should be")
}

func TestPorts(t *testing.T) {
	got := page(t, of(answered(device("mlx5_0", 4, 1)), answered(device("mlx5_1", 2)), answered(device("mlx5_2", 4))))
	checkTable(t, got)
	want(t, got, "3 RDMA devices. 4 ports: 2 ACTIVE, 1 INIT, 1 DOWN.", "mlx5_0 1 ✓ ACTIVE LinkUp 400 Gb/s InfiniBand ib0 mlx5_core 0000:18:00.0", "mlx5_0 2 DOWN LinkUp InfiniBand")
	wantNot(t, got, "does not answer", "could not be read")
	if n := strings.Count(got, `<span class="word">ACTIVE`); n != 2 {
		t.Errorf("%d ports marked good", n)
	}
	if strings.Contains(got, `<span class="bad"`) {
		t.Error("a port that is down or waits for its subnet manager is marked bad")
	}
}

func TestUnknownIsNotDown(t *testing.T) {
	d := device("mlx5_0", 4, 9)
	d.Ports[0].State, d.Ports[0].Rate, d.Ports[0].PhysicalState = sysread.Maybe[int]{}, sysread.Maybe[rdma.Rate]{}, sysread.Maybe[int]{}
	got := page(t, of(answered(d)))
	checkTable(t, got)
	want(t, got, "2 ports: 1 not readable, 1 unknown (9).", "1 ? not readable not readable InfiniBand")
	wantNot(t, got, "1 DOWN", "Gb/s")
}

func TestDevicesThatShowNoPorts(t *testing.T) {
	plane := device("smi1")
	plane.Parent = "mlx5_0"
	got := page(t, of(answered(device("mlx5_0", 4)), hung("mlx5_1", 90*time.Second), hung("mlx5_2", 1), answered(device("mlx5_3")), answered(plane)))
	checkTable(t, got)
	want(t, got, "5 RDMA devices. 1 port: 1 ACTIVE. 2 devices do not answer.",
		"mlx5_1 ✗ has not answered for 1m30s", "mlx5_2 ✗ does not answer", "mlx5_3 mlx5_core 0000:18:00.0 ✗ no port could be read", "smi1 mlx5_core 0000:18:00.0 a plane of mlx5_0")
	want(t, page(t, of(hung("mlx5_1", 1))), "1 device does not answer.")
}

func TestNotes(t *testing.T) {
	d := device("mlx5_0", 4)
	d.Hidden = true
	d.Ports[0].Restricted = []rdma.Restriction{{Source: rdma.SourceCounters, All: true}, {Source: rdma.SourceHW}}
	got := page(t, of(answered(d)))
	want(t, got, "another network namespace; the driver refuses every file of counters/")
	wantNot(t, got, "hw_counters")
}

func TestErrors(t *testing.T) {
	s := of(answered(device("mlx5_0", 4)))
	for range mostShownErrors + 7 {
		s.Errors = append(s.Errors, snapshot.ErrorCount{ErrorKey: snapshot.ErrorKey{Collector: "rdma", Device: "mlx5_0", Port: "1", Source: "counters/x", Errno: "EIO"}, Count: 12})
	}
	got := page(t, s)
	checkTable(t, got)
	want(t, got, "could not be read", "mlx5_0 1 rdma counters/x EIO 12", "And 7 more in the JSON")
	if n := strings.Count(got, ">EIO<"); n != mostShownErrors {
		t.Errorf("%d errors shown", n)
	}
	s.Errors = s.Errors[:1]
	wantNot(t, page(t, s), "more in the metrics")
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "ü 漢": "ü 漢", "a\nb": "a\ufffdb", "\xff": "\ufffd", "": "",
		strings.Repeat("ü", mostText): strings.Repeat("ü", mostText), strings.Repeat("ü", mostText+1): strings.Repeat("ü", mostText) + "…",
	} {
		if got := printable(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

type brokenWriter struct{}

var errBroken = errors.New("broken")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestWriteError(t *testing.T) {
	if err := (Page{Snapshot: of()}).WriteHTML(brokenWriter{}); !errors.Is(err, errBroken) {
		t.Errorf("error %v", err)
	}
}
