package capture

import (
	"errors"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"syscall"

	"gdr_exporter/collector/sysread"
)

// fileKey names an operation on a path.
type fileKey struct {
	path string
	op   Op
}

// fileRecorder passes operations on and keeps what they gave. Its methods may be
// called concurrently.
type fileRecorder struct {
	files sysread.Files

	mu      sync.Mutex
	links   map[string]string // what is known of each path: a link's target, or "" for none
	kept    map[fileKey]*File
	started map[fileKey]int // operations that have not returned
}

func newFileRecorder(files sysread.Files) *fileRecorder {
	return &fileRecorder{files: files, links: map[string]string{}, kept: map[fileKey]*File{}, started: map[fileKey]int{}}
}

// recorded returns all files so far. An operation that has not returned is kept
// as one that hangs.
func (r *fileRecorder) recorded() []File {
	r.mu.Lock()
	defer r.mu.Unlock()
	var files []File
	for _, file := range r.kept {
		f := *file
		f.Last = f.Last.clone()
		if f.First != nil {
			if reflect.DeepEqual(*f.First, f.Last) {
				f.First = nil
			} else {
				first := f.First.clone()
				f.First = &first
			}
		}
		if r.started[fileKey{f.Path, f.Op}] > 0 {
			f.Last = FileAnswer{Hang: true}
		}
		files = append(files, f)
	}
	for key := range r.started {
		if r.kept[key] == nil {
			files = append(files, File{Path: key.path, Op: key.op, Last: FileAnswer{Hang: true}})
		}
	}
	return files
}

func (a *FileAnswer) clone() FileAnswer {
	c := *a
	c.Names, c.Data = slices.Clone(a.Names), slices.Clone(a.Data)
	for i := range c.Data {
		c.Data[i].Bytes = slices.Clone(c.Data[i].Bytes)
	}
	return c
}

// resolve returns the path under which what is at path is kept.
func (r *fileRecorder) resolve(path string, last bool) string {
	resolved, err := sysread.Resolve(path, last, r.linkAt)
	if err != nil {
		return filepath.Clean(path)
	}
	return resolved
}

// linkAt is readlink for resolve: it asks once per path.
func (r *fileRecorder) linkAt(path string) (string, error) {
	r.mu.Lock()
	target, known := r.links[path]
	r.mu.Unlock()
	if !known {
		var err error
		if target, err = r.files.Readlink(path); err != nil && !errors.Is(err, syscall.EINVAL) {
			return "", err // may be there later
		}
		r.mu.Lock()
		r.links[path] = target
		r.mu.Unlock()
		if target != "" {
			r.keep(fileKey{path, OpLink}, FileAnswer{Target: target})
		}
	}
	if target == "" {
		return "", syscall.EINVAL
	}
	return target, nil
}

// begin notes that an operation has begun, and returns what notes its end.
func (r *fileRecorder) begin(key fileKey) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started[key]++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.started[key]--; r.started[key] == 0 {
			delete(r.started, key)
		}
	}
}

// keep keeps an operation's answer.
func (r *fileRecorder) keep(key fileKey, answer FileAnswer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if file := r.kept[key]; file != nil {
		file.replace(answer)
		return
	}
	r.kept[key] = &File{Path: key.path, Op: key.op, Last: answer}
}

// replace makes an answer the last one.
func (f *File) replace(answer FileAnswer) {
	if f.First == nil {
		first := f.Last.clone()
		f.First = &first
	}
	f.Last = answer
}

// note is keep for an operation that may have failed.
func (r *fileRecorder) note(key fileKey, answer FileAnswer, err error) {
	if err != nil {
		answer = FileAnswer{Errno: sysread.ErrnoName(err)}
	}
	r.keep(key, answer)
}

// ReadAt keeps the part that was read. Parts are put together: of a PCI
// configuration space a few bytes here and there are read.
func (r *fileRecorder) ReadAt(path string, to []byte, offset int64) (int, error) {
	key := fileKey{r.resolve(path, true), OpRead}
	end := r.begin(key)
	n, err := r.files.ReadAt(path, to, offset)
	end()
	r.mu.Lock()
	defer r.mu.Unlock()
	file := r.kept[key]
	switch {
	case file == nil:
		file = &File{Path: key.path, Op: key.op, Last: FileAnswer{Size: -1}}
		r.kept[key] = file
	case offset == 0 && file.First == nil: // read anew
		first := file.Last.clone()
		file.First = &first
	}
	file.Last.read(to[:n], offset, len(to), err)
	return n, err
}

// read puts a part that was read in the place of what was known of it.
func (a *FileAnswer) read(got []byte, offset int64, asked int, err error) {
	switch {
	case err != nil && offset == 0: // of the whole file there is nothing else to know
		*a = FileAnswer{Errno: sysread.ErrnoName(err)}
		return
	case err != nil:
		a.Data = overlay(a.Data, Segment{At: offset, Errno: sysread.ErrnoName(err)})
		return
	}
	if a.Errno != "" { // it could not be read before
		*a = FileAnswer{Size: -1}
	}
	end := offset + int64(len(got))
	switch {
	case len(got) == 0 && a.Size >= 0 && a.Size <= end: // beyond an end that is known
	case len(got) < asked:
		a.cut(end)
	case a.Size < end: // it has grown
		a.Size = -1
	}
	a.Data = slices.DeleteFunc(a.Data, func(s Segment) bool { return s.Errno != "" && s.At == offset })
	if len(got) > 0 {
		a.Data = overlay(a.Data, Segment{At: offset, Bytes: slices.Clone(got)})
	}
}

// cut notes that a file ends at size: what is beyond was of a longer one.
func (a *FileAnswer) cut(size int64) {
	a.Size = size
	a.Data = slices.DeleteFunc(a.Data, func(s Segment) bool { return s.At >= size && s.Errno == "" })
	for i := range a.Data {
		if s := &a.Data[i]; s.Errno == "" {
			s.Bytes = s.Bytes[:min(int64(len(s.Bytes)), size-s.At)]
		}
	}
}

// overlay puts a segment over others, which are in order, and joins those that
// touch.
func overlay(segments []Segment, s Segment) []Segment {
	end := s.At + int64(len(s.Bytes))
	out := make([]Segment, 0, len(segments)+2)
	for _, old := range segments {
		oldEnd := old.At + int64(len(old.Bytes))
		switch {
		case old.Errno != "":
			if old.At < s.At || old.At >= max(end, s.At+1) {
				out = append(out, old)
			}
		case oldEnd <= s.At || old.At >= max(end, s.At+1):
			out = append(out, old)
		case s.Errno != "": // of what came after it nobody knows whether it can be read still
			if old.At < s.At {
				out = append(out, Segment{At: old.At, Bytes: old.Bytes[:s.At-old.At]})
			}
		default:
			if old.At < s.At {
				out = append(out, Segment{At: old.At, Bytes: old.Bytes[:s.At-old.At]})
			}
			if oldEnd > end {
				out = append(out, Segment{At: end, Bytes: old.Bytes[end-old.At:]})
			}
		}
	}
	out = append(out, s)
	slices.SortStableFunc(out, func(a, b Segment) int { return int(a.At - b.At) })
	return join(out)
}

func join(segments []Segment) []Segment {
	joined := segments[:0:0]
	for _, s := range segments {
		if i := len(joined) - 1; i >= 0 && s.Errno == "" && joined[i].Errno == "" && joined[i].At+int64(len(joined[i].Bytes)) == s.At {
			joined[i].Bytes = append(slices.Clip(joined[i].Bytes), s.Bytes...)
			continue
		}
		joined = append(joined, s)
	}
	return joined
}

// ReadLines keeps what was given back.
func (r *fileRecorder) ReadLines(path string, limit int, keep func(line []byte) bool) ([]byte, error) {
	key := fileKey{r.resolve(path, true), OpRead}
	if keep != nil {
		key.op = OpLines
	}
	end := r.begin(key)
	text, err := r.files.ReadLines(path, limit, keep)
	end()
	answer := FileAnswer{Size: int64(len(text))}
	if len(text) > 0 {
		answer.Data = []Segment{{Bytes: slices.Clone(text)}}
	}
	r.note(key, answer, err)
	return text, err
}

// ReadDir keeps the names, sorted.
func (r *fileRecorder) ReadDir(path string) ([]sysread.Entry, error) {
	key := fileKey{r.resolve(path, true), OpList}
	end := r.begin(key)
	entries, err := r.files.ReadDir(path)
	end()
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name)
	}
	slices.Sort(names)
	r.note(key, FileAnswer{Names: names}, err)
	return entries, err
}

// Readlink keeps the target, or why there is none.
func (r *fileRecorder) Readlink(path string) (string, error) {
	key := fileKey{r.resolve(path, false), OpLink}
	end := r.begin(key)
	target, err := r.files.Readlink(path)
	end()
	r.note(key, FileAnswer{Target: target}, err)
	return target, err
}

func (r *fileRecorder) Stat(path string) (sysread.Info, error) {
	return r.stat(r.resolve(path, true), func() (sysread.Info, error) { return r.files.Stat(path) })
}

func (r *fileRecorder) Lstat(path string) (sysread.Info, error) {
	return r.stat(r.resolve(path, false), func() (sysread.Info, error) { return r.files.Lstat(path) })
}

func (r *fileRecorder) stat(path string, stat func() (sysread.Info, error)) (sysread.Info, error) {
	key := fileKey{path, OpStat}
	end := r.begin(key)
	info, err := stat()
	end()
	r.note(key, FileAnswer{Kind: info.Kind}, err)
	return info, err
}

func (r *fileRecorder) Access(path string) error {
	key := fileKey{r.resolve(path, true), OpAccess}
	end := r.begin(key)
	err := r.files.Access(path)
	end()
	r.note(key, FileAnswer{}, err)
	return err
}

// EvalSymlinks keeps the links on the way and what is at its end.
func (r *fileRecorder) EvalSymlinks(path string) (string, error) {
	resolved, err := sysread.Resolve(path, true, r.linkAt)
	if err != nil {
		return "", err
	}
	if _, err := r.Lstat(resolved); err != nil {
		return "", err
	}
	return resolved, nil
}
