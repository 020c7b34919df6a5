package main

import (
	"io"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/version"
)

// manFlag asks for the manual page. kingpin's own takes examples for running text.
const manFlag = "--help-man"

// writeMan writes the manual page, in section 8 since it is of a daemon's.
func writeMan(w io.Writer) error {
	app, _ := newApp()
	model := app.Model()
	m := &manual{}
	m.line(`.\" Made by gdr_exporter --help-man.`)
	m.line(`.TH GDR_EXPORTER 8 "` + buildDay() + `" "gdr_exporter ` + roff(version.Version) + `"`)
	m.section("NAME")
	m.line(`gdr_exporter \- ` + roff("Prometheus exporter for the health of RDMA and GPU interconnects"))
	m.section("SYNOPSIS")
	m.line(`.B gdr_exporter`)
	m.line(`[\fIflags\fR] [\fIcommand\fR [\fIarguments\fR]]`)
	m.section("DESCRIPTION")
	m.text(model.Help)
	m.section("COMMANDS")
	for _, command := range model.FlattenedCommands() {
		if !command.Hidden {
			m.command(command)
		}
	}
	m.section("FLAGS OF ALL COMMANDS")
	m.flags(model.Flags)
	m.section("EXIT STATUS")
	m.text("Of serve, topo, capture and state: 0 done, 1 something broke, 2 a mistake on the command line. " +
		"Commands that judge say above what theirs mean.")
	m.section("FILES")
	for _, file := range [][2]string{
		{defaultSocket, "where the running exporter takes commands"}, {defaultStateDir, "what it keeps past its end"},
	} {
		m.item(file[0], file[1])
	}
	m.section("SEE ALSO")
	m.line(".BR ibstat (8),\n.BR rdma (8),\n.BR nvidia-smi (1)")
	_, err := io.WriteString(w, m.String())
	return err
}

// buildDay is the day of the build, "" if it is not known: the page must not differ
// from one run to the next.
func buildDay() string {
	for _, form := range []string{time.RFC3339, "20060102-15:04:05"} {
		if at, err := time.Parse(form, version.BuildDate); err == nil {
			return at.UTC().Format(time.DateOnly)
		}
	}
	return ""
}

// manual is a manual page in the macros of man(7).
type manual struct{ strings.Builder }

func (m *manual) line(text string) { m.WriteString(text + "\n") }

func (m *manual) section(title string) { m.line(".SH " + title) }

// item is a term and what it means.
func (m *manual) item(term, text string) {
	m.line(".TP")
	m.line(`.B ` + roff(term))
	m.line(roff(text))
}

func (m *manual) command(c *kingpin.CmdModel) {
	usage := c.FullCommand
	for _, arg := range c.Args {
		usage += " " + arg.Name
	}
	m.line(".SS " + roff(usage))
	m.text(c.Help)
	m.flags(c.Flags)
}

func (m *manual) flags(flags []*kingpin.FlagModel) {
	for _, flag := range flags {
		if flag.Hidden {
			continue
		}
		name := "--" + flag.Name
		if flag.IsBoolFlag() && flag.Name != "help" && flag.Name != "version" {
			name = "--[no-]" + flag.Name
		} else if !flag.IsBoolFlag() {
			name += "=" + flag.FormatPlaceHolder()
		}
		if flag.Short != 0 {
			name = "-" + string(flag.Short) + ", " + name
		}
		m.item(name, flag.Help)
	}
}

// text writes paragraphs; those that are indented are examples.
func (m *manual) text(text string) {
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if !strings.HasPrefix(paragraph, "  ") {
			m.line(".PP")
			m.line(roff(paragraph))
			continue
		}
		m.line(".PP\n.RS 4\n.nf")
		for line := range strings.SplitSeq(paragraph, "\n") {
			m.line(roff(strings.TrimPrefix(line, "  ")))
		}
		m.line(".fi\n.RE")
	}
}

// roff writes text so that nothing in it is taken for a request or an escape.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

// asksForMan reports whether a command line asks for the manual page.
func asksForMan(args []string) bool { return slices.Contains(args, manFlag) }
