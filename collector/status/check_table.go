package status

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	prettytext "github.com/jedib0t/go-pretty/v6/text"
)

// CheckStyle is how a check's table is written.
type CheckStyle struct {
	Width int  // of the terminal, in columns; 0: 120
	Color bool // with the escape sequences of a terminal
}

// Widths of a check's table.
const (
	checkWidth      = 120 // where no terminal has one
	checkLeastWidth = 60
	checkMostWidth  = 200
	checkTitleMost  = 24
)

// checkSigns stand before the words, for those who see no colours.
var checkSigns = map[CheckStatus]struct{ sign, word, color string }{
	CheckOK: {"+", "ok", "32"}, CheckInfo: {" ", "", ""}, CheckWarning: {"!", "warning", "33"},
	CheckCritical: {"X", "critical", "1;31"}, CheckNotJudged: {"?", "not judged", "36"},
}

// mark is a status as people see it.
func (s CheckStyle) mark(status CheckStatus) string {
	sign := checkSigns[status]
	return s.paint(strings.TrimRight(sign.sign+" "+sign.word, " "), sign.color)
}

func (s CheckStyle) paint(text, color string) string {
	if !s.Color || color == "" || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

func (s CheckStyle) width() int {
	if s.Width <= 0 {
		return checkWidth
	}
	return min(max(s.Width, checkLeastWidth), checkMostWidth)
}

// WriteTable writes the check for people: the answer first, then what keeps it from
// being whole, findings with what to do, and the inspection line by line.
func (c *Check) WriteTable(w io.Writer, style CheckStyle) error {
	var b strings.Builder
	width := style.width()
	if c.Replay != "" {
		b.WriteString(prettytext.WrapSoft(cleaned(c.Replay), width) + "\n")
	}
	b.WriteString(style.paint(c.Headline, checkSigns[c.Status].color) + "\n")
	c.writeUnjudged(&b, width)
	c.writeFindings(&b, style)
	for i := range c.Groups {
		c.Groups[i].write(&b, style)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// checkMostNamed bounds what the table has of what could not be judged.
const checkMostNamed = 8

func (c *Check) writeUnjudged(b *strings.Builder, width int) {
	if len(c.Unjudged) == 0 {
		return
	}
	b.WriteString("\nNot judged\n")
	for i, why := range c.Unjudged {
		if i == checkMostNamed {
			fmt.Fprintf(b, " ? and %d more (--output=json has all)\n", len(c.Unjudged)-i)
			break
		}
		writeIndentedText(b, " ? ", "   ", why, width)
	}
}

// writeFindings writes those that ask for something; facts are with their lines.
func (c *Check) writeFindings(b *strings.Builder, style CheckStyle) {
	if c.Counts.Critical+c.Counts.Warning+c.Counts.Info == 0 {
		return
	}
	b.WriteString("\nFindings\n")
	for i := range c.Findings {
		f := &c.Findings[i]
		if i > 0 && c.Findings[i-1].Rule == f.Rule {
			continue // written with the one before
		}
		sign := checkSigns[f.Severity]
		if f.Severity == CheckInfo {
			sign.sign, sign.word = "i", "info"
		}
		fmt.Fprintf(b, " %s\n", style.paint(fmt.Sprintf("%s %s %s", sign.sign, sign.word, f.Rule), sign.color))
		c.writeSeen(b, i, style.width())
		writeIndentedText(b, "   do: ", "       ", f.Do, style.width())
	}
}

// writeSeen writes what a rule's findings, of which the first is at a place, have seen.
func (c *Check) writeSeen(b *strings.Builder, first, width int) {
	rule, written := c.Findings[first].Rule, 0
	for i := first; i < len(c.Findings) && c.Findings[i].Rule == rule; i++ {
		if written == checkMostNamed {
			more := slices.IndexFunc(c.Findings[i:], func(f CheckFinding) bool { return f.Rule != rule })
			if more < 0 {
				more = len(c.Findings) - i
			}
			fmt.Fprintf(b, "   and %d more (--output=json has all)\n", more)
			return
		}
		f := &c.Findings[i]
		about := f.about()
		if about != "" {
			about += ": "
		}
		writeIndentedText(b, "   ", "     ", about+f.Seen, width)
		written++
	}
}

// writeIndentedText writes text over as many lines as it takes.
func writeIndentedText(b *strings.Builder, first, rest, text string, width int) {
	indent := first
	for line := range strings.SplitSeq(prettytext.WrapSoft(text, width-len(first)), "\n") {
		b.WriteString(indent + strings.TrimRight(line, " ") + "\n")
		indent = rest
	}
}

// write writes a group: sign and word, what was inspected, what was seen.
func (g *CheckGroup) write(b *strings.Builder, style CheckStyle) {
	fmt.Fprintf(b, "\n%s\n", g.Title)
	out := table.NewWriter()
	out.SetStyle(plainStyle())
	const words, margins = 12, 7
	out.SetColumnConfigs([]table.ColumnConfig{
		{Number: 1, WidthMin: words},
		{Number: 2, WidthMin: checkTitleMost, WidthMax: checkTitleMost, WidthMaxEnforcer: prettytext.WrapSoft},
		{Number: 3, WidthMax: style.width() - words - checkTitleMost - margins, WidthMaxEnforcer: prettytext.WrapSoft},
	})
	for i := range g.Lines {
		line := &g.Lines[i]
		seen := line.Seen
		if line.Do != "" && line.Status == CheckNotJudged && !strings.Contains(seen, line.Do) {
			seen += " [" + line.Do + "]"
		}
		out.AppendRow(table.Row{style.mark(line.Status), line.Title, seen})
	}
	for line := range strings.Lines(out.Render()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
}
