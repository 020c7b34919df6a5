package rdmatest

import (
	"bufio"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// The text form of a tree names each directory once and lists its files and links below, indented by one blank:
//
//	sys/class/infiniband/
//	 mlx5_0 -> ../../devices/pci0000:15/0000:15:01.0/0000:19:00.0/infiniband/mlx5_0
//	sys/devices/pci0000:15/0000:15:01.0/0000:19:00.0/infiniband/mlx5_0/ports/1/
//	 state = 4: ACTIVE
//
// A file without quotes is one line that ends with a newline; any other content is a Go string literal, as is a name that needs it. Lines
// that start with # and empty lines are comments. Trees are kept as text because the paths of PCI devices hold colons, which no file of a
// Go module may have.

// Format returns the tree as text that [Parse] reads back to the same tree. Its order is stable.
func (t *Tree) Format() string {
	entries := map[string][]string{} // directory -> names of its files and links
	inner := map[string]bool{}       // directories that hold anything
	for name, n := range t.nodes {
		inner[parent(name)] = true
		if n.kind != dirNode {
			entries[parent(name)] = append(entries[parent(name)], name)
		} else if _, ok := entries[name]; !ok {
			entries[name] = nil
		}
	}
	var b strings.Builder
	for _, dir := range sortedKeys(entries) {
		if len(entries[dir]) > 0 || !inner[dir] {
			t.formatDir(&b, dir, entries[dir])
		}
	}
	return b.String()
}

func (t *Tree) formatDir(b *strings.Builder, dir string, names []string) {
	fmt.Fprintf(b, "%s/\n", quote(dir, plainName(dir)))
	slices.Sort(names)
	for _, name := range names {
		n, base := t.nodes[name], path.Base(name)
		fmt.Fprintf(b, " %s", quote(base, plainName(base)))
		if n.kind == linkNode {
			fmt.Fprintf(b, " -> %s\n", quote(n.data, plain(n.data)))
			continue
		}
		line, whole := strings.CutSuffix(n.data, "\n")
		if whole && plain(line) {
			fmt.Fprintf(b, " = %s\n", line)
		} else {
			fmt.Fprintf(b, " = %s\n", strconv.Quote(n.data))
		}
	}
}

func quote(s string, plain bool) string {
	if plain {
		return s
	}
	return strconv.Quote(s)
}

// plain tells whether a text can stand in a line without quotes.
func plain(s string) bool {
	return s != "" && strings.TrimSpace(s) == s && s[0] != '"' && strconv.CanBackquote(s) && !strings.ContainsAny(s, "\t")
}

// plainName is plain for a name, which a separator or comment sign must not cut.
func plainName(s string) bool {
	return s == "" || plain(s) && s[0] != '#' && !strings.Contains(s, " = ") && !strings.Contains(s, " -> ")
}

// Parse reads a tree from its text form. The text is not trusted: a path or link that leads out of the tree is an error.
func Parse(text string) (*Tree, error) {
	t, dir := New(), ""
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<24)
	for number := 1; lines.Scan(); number++ {
		var err error
		if dir, err = t.parseLine(lines.Text(), dir); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	return t, lines.Err()
}

// parseLine adds what a line says and returns the directory that the next line belongs to.
func (t *Tree) parseLine(line, dir string) (string, error) {
	if line == "" || line[0] == '#' {
		return dir, nil
	}
	if entry, ok := strings.CutPrefix(line, " "); ok {
		return dir, t.parseEntry(entry, dir)
	}
	name, rest, err := token(line, "/")
	if err != nil || rest != "" {
		return dir, fmt.Errorf("%q is no directory line", line)
	}
	if name == "" {
		return "", nil
	}
	return name, t.put(name, node{kind: dirNode})
}

func (t *Tree) parseEntry(entry, dir string) error {
	name, data, n, err := split(entry)
	if err != nil {
		return err
	}
	if strings.Contains(name, "/") {
		return fmt.Errorf("%q is no file name", name)
	}
	if n.data, err = unquote(data); err != nil {
		return err
	}
	if n.kind == fileNode && !strings.HasPrefix(data, `"`) {
		n.data += "\n"
	}
	at := path.Join(dir, name)
	if name == "" || name == "." || name == ".." {
		return fmt.Errorf("%q is no file name", name)
	}
	if _, ok := t.nodes[at]; ok {
		return fmt.Errorf("%q is there twice", at)
	}
	return t.put(at, n)
}

// split takes "name = content" or "name -> target" apart.
func split(entry string) (name, data string, n node, err error) {
	if strings.HasPrefix(entry, `"`) {
		if name, entry, err = token(entry, ""); err != nil {
			return "", "", node{}, err
		}
	}
	file, link := strings.Index(entry, " = "), strings.Index(entry, " -> ")
	switch {
	case file >= 0 && (link < 0 || file < link):
		return name + entry[:file], entry[file+3:], node{kind: fileNode}, nil
	case link >= 0:
		return name + entry[:link], entry[link+4:], node{kind: linkNode}, nil
	}
	return "", "", node{}, fmt.Errorf("%q is neither file nor link", entry)
}

// token reads a name, quoted or plain, that ends with the given text at the end of a line.
func token(line, end string) (name, rest string, err error) {
	if !strings.HasPrefix(line, `"`) {
		name, ok := strings.CutSuffix(line, end)
		if !ok {
			return "", "", fmt.Errorf("no %q at the end of %q", end, line)
		}
		return name, "", nil
	}
	quoted, err := strconv.QuotedPrefix(line)
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", line, err)
	}
	if name, err = strconv.Unquote(quoted); err != nil {
		return "", "", fmt.Errorf("%s: %w", line, err)
	}
	return name, strings.TrimPrefix(line[len(quoted):], end), nil
}

func unquote(s string) (string, error) {
	if !strings.HasPrefix(s, `"`) {
		return s, nil
	}
	text, err := strconv.Unquote(s)
	if err != nil {
		return "", fmt.Errorf("%s: %w", s, err)
	}
	return text, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
