package status

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var shots = flag.String("shots", "", "directory to write screenshots of the pages to")

// browser is a headless Chromium, driven by its own protocol over two pipes.
type browser struct {
	t       *testing.T
	to      *os.File
	session string
	last    int
	replies chan reply
	events  []reply
}

// reply is a message of the browser's: an answer, or an event with a Method.
type reply struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// startBrowser starts Chromium, or skips the test without one.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	if testing.Short() {
		t.Skip("short: no browser")
	}
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil && path == "" {
			path = found
		}
	}
	if path == "" {
		t.Skip("no chromium here: the pages are not looked at in a browser")
	}
	in, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	command := exec.CommandContext(ctx, path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
		"--disable-background-networking", "--disable-component-update", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe", "about:blank")
	command.ExtraFiles = []*os.File{in, out}
	command.WaitDelay = 5 * time.Second
	if err := command.Start(); err != nil {
		cancel()
		t.Skipf("chromium does not start: %v", err)
	}
	in.Close()
	out.Close()
	b := &browser{t: t, to: to, replies: make(chan reply, 1024)}
	go b.read(from)
	t.Cleanup(func() {
		b.quit()
		cancel()
		_ = command.Wait()
		to.Close()
	})
	b.open()
	return b
}

// quit lets the browser end by itself, so that nothing writes to its directory while
// that is removed.
func (b *browser) quit() {
	_, _ = b.to.WriteString(`{"id":1000000,"method":"Browser.close"}` + "\x00")
	for end := time.After(5 * time.Second); ; {
		select {
		case _, more := <-b.replies:
			if !more {
				return
			}
		case <-end:
			return
		}
	}
}

// read reads the browser's messages, which end with a zero byte.
func (b *browser) read(from *os.File) {
	defer close(b.replies)
	defer from.Close()
	var pending []byte
	chunk := make([]byte, 1<<16)
	for {
		n, err := from.Read(chunk)
		pending = append(pending, chunk[:n]...)
		for {
			message, rest, whole := bytes.Cut(pending, []byte{0})
			if !whole {
				break
			}
			pending = slices.Clone(rest)
			var r reply
			if json.Unmarshal(message, &r) == nil {
				b.replies <- r
			}
		}
		if err != nil {
			return
		}
	}
}

func (b *browser) open() {
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Network", "Log", "Runtime", "Accessibility"} {
		b.call(domain+".enable", nil, nil)
	}
}

// call asks the browser something. Events that come meanwhile are kept.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	b.last++
	request := map[string]any{"id": b.last, "method": method}
	if params != nil {
		request["params"] = params
	}
	if b.session != "" {
		request["sessionId"] = b.session
	}
	text, err := json.Marshal(request)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(text, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	r := b.wait(method, func(r *reply) bool { return r.ID == b.last })
	if len(r.Error) > 0 {
		b.t.Fatalf("%s: %s", method, r.Error)
	}
	if result != nil {
		if err := json.Unmarshal(r.Result, result); err != nil {
			b.t.Fatalf("%s: %v", method, err)
		}
	}
}

// wait waits for a message, and keeps the others.
func (b *browser) wait(what string, is func(*reply) bool) reply {
	b.t.Helper()
	for end := time.After(time.Minute); ; {
		select {
		case r, more := <-b.replies:
			if !more {
				b.t.Fatalf("%s: chromium has ended", what)
			}
			if r.Method != "" {
				b.events = append(b.events, r)
			}
			if is(&r) {
				return r
			}
		case <-end:
			b.t.Fatalf("%s: no answer", what)
		}
	}
}

// visit shows a page in a window of some width.
func (b *browser) visit(url string, width int, dark bool) {
	b.t.Helper()
	scheme := map[bool]string{true: "dark", false: "light"}[dark]
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	b.events = nil
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	b.wait("load", func(r *reply) bool { return r.Method == "Page.loadEventFired" })
}

// number evaluates an expression to a number.
func (b *browser) number(expression string) float64 {
	b.t.Helper()
	var answer struct{ Result struct{ Value float64 } }
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &answer)
	return answer.Result.Value
}

// shoot writes screenshots of the page, from above, if that is wanted. One of the
// whole would be too tall to be looked at.
func (b *browser) shoot(name string, width int) {
	if *shots == "" {
		return
	}
	const most, height = 4, 1500
	whole := int(b.number("document.documentElement.scrollHeight"))
	for n := 0; n < most && n*height < whole; n++ {
		clip := map[string]any{"x": 0, "y": n * height, "width": width, "height": min(height, whole-n*height), "scale": 1}
		var shot struct{ Data string }
		b.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true, "clip": clip}, &shot)
		png, err := base64.StdEncoding.DecodeString(shot.Data)
		if err := errors.Join(err, os.WriteFile(filepath.Join(*shots, fmt.Sprintf("%s.%d.png", name, n+1)), png, 0o600)); err != nil {
			b.t.Error(err)
		}
	}
}

// checkEvents checks that nothing was asked for but the page itself, and that the
// browser had nothing to say.
func (b *browser) checkEvents(url string) {
	b.t.Helper()
	pages := 0
	for _, e := range b.events {
		switch e.Method {
		case "Network.requestWillBeSent":
			var sent struct{ Request struct{ URL string } }
			if err := json.Unmarshal(e.Params, &sent); err != nil {
				b.t.Error(err)
			}
			switch {
			case sent.Request.URL == url:
				pages++
			case !strings.HasPrefix(sent.Request.URL, "data:"):
				b.t.Errorf("the page asks for %s", sent.Request.URL)
			}
		case "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown":
			b.t.Errorf("the browser says %s", e.Params)
		}
	}
	if pages != 1 {
		b.t.Errorf("%d requests for the page", pages)
	}
}

// roles counts the roles in the page's accessibility tree, and the nodes of a role
// that must have a name and have none.
func (b *browser) roles() (count map[string]int, unnamed []string) {
	b.t.Helper()
	var tree struct {
		Nodes []struct {
			Ignored    bool
			Role, Name struct{ Value any }
		}
	}
	b.call("Accessibility.getFullAXTree", nil, &tree)
	count = map[string]int{}
	for _, node := range tree.Nodes {
		if node.Ignored {
			continue
		}
		role, name := fmt.Sprint(node.Role.Value), fmt.Sprint(node.Name.Value)
		count[role]++
		if strings.TrimSpace(name) == "" && slices.Contains([]string{"link", "heading", "region", "navigation", "table", "rowheader", "columnheader"}, role) {
			unnamed = append(unnamed, role)
		}
	}
	return count, unnamed
}

// serve serves one page.
func serve(t *testing.T, write func(w http.ResponseWriter) error) (url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", Policy)
		if err := write(w); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL + "/"
}

// TestBrowser looks at pages in a real browser, wide and narrow, light and dark.
func TestBrowser(t *testing.T) {
	b := startBrowser(t)
	for name, page := range browserPages(t) {
		url := serve(t, func(w http.ResponseWriter) error { return page.WriteHTML(w) })
		for _, width := range []int{1400, 390} {
			for _, dark := range []bool{false, true} {
				if *shots == "" && dark != (width < 600) {
					continue // what differs between these is looked at in the other two
				}
				t.Run(fmt.Sprintf("%s/%d/dark=%v", name, width, dark), func(t *testing.T) {
					b.t = t
					b.visit(url, width, dark)
					b.checkEvents(url)
					checkRendered(t, b, width)
					b.shoot(fmt.Sprintf("%s-%d-%s", name, width, map[bool]string{true: "dark", false: "light"}[dark]), width)
				})
			}
		}
	}
	b.t = t
}

// checkRendered checks that only tables scroll sideways, and that those who do not see
// the page are told what it is made of, at every width.
func checkRendered(t *testing.T, b *browser, width int) {
	t.Helper()
	if inner, whole := b.number("innerWidth"), b.number("document.documentElement.scrollWidth"); inner != float64(width) || whole > inner {
		t.Errorf("a page of %g in a window of %g, want %d", whole, inner, width)
	}
	if small := b.number(`[...document.querySelectorAll('main, main p, main td')].filter(e => e.checkVisibility() && parseFloat(getComputedStyle(e).fontSize) < 11).length`); small > 0 {
		t.Errorf("%g texts too small to read", small)
	}
	count, unnamed := b.roles()
	if len(unnamed) > 0 {
		t.Errorf("without a name: %v", unnamed)
	}
	if count["main"] != 1 || count["banner"] != 1 || count["contentinfo"] != 1 || count["navigation"] != 2 || count["heading"] < 2 {
		t.Errorf("landmarks and headings: %v", count)
	}
	tables := int(b.number("document.querySelectorAll('table').length"))
	if count["table"] != tables || tables > 0 && (count["row"] < tables || count["rowheader"] < tables || count["columnheader"] < tables) {
		t.Errorf("%d tables: %v", tables, count)
	}
	if contrast := b.number(contrastScript); contrast < 4.5 {
		t.Errorf("a contrast of %.2f, want 4.5", contrast)
	}
}

// contrastScript is the least contrast of any text with what is behind it (WCAG 2).
const contrastScript = `(() => {
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const parse = s => s.match(/[\d.]+/g).map(Number);
  let least = 21;
  for (const e of document.querySelectorAll('body *')) {
    if (!e.checkVisibility() || ![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    let at = e, back = null;
    for (; at && !back; at = at.parentElement) { const c = parse(getComputedStyle(at).backgroundColor); if (c.length < 4 || c[3] > 0) back = c; }
    const a = light(parse(getComputedStyle(e).color).slice(0, 3)), b = light((back || [255, 255, 255]).slice(0, 3));
    least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return least;
})()`

// TestBrowserRunbooks looks at the runbooks, on a phone in the dark.
func TestBrowserRunbooks(t *testing.T) {
	b := startBrowser(t)
	page := captured(t, "gdr-lost", 3*time.Second)
	for name, write := range map[string]func(w io.Writer) error{
		"runbooks": page.WriteRunbooks,
		"runbook":  func(w io.Writer) error { _, err := page.WriteRunbook(w, "path_staged"); return err },
		"alert":    func(w io.Writer) error { _, err := page.WriteRunbook(w, "GDRPathStaged"); return err },
	} {
		url := serve(t, func(w http.ResponseWriter) error { return write(w) })
		b.visit(url, 390, true)
		b.checkEvents(url)
		if inner, whole := b.number("innerWidth"), b.number("document.documentElement.scrollWidth"); inner != 390 || whole > inner {
			t.Errorf("%s: a page of %g in a window of %g", name, whole, inner)
		}
		if contrast := b.number(contrastScript); contrast < 4.5 {
			t.Errorf("%s: a contrast of %.2f, want 4.5", name, contrast)
		}
		if count, unnamed := b.roles(); len(unnamed) > 0 || count["main"] != 1 || count["contentinfo"] != 1 {
			t.Errorf("%s: unnamed %v, %v", name, unnamed, count)
		}
		b.shoot(name+"-390-dark", 390)
	}
}
