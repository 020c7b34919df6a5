package status

import "slices"

// pageSection is a part of the page below the matrix.
type pageSection struct {
	ID, Title string
	// Intro are sentences before all else.
	Intro  []string
	Facts  []fact
	Tables []*grid
	// Outro are sentences after all else.
	Outro []string
}

// fact is a term with what is known of it.
type fact struct {
	Term string
	Cell cell
}

// grid is a table of which each row begins with what it is of.
type grid struct {
	ID, Caption string
	Columns     []string
	Rows        [][]cell
	More        int // rows beyond
}

// cell is a cell of a grid.
type cell struct {
	Text string
	Look look // its sign stands before the text
	Long bool // it may be long
	// Link is a path on this server, LinkText what it is called; it stands after Text.
	Link, LinkText string
}

func textCell(t string) cell { return cell{Text: t} }

func longCell(t string) cell { return cell{Text: t, Long: true} }

func lookCell(l look, t string) cell { return cell{Text: t, Look: l} }

// optional is a text that may not be known.
func optional[T ~string](t *T) cell {
	if t == nil {
		return cell{}
	}
	return cell{Text: string(*t)}
}

// yesNo is whether something holds, with the look for each answer.
func yesNo(b *bool, yes, no look) cell {
	switch {
	case b == nil:
		return cell{Text: "not known", Look: lookOpen}
	case *b:
		return cell{Text: "yes", Look: yes}
	}
	return cell{Text: "no", Look: no}
}

// Looks of answers.
var (
	lookGood  = look{Class: "good", Sign: "✓"}
	lookBad   = look{Class: "bad", Sign: "✗"}
	lookWarn  = look{Class: "warn", Sign: "!"}
	lookOpen  = look{Class: "open", Sign: "?"}
	lookPlain = look{}
)

// add adds a row.
func (g *grid) add(cells ...cell) { g.Rows = append(g.Rows, cells) }

// put adds a grid to a section unless it is empty. Columns in which no row has
// anything are left out.
func (s *pageSection) put(g *grid) {
	if len(g.Rows) == 0 {
		return
	}
	for column := len(g.Columns) - 1; column > 0; column-- {
		if !slices.ContainsFunc(g.Rows, func(row []cell) bool { return !row[column].empty() }) {
			g.Columns = slices.Delete(g.Columns, column, column+1)
			for i := range g.Rows {
				g.Rows[i] = slices.Delete(g.Rows[i], column, column+1)
			}
		}
	}
	s.Tables = append(s.Tables, g)
}

func (c *cell) empty() bool { return c.Text == "" && c.Link == "" }

// say adds a fact unless nothing is known.
func (s *pageSection) say(term string, c cell) {
	if c.Text != "" {
		c.Long = true
		s.Facts = append(s.Facts, fact{term, c})
	}
}

// empty reports whether the section has nothing to show.
func (s *pageSection) empty() bool {
	return len(s.Intro)+len(s.Facts)+len(s.Tables)+len(s.Outro) == 0
}
