// Package rdmatest builds what the kernel shows of RDMA devices, for tests and benchmarks.
//
// A [Tree] describes files, directories and symbolic links below a root, in the layout of sysfs: the class directories are links into
// the device tree, a device links back to its PCI function, and so on. Builders such as [Tree.MLX5IB] add one device with the file set
// of its driver, taken from the drivers' sources and from public reports. [FaultFS] serves such a tree through FUSE and makes single
// files fail, answer garbage or hang, as drivers do. [Cases] is the table of abnormal inputs seen in the field that every reader of
// these files has to survive.
//
// Nothing here needs a testing.T, so that programs can use it too.
package rdmatest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

type kind uint8

const (
	dirNode kind = iota
	fileNode
	linkNode
)

// node is one entry of a tree; data is a file's content or a link's target.
type node struct {
	kind kind
	data string
}

// Tree is a directory tree in memory. Paths are relative to its root, with slashes ("sys/class/infiniband"); a leading slash is ignored.
// Paths given to its methods may run through symbolic links of the tree, so sys/class/infiniband/mlx5_0/ports/1/state names the same
// file as the long path below sys/devices.
//
// A path that leaves the tree or runs through a file is a mistake of the calling test: the methods that add entries panic on it. [Parse],
// which reads untrusted text, returns an error instead.
type Tree struct {
	nodes map[string]node
	verbs int // next number of uverbsN
	mads  int // next number of umadN
}

// New returns an empty tree.
func New() *Tree { return &Tree{nodes: map[string]node{}} }

// File adds a file, or replaces the content of the one that is there.
func (t *Tree) File(path, content string) *Tree { return t.must(path, node{fileNode, content}) }

// Dir adds a directory.
func (t *Tree) Dir(path string) *Tree { return t.must(path, node{kind: dirNode}) }

// Symlink adds a symbolic link. The target is relative to the link's directory, as in sysfs.
func (t *Tree) Symlink(path, target string) *Tree { return t.must(path, node{linkNode, target}) }

func (t *Tree) must(name string, n node) *Tree {
	real, err := t.resolveParent(name)
	if err == nil {
		err = t.put(real, n)
	}
	if err != nil {
		panic("rdmatest: " + err.Error())
	}
	return t
}

// link adds a symbolic link from one path of the tree to another, relative as the kernel makes them.
func (t *Tree) link(from, to string) {
	target, err := filepath.Rel(path.Dir(from), to)
	if err != nil {
		panic("rdmatest: " + err.Error())
	}
	t.Symlink(from, filepath.ToSlash(target))
}

// put adds one entry at a path that runs through no link.
func (t *Tree) put(name string, n node) error {
	if err := valid(name); err != nil {
		return err
	}
	if n.kind == linkNode && escapes(name, n.data) {
		return fmt.Errorf("%q: link target %q leaves the tree", name, n.data)
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if up, ok := t.nodes[dir]; ok && up.kind != dirNode {
			return fmt.Errorf("%q: %q is not a directory", name, dir)
		}
	}
	if old, ok := t.nodes[name]; ok && (old.kind == dirNode || n.kind == dirNode) && old.kind != n.kind {
		return fmt.Errorf("%q is both a directory and something else", name)
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		t.nodes[dir] = node{kind: dirNode}
	}
	t.nodes[name] = n
	return nil
}

// valid accepts clean relative paths only.
func valid(name string) error {
	if name == "" || name == "." || path.IsAbs(name) || path.Clean(name) != name || strings.ContainsRune(name, 0) ||
		name == ".." || strings.HasPrefix(name, "../") {
		return fmt.Errorf("%q is no path inside the tree", name)
	}
	return nil
}

// escapes tells whether a link at name with that target may lead out of the tree. All ".." have to come first, as in sysfs: behind
// another link they would mean something else than the text says.
func escapes(name, target string) bool {
	if target == "" || path.IsAbs(target) || strings.ContainsRune(target, 0) {
		return true
	}
	down := target
	for strings.HasPrefix(down, "../") {
		down = down[3:]
	}
	if down != ".." && slices.Contains(strings.Split(down, "/"), "..") {
		return true
	}
	end := path.Join(path.Dir(name), target)
	return end == ".." || strings.HasPrefix(end, "../")
}

// parent returns the directory of an entry, "" for the root.
func parent(name string) string {
	if dir := path.Dir(name); dir != "." {
		return dir
	}
	return ""
}

// clean makes a caller's path relative to the root.
func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

var errLoop = errors.New("too many links")

// resolveParent follows the links in all but the last element of a path.
func (t *Tree) resolveParent(name string) (string, error) {
	if strings.HasPrefix(name, "../") || strings.Contains(name, "/../") || strings.HasSuffix(name, "/..") {
		return "", fmt.Errorf("%q is no path inside the tree", name)
	}
	name = clean(name)
	dir, err := t.resolve(path.Dir(name), 0)
	return path.Join(dir, path.Base(name)), err
}

// resolve follows every link in a clean path. A part that does not exist stays as it is.
func (t *Tree) resolve(name string, depth int) (string, error) {
	if depth > 40 {
		return "", fmt.Errorf("%q: %w", name, errLoop)
	}
	at := ""
	for element := range strings.SplitSeq(name, "/") {
		at = path.Join(at, element)
		n, ok := t.nodes[at]
		if !ok || n.kind != linkNode {
			continue
		}
		var err error
		if at, err = t.resolve(path.Join(path.Dir(at), n.data), depth+1); err != nil {
			return "", err
		}
	}
	return at, nil
}

// Remove takes an entry and everything below it out of the tree. A link is removed, not what it points to.
func (t *Tree) Remove(name string) *Tree {
	real, err := t.resolveParent(name)
	if err != nil {
		return t
	}
	maps.DeleteFunc(t.nodes, func(at string, _ node) bool { return at == real || strings.HasPrefix(at, real+"/") })
	return t
}

// Content returns a file's content; false if there is no such file.
func (t *Tree) Content(name string) (string, bool) {
	real, err := t.resolve(clean(name), 0)
	n, ok := t.nodes[real]
	if err != nil || !ok || n.kind != fileNode {
		return "", false
	}
	return n.data, true
}

// Real returns the path of an entry with every link followed, and whether the entry exists.
func (t *Tree) Real(name string) (string, bool) {
	real, err := t.resolve(clean(name), 0)
	if err != nil {
		return "", false
	}
	_, ok := t.nodes[real]
	return real, ok
}

// List returns the names in a directory, sorted; nil if there is none.
func (t *Tree) List(dir string) []string {
	real, err := t.resolve(clean(dir), 0)
	if err != nil {
		return nil
	}
	var names []string
	for at := range t.nodes {
		if parent(at) == real {
			names = append(names, path.Base(at))
		}
	}
	slices.Sort(names)
	return names
}

// Paths returns the paths of all entries, sorted.
func (t *Tree) Paths() []string { return slices.Sorted(maps.Keys(t.nodes)) }

// Clone returns an independent copy.
func (t *Tree) Clone() *Tree { return &Tree{maps.Clone(t.nodes), t.verbs, t.mads} }

// MkdirTemp makes a new directory for a tree, on tmpfs where there is one: a tree has thousands of files, which are made there several
// times faster, and reading them costs as little as reading sysfs.
func MkdirTemp() (string, error) {
	if dir, err := os.MkdirTemp("/dev/shm", "rdmatest"); err == nil {
		return dir, nil
	}
	return os.MkdirTemp("", "rdmatest")
}

// WriteTo makes the tree's entries below dir, which is created if need be and should be empty.
func (t *Tree) WriteTo(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range t.Paths() {
		if err := t.write(t.nodes[name], filepath.Join(dir, filepath.FromSlash(name))); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tree) write(n node, at string) error {
	switch n.kind {
	case dirNode:
		return os.MkdirAll(at, 0o755)
	case linkNode:
		return os.Symlink(filepath.FromSlash(n.data), at)
	}
	return os.WriteFile(at, []byte(n.data), 0o644)
}
