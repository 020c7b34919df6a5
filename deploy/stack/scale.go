package stack

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v2"
)

// Rules scales a file of Prometheus rules to the clock, see [Clock.Expr]. Groups are
// evaluated no more often than least on the wall clock: they see nothing new before.
func (c Clock) Rules(text []byte, least time.Duration) ([]byte, error) {
	return c.edit(text, func(key string, value string) (string, error) {
		switch key {
		case "for", "keep_firing_for", "query_offset":
			return c.duration(value, 0)
		case "interval":
			return c.duration(value, least)
		case "expr":
			return c.Expr(value)
		}
		return value, nil
	})
}

// edit changes the strings of a YAML text by their keys; all else stays.
func (c Clock) edit(text []byte, change func(key, value string) (string, error)) ([]byte, error) {
	var root yaml.MapSlice
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, err
	}
	if err := editBelow(root, change); err != nil {
		return nil, err
	}
	return yaml.Marshal(root)
}

func editBelow(value any, change func(key, value string) (string, error)) error {
	switch value := value.(type) {
	case yaml.MapSlice:
		for i := range value {
			item := &value[i]
			text, is := item.Value.(string)
			if !is {
				if err := editBelow(item.Value, change); err != nil {
					return err
				}
				continue
			}
			key, _ := item.Key.(string)
			changed, err := change(key, text)
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			item.Value = changed
		}
	case []any:
		for i := range value {
			if err := editBelow(value[i], change); err != nil {
				return err
			}
		}
	}
	return nil
}

// duration scales a duration of a configuration, to no less than least.
func (c Clock) duration(text string, least time.Duration) (string, error) {
	d, err := model.ParseDuration(text)
	if err != nil {
		return "", err
	}
	// Prometheus counts in milliseconds.
	scaled := max(c.Real(time.Duration(d)).Truncate(time.Millisecond), least)
	return model.Duration(scaled).String(), nil
}

// perSecond are functions whose result is by a second of the wall clock.
var perSecond = map[string]bool{"rate": true, "irate": true, "deriv": true}

// Expr scales a PromQL expression to the clock: ranges and offsets become shorter, rates
// are divided, for a counter counts faster, and time() becomes the clock's. Numbers stay
// as they are: what they are compared with is by the clock then.
func (c Clock) Expr(expr string) (string, error) {
	p := parser.NewParser(parser.Options{})
	if _, err := p.ParseExpr(expr); err != nil {
		return "", err
	}
	scaled, err := c.tokens(lex(expr))
	if err != nil {
		return "", err
	}
	if _, err := p.ParseExpr(scaled); err != nil {
		return "", fmt.Errorf("scaled to %s: %w", scaled, err)
	}
	return scaled, nil
}

// lex splits an expression that is known to be one into its tokens.
func lex(expr string) []parser.Item {
	var items []parser.Item
	lexer := parser.Lex(expr)
	for {
		var item parser.Item
		lexer.NextItem(&item)
		if item.Typ == parser.EOF || item.Typ == parser.ERROR {
			return items
		}
		if item.Typ != parser.COMMENT {
			items = append(items, item)
		}
	}
}

// tokens writes an expression's tokens, scaled.
func (c Clock) tokens(items []parser.Item) (string, error) {
	var b strings.Builder
	var open []bool // parentheses, and which of them are of a rate
	for i := 0; i < len(items); i++ {
		item := items[i]
		called := i+1 < len(items) && items[i+1].Typ == parser.LEFT_PAREN
		switch {
		case item.Typ == parser.IDENTIFIER && called && item.Val == "time":
			b.WriteString(c.promQL())
			i += 2 // time has no arguments
		case item.Typ == parser.IDENTIFIER && called && perSecond[item.Val]:
			b.WriteString("(" + item.Val + "(")
			open = append(open, true)
			i++
		case item.Typ == parser.LEFT_PAREN:
			b.WriteString("(")
			open = append(open, false)
		case item.Typ == parser.RIGHT_PAREN:
			b.WriteString(")")
			if open[len(open)-1] {
				b.WriteString(" / " + c.factor() + ")")
			}
			open = open[:len(open)-1]
		case item.Typ == parser.DURATION:
			scaled, err := c.duration(item.Val, time.Millisecond)
			if err != nil {
				return "", err
			}
			b.WriteString(scaled)
		default:
			b.WriteString(item.Val)
		}
		b.WriteString(" ")
	}
	return strings.TrimSpace(b.String()), nil
}
