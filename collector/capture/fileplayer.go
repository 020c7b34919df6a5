package capture

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"gdr_exporter/collector/sysread"
)

// ErrNotRecorded says that a recording does not tell: nobody asked when it was
// made, and nothing that it holds implies the answer.
var ErrNotRecorded = errors.New("not in the recording")

// notRecorded is ErrNotRecorded about something.
type notRecorded struct{ what string }

func (e *notRecorded) Error() string     { return e.what + ": " + ErrNotRecorded.Error() }
func (e *notRecorded) Unwrap() error     { return ErrNotRecorded }
func (e *notRecorded) ErrnoName() string { return "not_recorded" }

// gaps are the questions to which a recording had no answer.
type gaps struct {
	mu    sync.Mutex
	asked map[string]bool
}

func (g *gaps) add(what string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked == nil {
		g.asked = map[string]bool{}
	}
	g.asked[what] = true
	return &notRecorded{what}
}

func (g *gaps) list() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.asked))
}

// filePlayer serves a recording's files from memory. Its methods may be called
// concurrently.
type filePlayer struct {
	answers map[fileKey]*FileAnswer
	dirs    map[string]bool // paths that have recorded ones below them
	gaps    *gaps
	closed  <-chan struct{} // ends what hangs
	movie   *movie          // what changes; nil: nothing does
}

func newFilePlayer(files []File, gaps *gaps, closed <-chan struct{}) *filePlayer {
	p := &filePlayer{answers: make(map[fileKey]*FileAnswer, len(files)), dirs: map[string]bool{"/": true}, gaps: gaps, closed: closed}
	for i := range files {
		file := &files[i]
		p.answers[fileKey{file.Path, file.Op}] = &file.Last
		if file.Last.Errno != "" {
			continue // says nothing of what is above it
		}
		for dir := path.Dir(file.Path); !p.dirs[dir]; dir = path.Dir(dir) {
			p.dirs[dir] = true
		}
	}
	return p
}

// get returns the answer to an operation; nil if there is none.
func (p *filePlayer) get(path string, op Op) *FileAnswer {
	key := fileKey{path, op}
	if p.movie != nil {
		if changed := p.movie.now().file(key); changed != nil {
			return changed
		}
	}
	return p.answers[key]
}

// above reports whether there is something recorded below a path.
func (p *filePlayer) above(path string) bool {
	return p.dirs[path] && (p.movie == nil || !p.movie.now().isGone(path))
}

// answer returns the recorded answer; found is false if there is none. One that
// hangs is returned when the player is closed, as interrupted.
func (p *filePlayer) answer(path string, op Op) (answer *FileAnswer, found bool, err error) {
	answer = p.get(path, op)
	switch {
	case answer == nil:
		return &FileAnswer{}, false, nil
	case answer.Hang:
		<-p.closed
		return answer, true, syscall.EINTR
	case answer.Errno != "":
		return answer, true, sysread.ErrorOf(answer.Errno)
	}
	return answer, true, nil
}

// resolve follows a path's links.
func (p *filePlayer) resolve(path string, last bool) (string, error) {
	return sysread.Resolve(path, last, func(path string) (string, error) {
		if answer := p.get(path, OpLink); answer != nil && answer.Target != "" {
			return answer.Target, nil
		}
		return "", syscall.EINVAL
	})
}

// missing returns the error for a path that was not asked about: ENOENT if it
// cannot have been there, else ErrNotRecorded.
func (p *filePlayer) missing(op Op, at string) error {
	if p.absent(at) {
		return &fs.PathError{Op: string(op), Path: at, Err: syscall.ENOENT}
	}
	return p.gaps.add(string(op) + " " + at)
}

// absent reports whether the recording says that there is nothing at a path: a
// directory above it lists no such name, or it or one above it was found to be
// absent.
func (p *filePlayer) absent(asked string) bool {
	for at := asked; at != "/" && at != "."; at = path.Dir(at) {
		if p.above(at) {
			return false // something was read below it
		}
		known := false
		for _, op := range ops {
			answer := p.get(at, op)
			if answer == nil {
				continue
			}
			if answer.Errno == "ENOENT" || answer.Errno == "ENOTDIR" {
				return true
			}
			known = known || answer.Errno == "" && !answer.Hang
		}
		if known { // below a file there is nothing; of a directory nobody knows
			return at != asked && p.kind(at) == sysread.KindFile
		}
		dir := p.get(path.Dir(at), OpList)
		if dir != nil && dir.Errno == "" && !dir.Hang {
			_, listed := slices.BinarySearch(dir.Names, path.Base(at))
			return !listed && !strings.HasPrefix(path.Base(at), ".")
		}
	}
	return false
}

func (p *filePlayer) ReadAt(path string, to []byte, offset int64) (int, error) {
	at, err := p.resolve(path, true)
	if err != nil {
		return 0, err
	}
	answer, found, err := p.answer(at, OpRead)
	switch {
	case !found:
		return 0, p.missing(OpRead, at)
	case err != nil:
		return 0, err
	}
	n, err := answer.readAt(to, offset)
	if errors.Is(err, ErrNotRecorded) {
		err = p.gaps.add(fmt.Sprintf("%s %s %d+%d", OpRead, at, offset, len(to)))
	}
	return n, err
}

// readAt gives the bytes at offset, if all that are asked for are known.
func (a *FileAnswer) readAt(to []byte, offset int64) (int, error) {
	for _, s := range a.Data {
		if s.Errno != "" && s.At == offset {
			return 0, sysread.ErrorOf(s.Errno)
		}
	}
	if a.Size >= 0 && offset >= a.Size {
		return 0, nil
	}
	for _, s := range a.Data {
		end := s.At + int64(len(s.Bytes))
		if s.At > offset || end <= offset {
			continue
		}
		n := copy(to, s.Bytes[offset-s.At:])
		if n == len(to) || end == a.Size {
			return n, nil
		}
	}
	return 0, ErrNotRecorded
}

func (p *filePlayer) ReadLines(path string, limit int, keep func(line []byte) bool) ([]byte, error) {
	at, err := p.resolve(path, true)
	if err != nil {
		return nil, err
	}
	order := []Op{OpLines, OpRead}
	if keep == nil {
		order = order[1:]
	}
	for _, op := range order {
		answer, found, err := p.answer(at, op)
		switch {
		case !found:
			continue
		case err != nil:
			return nil, err
		case answer.Size > int64(limit):
			return nil, fmt.Errorf("%w: longer than %d bytes", sysread.ErrInvalid, limit)
		}
		text := make([]byte, max(answer.Size, 0))
		n, err := answer.readAt(text, 0)
		if err != nil || answer.Size < 0 {
			return nil, p.gaps.add(string(op) + " " + at)
		}
		return sysread.KeepLines(text[:n], keep), nil
	}
	return nil, p.missing(order[0], at)
}

func (p *filePlayer) ReadDir(path string) ([]sysread.Entry, error) {
	at, err := p.resolve(path, true)
	if err != nil {
		return nil, err
	}
	answer, found, err := p.answer(at, OpList)
	switch {
	case !found:
		return nil, p.missing(OpList, at)
	case err != nil:
		return nil, err
	}
	entries := make([]sysread.Entry, len(answer.Names))
	for i, name := range answer.Names {
		entries[i] = sysread.Entry{Name: name, Inode: inode(filepath.Join(at, name))}
	}
	return entries, nil
}

// inode makes up an inode number: a recording has none, and readers only compare
// them.
func inode(path string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(path))
	return h.Sum64() | 1 // not 0, which is none
}

func (p *filePlayer) Readlink(path string) (string, error) {
	at, err := p.resolve(path, false)
	if err != nil {
		return "", err
	}
	if answer, found, err := p.answer(at, OpLink); found {
		return answer.Target, err
	}
	if p.kind(at) != "" {
		return "", &fs.PathError{Op: "readlink", Path: path, Err: syscall.EINVAL}
	}
	return "", p.missing(OpLink, at)
}

// kind is what is at a path as far as other operations tell, "" for not at all.
func (p *filePlayer) kind(at string) sysread.Kind {
	succeeded := func(op Op) bool {
		answer := p.get(at, op)
		return answer != nil && answer.Errno == "" && !answer.Hang
	}
	switch {
	case succeeded(OpLink):
		return sysread.KindLink
	case succeeded(OpStat):
		return p.get(at, OpStat).Kind
	case succeeded(OpList), p.above(at):
		return sysread.KindDir
	case succeeded(OpRead), succeeded(OpLines):
		return sysread.KindFile
	}
	return ""
}

func (p *filePlayer) Stat(path string) (sysread.Info, error)  { return p.stat(path, true) }
func (p *filePlayer) Lstat(path string) (sysread.Info, error) { return p.stat(path, false) }

func (p *filePlayer) stat(path string, last bool) (sysread.Info, error) {
	at, err := p.resolve(path, last)
	if err != nil {
		return sysread.Info{}, err
	}
	info := sysread.Info{Device: 1, Inode: inode(at)}
	if answer, found, err := p.answer(at, OpStat); found {
		info.Kind = answer.Kind
		return info, err
	}
	if info.Kind = p.kind(at); info.Kind == "" {
		return sysread.Info{}, p.missing(OpStat, at)
	}
	return info, nil
}

func (p *filePlayer) Access(path string) error {
	at, err := p.resolve(path, true)
	if err != nil {
		return err
	}
	if _, found, err := p.answer(at, OpAccess); found {
		return err
	}
	if p.kind(at) == "" {
		return p.missing(OpAccess, at)
	}
	return nil
}

func (p *filePlayer) EvalSymlinks(path string) (string, error) {
	at, err := p.resolve(path, true)
	if err != nil {
		return "", err
	}
	if _, err := p.Lstat(at); err != nil {
		return "", err
	}
	return at, nil
}
