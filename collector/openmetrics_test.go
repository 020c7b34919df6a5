package collector

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
)

// openMetricsScript parses each text that it is given, as a length and so many
// bytes, with the format's reference parser: the one of the Python client, which
// the authors of OpenMetrics wrote as such. It answers the number of samples, or
// what is wrong.
//
// It is not Prometheus's own parser, which accepts more than the format allows,
// and whose module would double go.sum and raise what the exporter is built of.
const openMetricsScript = `
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
print("ready", flush=True)
while head := sys.stdin.buffer.readline():
    text = sys.stdin.buffer.read(int(head))
    try:
        print(sum(len(family.samples) for family in parse(text.decode("utf-8"))), flush=True)
    except Exception as error:
        print(repr(str(error)), flush=True)
`

// pythons are where the parser may be found: Debian's python3-prometheus-client is
// for Debian's Python alone.
var pythons = []string{"python3", "/usr/bin/python3"}

// openMetricsParser is the parser's process, for one text at a time.
type openMetricsParser struct {
	mu  sync.Mutex
	in  io.Writer
	out *bufio.Reader
}

// openMetrics returns the parser; nil if it is not installed. It ends with the
// tests, which hold its input open.
var openMetrics = sync.OnceValue(func() *openMetricsParser {
	for _, python := range pythons {
		if parser, err := startOpenMetrics(python); err == nil {
			return parser
		}
	}
	return nil
})

func startOpenMetrics(python string) (*openMetricsParser, error) {
	cmd := exec.CommandContext(context.Background(), python, "-c", openMetricsScript)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &openMetricsParser{in: in, out: bufio.NewReader(out)}
	if ready, err := p.out.ReadString('\n'); err != nil || ready != "ready\n" {
		return nil, errors.Join(err, cmd.Wait())
	}
	return p, nil
}

// parse returns the number of samples of a text, or why it is no OpenMetrics.
func (p *openMetricsParser) parse(text string) (samples int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := fmt.Fprintf(p.in, "%d\n%s", len(text), text); err != nil {
		return 0, err
	}
	answer, err := p.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	answer = strings.TrimSpace(answer)
	if samples, err = strconv.Atoi(answer); err != nil {
		return 0, errors.New(answer)
	}
	return samples, nil
}

// checkOpenMetrics says what is wrong with a family as OpenMetrics: line by line,
// and by the format's own parser where that is installed.
func checkOpenMetrics(text string, samples int) error {
	for line := range strings.Lines(text) {
		if line = strings.TrimSuffix(line, "\n"); !openMetricsLine.MatchString(line) {
			return fmt.Errorf("no OpenMetrics: %q", line)
		}
	}
	parser := openMetrics()
	if parser == nil {
		return nil
	}
	parsed, err := parser.parse(text + "# EOF\n")
	if err == nil && parsed != samples {
		err = fmt.Errorf("%d samples of %d", parsed, samples)
	}
	if err != nil {
		return fmt.Errorf("no OpenMetrics: %w", err)
	}
	return nil
}

// checkLint says what promlint finds in a family.
func checkLint(mf *dto.MetricFamily) error {
	problems, err := promlint.NewWithMetricFamilies([]*dto.MetricFamily{mf}).Lint()
	for _, problem := range problems {
		err = errors.Join(err, fmt.Errorf("%s: %s", problem.Metric, problem.Text))
	}
	return err
}

// TestOpenMetricsParser: the format's own parser reads the exporter's families of a
// page with all of their samples, and refuses what is none.
func TestOpenMetricsParser(t *testing.T) {
	parser := openMetrics()
	switch {
	case parser == nil && testing.Short():
		t.Skip("the OpenMetrics parser of python3-prometheus-client is not installed")
	case parser == nil:
		t.Fatal("the OpenMetrics parser of python3-prometheus-client is not installed")
	}
	page, want := "", 0
	for line := range strings.Lines(node8(t, nil).get("/metrics", "Accept", acceptOpenMetrics).Body.String()) {
		if strings.HasPrefix(line, "gdr_") {
			want++
		} else if fields := strings.Fields(line); len(fields) < 3 || !strings.HasPrefix(fields[2], "gdr_") {
			continue
		}
		page += line
	}
	if got, err := parser.parse(page + "# EOF\n"); err != nil || got != want || want < 500 {
		t.Errorf("%d samples of %d, %v", got, want, err)
	}
	for _, text := range []string{
		"gdr_x 1\n", "gdr_x 1\n# EOF\ngdr_y 1\n", "# TYPE gdr_x counter\ngdr_x 1\n# EOF\n", "# TYPE gdr_x gauge\ngdr_x{a=\"1\",a=\"2\"} 1\n# EOF\n",
		"# TYPE gdr_x gauge\ngdr_x{a=\"\n\"} 1\n# EOF\n", "# TYPE gdr_x gauge\ngdr_x one\n# EOF\n", "# TYPE gdr_x counter\ngdr_x_total -1\n# EOF\n",
	} {
		if got, err := parser.parse(text); err == nil {
			t.Errorf("%q is taken for OpenMetrics of %d samples", text, got)
		}
	}
}
