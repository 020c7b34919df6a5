// Package runbooks holds what to do about each alert and each finding, for
// /runbooks/NAME.
package runbooks

import (
	"embed"
	"slices"
	"strings"
)

//go:embed *.md
var files embed.FS

// Parts are the titles of what every section has, in this order.
var Parts = []string{"Means", "Job", "Confirm", "Fix", "Ignore"}

// Part is one paragraph of a section.
type Part struct {
	Title string // one of Parts
	Text  string // Markdown: code in backticks, links, and no other markup
}

// Section is the runbook of an alert or of a rule of the diagnosis.
type Section struct {
	Name  string // the alert's name, or the rule's ID: its heading, and so its anchor
	File  string // the file that it is in, "paths.md"
	Parts []Part
}

// sections are all sections by name, read once: the files are part of the program.
var sections = load()

// Find returns the section of an alert or a rule. found is false if there is none.
func Find(name string) (section Section, found bool) {
	section, found = sections[name]
	return section, found
}

// Names returns the names of all sections, sorted.
func Names() []string {
	names := make([]string, 0, len(sections))
	for name := range sections {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func load() map[string]Section {
	all := map[string]Section{}
	entries, err := files.ReadDir(".")
	if err != nil {
		return all // an embedded directory can be read
	}
	for _, entry := range entries {
		text, err := files.ReadFile(entry.Name())
		if err != nil {
			continue
		}
		for _, s := range parse(entry.Name(), string(text)) {
			all[s.Name] = s
		}
	}
	return all
}

// parse reads the sections of a file: headings of the second level that are one word,
// and below them paragraphs that begin with a part's title in bold.
func parse(file, text string) []Section {
	var found []Section
	for _, block := range strings.Split("\n"+text, "\n## ")[1:] {
		name, body, _ := strings.Cut(block, "\n")
		if name = strings.TrimSpace(name); strings.ContainsAny(name, " \t") {
			continue
		}
		found = append(found, Section{Name: name, File: file, Parts: parts(body)})
	}
	return found
}

func parts(body string) []Part {
	var found []Part
	for _, line := range strings.Split(body, "\n") {
		line = strings.TrimSpace(line)
		title, text, is := heading(line)
		switch {
		case is:
			found = append(found, Part{title, text})
		case line != "" && len(found) > 0:
			found[len(found)-1].Text += " " + line
		}
	}
	return found
}

// heading takes "**Means.** text" apart.
func heading(line string) (title, text string, is bool) {
	rest, is := strings.CutPrefix(line, "- **")
	if !is {
		return "", "", false
	}
	title, text, is = strings.Cut(rest, ".** ")
	return title, text, is && slices.Contains(Parts, title)
}
