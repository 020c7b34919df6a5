package status

import (
	"io"

	"github.com/jedib0t/go-pretty/v6/table"
	prettytext "github.com/jedib0t/go-pretty/v6/text"
)

// plainStyle is how all tables of the command line look: no lines, headers as written.
func plainStyle() table.Style {
	style := table.StyleLight
	style.Options = table.OptionsNoBordersAndSeparators
	style.Format.Header = prettytext.FormatDefault
	return style
}

// NewTable returns an empty table of that look, whose Render writes to w.
func NewTable(w io.Writer, header ...any) table.Writer {
	out := table.NewWriter()
	out.SetOutputMirror(w)
	out.SetStyle(plainStyle())
	out.AppendHeader(header)
	return out
}

func newTable(w io.Writer, header ...any) table.Writer { return NewTable(w, header...) }
