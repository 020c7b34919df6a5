package runbooks

import (
	"bytes"
	"fmt"
	"html/template"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/text"
)

// markdown renders the parts. It leaves out HTML that a text has.
var markdown = goldmark.New()

// anchors are the sections' names by their anchors in the files: headings in
// small letters.
var anchors = anchorsOf(sections)

func anchorsOf(sections map[string]Section) map[string]string {
	names := make(map[string]string, len(sections))
	for name := range sections {
		names[strings.ToLower(name)] = name
	}
	return names
}

// HTML is the part's text as HTML. Links to other sections lead to below root,
// "/runbooks/".
func (p Part) HTML(root string) (template.HTML, error) {
	source := []byte(p.Text)
	document := markdown.Parser().Parse(text.NewReader(source))
	err := ast.Walk(document, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		link, is := node.(*ast.Link)
		if !is || !entering {
			return ast.WalkContinue, nil
		}
		target, err := target(string(link.Destination), root)
		link.Destination = []byte(target)
		return ast.WalkContinue, err
	})
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	if err := markdown.Renderer().Render(&b, source, document); err != nil {
		return "", fmt.Errorf("render: %w", err)
	}
	return template.HTML(b.String()), nil //nolint:gosec // of the program's own files, and goldmark escapes them
}

// target is where a link of the files, "pcie.md#acs_redirect", leads to on the server.
func target(destination, root string) (string, error) {
	if strings.Contains(destination, "://") {
		return destination, nil
	}
	_, anchor, _ := strings.Cut(destination, "#")
	name, found := anchors[anchor]
	if !found {
		return "", fmt.Errorf("the link %s leads to no section", destination)
	}
	return root + name, nil
}
