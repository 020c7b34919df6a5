package chart

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// readmeFile is the chart's README, with the table of values between two marks.
const (
	readmeFile  = Folder + "/README.md"
	valuesFile  = Folder + "/values.yaml"
	beginValues = "<!-- values: generated from values.yaml by \"make chart\" -->\n"
	endValues   = "<!-- end of values -->\n"
	aboutMark   = "# -- "
)

// Value is a row of the table: a value that may be set, by its path.
type Value struct {
	Path, Default, About string
}

// Values are the rows for values.yaml. A value without an explanation is an
// error, unless all below it have one.
func Values(text []byte) ([]Value, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("%s: %w", valuesFile, err)
	}
	if len(document.Content) != 1 {
		return nil, fmt.Errorf("%s: is not one document", valuesFile)
	}
	return valuesOf(document.Content[0], "")
}

func valuesOf(node *yaml.Node, prefix string) ([]Value, error) {
	var values []Value
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		path := prefix + key.Value
		about, explained := strings.CutPrefix(lastLine(key.HeadComment), aboutMark)
		switch {
		case explained:
			shown, err := shownDefault(value)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			values = append(values, Value{path, shown, about})
		case value.Kind == yaml.MappingNode && len(value.Content) > 0:
			below, err := valuesOf(value, path+".")
			if err != nil {
				return nil, err
			}
			values = append(values, below...)
		default:
			return nil, fmt.Errorf("%s: no line %q before %s", valuesFile, aboutMark, path)
		}
	}
	return values, nil
}

// lastLine of a comment: those before it may speak of several values.
func lastLine(comment string) string {
	lines := strings.Split(comment, "\n")
	return lines[len(lines)-1]
}

// shownDefault is a value on one line.
func shownDefault(value *yaml.Node) (string, error) {
	plain := *value
	flow(&plain)
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	if err := encoder.Encode(&plain); err != nil {
		return "", fmt.Errorf("default: %w", err)
	}
	return strings.Join(strings.Fields(out.String()), " "), nil
}

// flow lets a node and all below it be written in brackets.
func flow(node *yaml.Node) {
	if node.Kind == yaml.MappingNode || node.Kind == yaml.SequenceNode {
		node.Style = yaml.FlowStyle
	}
	for _, child := range node.Content {
		flow(child)
	}
}

// Readme is the chart's README with the table of values of now.
func Readme(root string) (File, error) {
	text, err := os.ReadFile(filepath.Join(root, readmeFile))
	if err != nil {
		return File{}, fmt.Errorf("chart's README: %w", err)
	}
	source, err := os.ReadFile(filepath.Join(root, valuesFile))
	if err != nil {
		return File{}, fmt.Errorf("chart's values: %w", err)
	}
	values, err := Values(source)
	if err != nil {
		return File{}, err
	}
	before, rest, begins := strings.Cut(string(text), beginValues)
	_, after, ends := strings.Cut(rest, endValues)
	if !begins || !ends {
		return File{}, errors.New(readmeFile + ": the marks around the table of values are missing")
	}
	var table strings.Builder
	table.WriteString("\n| Value | Default | What |\n| --- | --- | --- |\n")
	for _, v := range values {
		fmt.Fprintf(&table, "| `%s` | `%s` | %s |\n", v.Path, strings.ReplaceAll(v.Default, "|", `\|`), strings.ReplaceAll(v.About, "|", `\|`))
	}
	return File{readmeFile, []byte(before + beginValues + table.String() + "\n" + endValues + after)}, nil
}
