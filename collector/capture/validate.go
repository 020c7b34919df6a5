package capture

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"gdr_exporter/collector/sysread"
)

// Limits of what is in a recording.
const (
	maxPath     = 4096 // bytes of a path, a link's target or a question
	maxErrno    = 40   // bytes of an errno's name
	maxFileSize = 1 << 30
	maxRoots    = 64
	maxAbout    = 4096
	maxBase     = 64
)

// validate reports what is wrong with a recording: the reader of its text
// accepts no more than this, so that nothing is written that cannot be read.
func (r *Recording) validate() error {
	if len(r.Files)+len(r.Answers) > MaxLines {
		return fmt.Errorf("%w: more than %d lines", ErrTooLarge, MaxLines)
	}
	if err := r.Header.validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := r.Scenario.validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	for i := range r.Files {
		err := r.Files[i].validate()
		if i > 0 && compareFiles(r.Files[i-1], r.Files[i]) >= 0 {
			err = errors.Join(err, errOrder)
		}
		if err != nil {
			return fmt.Errorf("%w: %s of %q: %w", ErrInvalid, r.Files[i].Op, r.Files[i].Path, err)
		}
	}
	for i := range r.Answers {
		err := r.Answers[i].validate()
		if i > 0 && compareAnswers(r.Answers[i-1], r.Answers[i]) >= 0 {
			err = errors.Join(err, errOrder)
		}
		if err != nil {
			return fmt.Errorf("%w: %s %q: %w", ErrInvalid, r.Answers[i].Part, r.Answers[i].Question, err)
		}
	}
	return nil
}

func (h *Header) validate() error {
	roots := append([]string{h.Readers.Sysfs, h.Readers.Procfs}, h.Readers.DriverRoots...)
	if len(roots) > maxRoots {
		return errors.New("too many roots")
	}
	if len(h.About) > maxAbout || len(h.Base) > maxBase {
		return errors.New("a description that is too long")
	}
	for _, root := range roots {
		if root != "" && validPath(root) != nil {
			return fmt.Errorf("%q is no root", root)
		}
	}
	return nil
}

// validPath accepts absolute paths without detours.
func validPath(name string) error {
	if len(name) > maxPath || !path.IsAbs(name) || path.Clean(name) != name || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%.80q is no absolute path", name)
	}
	return nil
}

func (f *File) validate() error {
	if err := validPath(f.Path); err != nil {
		return err
	}
	if !slices.Contains(ops, f.Op) {
		return fmt.Errorf("%.80q is no operation", f.Op)
	}
	if err := f.Last.validate(f.Op); err != nil || f.First == nil {
		return err
	}
	return f.First.validate(f.Op)
}

func validErrno(name string) error {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
	if len(name) > maxErrno || strings.Trim(name, letters) != "" {
		return fmt.Errorf("%.80q is no errno", name)
	}
	return nil
}

var errAnswer = errors.New("not an answer of that operation")

// validate checks that the answer has what its operation gives, and nothing else.
func (a *FileAnswer) validate(op Op) error {
	if a.Errno != "" || a.Hang {
		if a.Errno != "" && a.Hang || a.Target != "" || a.Kind != "" || a.Names != nil || a.Data != nil || a.Size != 0 {
			return errAnswer
		}
		return validErrno(a.Errno)
	}
	reads := op == OpRead || op == OpLines
	if (op == OpLink) != (a.Target != "") || (op == OpStat) != (a.Kind != "") || (op == OpList) != (a.Names != nil) || !reads && (a.Data != nil || a.Size != 0) {
		return errAnswer
	}
	switch op {
	case OpLink:
		if len(a.Target) > maxPath || strings.ContainsRune(a.Target, 0) {
			return errors.New("no target of a link")
		}
	case OpStat:
		if !slices.Contains([]sysread.Kind{sysread.KindFile, sysread.KindDir, sysread.KindLink, sysread.KindOther}, a.Kind) {
			return fmt.Errorf("%.80q is no kind", a.Kind)
		}
	case OpList:
		return validNames(a.Names)
	case OpRead, OpLines:
		return a.validateData(op)
	}
	return nil
}

// validNames accepts sorted names of a directory's entries.
func validNames(names []string) error {
	for i, name := range names {
		if name == "" || name == "." || name == ".." || len(name) > maxPath || strings.ContainsAny(name, "/\x00") {
			return fmt.Errorf("%.80q is no name", name)
		}
		if i > 0 && names[i-1] >= name {
			return errOrder
		}
	}
	return nil
}

// validateData checks that segments are in order and do not touch each other,
// and that lines are whole.
func (a *FileAnswer) validateData(op Op) error {
	end, known := int64(-1), int64(0) // known: to where bytes are
	for i, s := range a.Data {
		if s.At < 0 || s.At > maxFileSize || (len(s.Bytes) == 0) == (s.Errno == "") {
			return errors.New("no parts of a file")
		}
		follows := i > 0 && s.Errno != "" && a.Data[i-1].Errno == "" && s.At == end
		if s.At <= end && !follows {
			return errOrder
		}
		if err := validErrno(s.Errno); err != nil {
			return err
		}
		if end = s.At + int64(len(s.Bytes)); s.Errno == "" {
			known = end
		}
	}
	switch {
	case a.Size < -1 || a.Size > maxFileSize || a.Size >= 0 && a.Size < known:
		return errors.New("no size of a file")
	case op == OpLines && (len(a.Data) > 1 || len(a.Data) == 1 && (a.Data[0].At != 0 || a.Data[0].Errno != "") || a.Size != known):
		return errors.New("no lines of a file")
	case len(a.Data) == 0 && a.Size < 0:
		return errAnswer
	}
	return nil
}

var parts = []string{PartNetlink, PartNetdev, PartDevlink, PartNVML, PartEvents, PartHost, PartProbe, PartProcess, PartKernelLog}

func (a *Answer) validate() error {
	if !slices.Contains(parts, a.Part) || a.Question == "" || len(a.Question) > maxPath {
		return fmt.Errorf("%.80q is no question of a known part", a.Part+" "+a.Question)
	}
	if err := a.Last.validate(a.Part); err != nil || a.First == nil {
		return err
	}
	return a.First.validate(a.Part)
}

func (v *Value) validate(part string) error {
	given := 0
	for _, is := range []bool{v.Errno != "", v.Hang, v.Return != 0, len(v.JSON) > 0} {
		if is {
			given++
		}
	}
	if given != 1 || v.Return != 0 && part != PartNVML || len(v.JSON) > 0 && !json.Valid(v.JSON) {
		return errAnswer
	}
	return validErrno(v.Errno)
}
