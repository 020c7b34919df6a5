package status

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/jedib0t/go-pretty/v6/table"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// Control is what the daemon says of itself over its control, in the form of
// /api/v1/control and gdr_exporter ctl status. What is not known is null.
type Control struct {
	Interval        float64 `json:"interval_seconds"` // 0: no runs are scheduled
	Off             string  `json:"off,omitempty"`    // why nothing is ever measured
	Isolation       string  `json:"isolation"`        // where runs are made: in_process or process
	IsolationReason string  `json:"isolation_reason,omitempty"`

	QuiescedUntil *time.Time `json:"quiesced_until"` // null: not quiesced
	// Released: the process has no driver file open, and nothing hangs in one.
	Released  bool            `json:"released"`
	OpenFiles []string        `json:"open_driver_files"`
	Problem   string          `json:"problem,omitempty"` // what did not let go
	Restart   *ControlRestart `json:"restart,omitempty"` // a fresh start that is wanted

	Running *prober.Pair  `json:"running"` // the pair that is being measured
	Pairs   []ControlPair `json:"pairs"`
}

// ControlRestart is a fresh start that is wanted.
type ControlRestart struct {
	Reason  string `json:"reason"`
	Blocked string `json:"blocked,omitempty"` // what hangs meanwhile
}

// ControlPair is what is known of a pair.
type ControlPair struct {
	prober.Pair
	Distance string `json:"distance"`

	LastAttempt *time.Time `json:"last_attempt"`
	Due         *time.Time `json:"due"`  // when it is to be measured next; null: never by itself
	Skip        string     `json:"skip"` // why it is due and not measured, "" if nothing keeps it from that
	// Standing is the result that stands, Unconfirmed one that would worsen it.
	Standing    *ControlRun `json:"standing"`
	Unconfirmed *ControlRun `json:"unconfirmed"`
	Withdrawn   string      `json:"withdrawn,omitempty"` // why there is no full result any more
	Hung        *time.Time  `json:"hung_since"`
	HungStage   string      `json:"hung_stage,omitempty"`
}

// ControlRun is a run that was carried through.
type ControlRun struct {
	Depth   string    `json:"depth"`
	Time    time.Time `json:"time"`
	Outcome string    `json:"outcome"`
	Reasons []string  `json:"reasons"` // why it is not fine
	// BytesPerSecond and Ratio, to the host path, are of the path gpu; null if it was
	// not measured.
	BytesPerSecond *float64 `json:"bytes_per_second"`
	Ratio          *float64 `json:"ratio_to_host"`
}

// Attempts is what came of the command to measure now.
type Attempts struct {
	Attempts []Attempt `json:"attempts"`
}

// Attempt is what came of it for a pair.
type Attempt struct {
	prober.Pair
	Depth  string      `json:"depth"`
	Skip   string      `json:"skip"`   // why there was no run, "" if there was one
	Result string      `json:"result"` // how the run ended, "" if there was none
	Text   string      `json:"text"`   // why it is not fine
	Run    *ControlRun `json:"run"`
}

// NewControl takes what the prober shows.
func NewControl(s *prober.Status) *Control {
	c := &Control{
		Interval: s.Interval.Seconds(), Isolation: string(s.Isolation), IsolationReason: s.IsolationReason,
		OpenFiles: []string{}, Running: s.Running, Pairs: make([]ControlPair, 0, len(s.Pairs)),
	}
	for i := range s.Pairs {
		pair := newControlPair(&s.Pairs[i])
		if s.Interval == 0 {
			pair.Due = nil
		}
		c.Pairs = append(c.Pairs, pair)
	}
	return c
}

func newControlPair(p *prober.PairStatus) ControlPair {
	return ControlPair{
		Pair: p.Pair, Distance: p.Distance, LastAttempt: timeOrNull(p.LastAttempt), Due: timeOrNull(p.Due), Skip: string(p.Skip),
		Standing: newControlRun(p.Standing()), Unconfirmed: newControlRun(p.Unconfirmed), Withdrawn: p.Withdrawn,
		Hung: timeOrNull(p.Hung), HungStage: string(p.HungStage),
	}
}

func timeOrNull(t time.Time) *time.Time { return pointer(!t.IsZero(), t) }

// NewAttempts takes what came of a request.
func NewAttempts(attempts []prober.Attempt) *Attempts {
	a := &Attempts{Attempts: make([]Attempt, 0, len(attempts))}
	for i := range attempts {
		from := &attempts[i]
		a.Attempts = append(a.Attempts, Attempt{from.Pair, string(from.Depth), string(from.Skip), string(from.Result), from.Text, newControlRun(from.Completed)})
	}
	return a
}

func newControlRun(c *prober.Completed) *ControlRun {
	if c == nil {
		return nil
	}
	run := &ControlRun{Depth: string(c.Depth), Time: c.Time, Outcome: string(c.Judgement.Outcome), Reasons: c.Judgement.Reasons}
	if run.Reasons == nil {
		run.Reasons = []string{}
	}
	for i := range c.Result.Paths {
		if path := &c.Result.Paths[i]; path.Path == loopback.PathGPU {
			run.BytesPerSecond, run.Ratio = orNull(path.BytesPerSecond), orNull(path.Ratio)
		}
	}
	return run
}

func orNull(m sysread.Maybe[float64]) *float64 { return pointer(m.Known, m.Value) }

// WriteTable writes it for a terminal, at a time.
func (c *Control) WriteTable(w io.Writer, now time.Time) error {
	var b strings.Builder
	for _, line := range c.lines(now) {
		b.WriteString(cleaned(line) + "\n")
	}
	if len(c.Pairs) > 0 {
		b.WriteString("\n")
		out := newTable(&b, "GPU", "NIC", "port", "distance", "result", "rate", "of host", "measured", "next", "remarks")
		for i := range c.Pairs {
			out.AppendRow(c.Pairs[i].row(now))
		}
		out.Render()
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// lines are what is not of a pair.
func (c *Control) lines(now time.Time) []string {
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	switch {
	case c.Off != "":
		say("measuring: off; %s", c.Off)
	case c.Interval == 0:
		say("measuring: on demand only (--probe.interval=0)")
	default:
		say("measuring: every %s when idle", span(time.Duration(c.Interval*float64(time.Second))))
	}
	isolation := "in the exporter's own process"
	if c.Isolation == string(prober.InChild) {
		isolation = "in child processes"
	}
	if c.IsolationReason != "" {
		isolation += ": " + c.IsolationReason
	}
	say("runs are made %s", isolation)
	if c.Running != nil {
		say("running: GPU %s and %s port %d", c.Running.GPU, c.Running.Device, c.Running.Port)
	}
	if c.QuiescedUntil != nil {
		say("quiesced for another %s, until %s", span(c.QuiescedUntil.Sub(now)), c.QuiescedUntil.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	if c.Released {
		say("driver files: none is open")
	} else {
		say("driver files: %s", strings.Join(c.Held(), "; "))
	}
	if c.Restart != nil {
		say("a fresh start is wanted: %s", c.Restart.Reason)
	}
	if len(c.Pairs) == 0 {
		say("no pair is to be measured")
	}
	return lines
}

// Held says what is not released.
func (c *Control) Held() []string {
	var held []string
	if len(c.OpenFiles) > 0 {
		held = append(held, "open: "+strings.Join(c.OpenFiles, " "))
	}
	if c.Problem != "" {
		held = append(held, c.Problem)
	}
	if c.Restart != nil && c.Restart.Blocked != "" {
		held = append(held, "a fresh start would close them, but would wait for what hangs: "+c.Restart.Blocked)
	}
	return held
}

func (p *ControlPair) row(now time.Time) table.Row {
	result, rate, ratio, measured, next := "-", "-", "-", "never", "-"
	if run := p.Standing; run != nil {
		result, measured = run.Outcome, span(now.Sub(run.Time))+" ago"
		if run.Depth != string(prober.DepthFull) {
			result += " (" + run.Depth + ")"
		}
		if p.Withdrawn == "" && run.BytesPerSecond != nil {
			rate = gigabytes(run.BytesPerSecond)
		}
		if p.Withdrawn == "" {
			ratio = formatted("%.2f", run.Ratio)
		}
	}
	switch {
	case p.Due == nil:
	case p.Due.After(now):
		next = "in " + span(p.Due.Sub(now))
	default:
		next = "due"
	}
	return table.Row{p.GPU, printable(p.Device), p.Port, p.Distance, result, rate, ratio, measured, next, cleaned(strings.Join(p.remarks(now), "; "))}
}

// remarks are why there is no newer or better result.
func (p *ControlPair) remarks(now time.Time) []string {
	var remarks []string
	if p.Hung != nil {
		remarks = append(remarks, fmt.Sprintf("a run hangs since %s in %s", span(now.Sub(*p.Hung)), p.HungStage))
	}
	if p.Skip != "" {
		remarks = append(remarks, "not measured: "+p.Skip)
	}
	if p.Unconfirmed != nil {
		remarks = append(remarks, "to be confirmed: "+strings.Join(append([]string{p.Unconfirmed.Outcome}, p.Unconfirmed.Reasons...), ", "))
	}
	if p.Withdrawn != "" {
		remarks = append(remarks, "withdrawn: "+p.Withdrawn)
	}
	if p.Standing != nil {
		remarks = append(remarks, p.Standing.Reasons...)
	}
	return remarks
}

// WriteTable writes it for a terminal.
func (a *Attempts) WriteTable(w io.Writer) error {
	out := newTable(w, "GPU", "NIC", "port", "result", "rate", "of host", "remarks")
	for i := range a.Attempts {
		out.AppendRow(a.Attempts[i].row())
	}
	out.Render()
	return nil
}

func (a *Attempt) row() table.Row {
	result, rate, ratio := a.Result, "-", "-"
	if a.Skip != "" {
		result = "not measured: " + a.Skip
	}
	if a.Run != nil && a.Run.BytesPerSecond != nil {
		rate, ratio = gigabytes(a.Run.BytesPerSecond), formatted("%.2f", a.Run.Ratio)
	}
	return table.Row{a.GPU, printable(a.Device), a.Port, result, rate, ratio, cleaned(a.Text)}
}

// cleaned is printable for text that is shown whole.
func cleaned(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// span is a duration as people say it, to two units at most.
func span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}
