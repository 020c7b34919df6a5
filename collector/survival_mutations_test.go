package collector

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/sysread"
)

// A mutation changes one thing of a healthy recording: what is at one path, or
// the answer to one question.
type mutation struct {
	kind string // "EIO", "empty"
	at   string // a path, or a part and question
	// apply returns the recording with the change; the one it is given is shared.
	apply func(*capture.Recording) *capture.Recording
}

func (m *mutation) String() string { return m.kind + " at " + m.at }

// Kinds of mutation that are no errno.
const (
	kindAbsent    = "absent"
	kindDirectory = "a directory"
	kindFile      = "a file" // in place of a directory or of a link
	kindHang      = "hang"
	kindEmptyDir  = "an empty directory"
	kindStrange   = "strange names"
	kindDangling  = "dangling"
)

// errnos are what drivers answer when they fail.
var survivalErrnos = []string{"EINVAL", "EIO", "ENODEV", "EACCES", "EOPNOTSUPP", "ETIMEDOUT", "EAGAIN"}

// contents are what a file may hold instead of what it should.
var contents = map[string]string{
	"empty":      "",
	"whitespace": " \n\t \n",
	"binary":     "\x00\xff{\"}\\\n\x1b[2J\xc3\x28",
	"very long":  strings.Repeat("4", 70_000),
	"negative":   "-1\n",
	"huge":       "340282366920938463463374607431768211456\n",
}

// danglingTarget is where a link leads that leads nowhere.
const danglingTarget = "../nowhere/at_all"

// strangeNames are what a directory may list beside what it should.
var strangeNames = []string{"\xff\xfe{\"}\\", "0000:zz:00.0", "99999999999999999999", strings.Repeat("n", 255)}

// fileMutations returns all mutations of a path of which the recording has
// files, given by their indices.
func fileMutations(at string, files []capture.File, indices []int) []mutation {
	done := func(op capture.Op) bool {
		return slices.ContainsFunc(indices, func(i int) bool { return files[i].Op == op && files[i].Last.Errno == "" })
	}
	all := []mutation{{kindAbsent, at, func(r *capture.Recording) *capture.Recording { return without(r, at) }}}
	add := func(kind string, answers map[capture.Op]capture.FileAnswer, below bool) {
		all = append(all, mutation{kind, at, func(r *capture.Recording) *capture.Recording { return replaced(r, at, answers, below) }})
	}
	ops := []capture.Op{}
	for _, op := range []capture.Op{capture.OpRead, capture.OpLines, capture.OpList, capture.OpLink} {
		if done(op) {
			ops = append(ops, op)
		}
	}
	same := func(answer capture.FileAnswer) map[capture.Op]capture.FileAnswer {
		// What cannot be read is there all the same.
		answers := map[capture.Op]capture.FileAnswer{capture.OpStat: {Kind: kindOf(ops)}}
		for _, op := range ops {
			answers[op] = answer
		}
		return answers
	}
	if len(ops) > 0 {
		for _, errno := range survivalErrnos {
			add(errno, same(capture.FileAnswer{Errno: errno}), false)
		}
		add(kindHang, same(capture.FileAnswer{Hang: true}), false)
	}
	switch {
	case done(capture.OpLink):
		add(kindDangling, same(capture.FileAnswer{Target: danglingTarget}), false)
		add(kindFile, map[capture.Op]capture.FileAnswer{capture.OpLink: {Errno: "EINVAL"}, capture.OpRead: content("x\n"), capture.OpStat: {Kind: sysread.KindFile}}, false)
	case done(capture.OpList):
		names := listed(files, indices)
		add(kindFile, map[capture.Op]capture.FileAnswer{capture.OpList: {Errno: "ENOTDIR"}, capture.OpStat: {Kind: sysread.KindFile}}, true)
		add(kindEmptyDir, map[capture.Op]capture.FileAnswer{capture.OpList: {}}, true)
		add(kindStrange, map[capture.Op]capture.FileAnswer{capture.OpList: {Names: slices.Sorted(slices.Values(slices.Concat(names, strangeNames)))}}, false)
	case len(ops) > 0:
		add(kindDirectory, map[capture.Op]capture.FileAnswer{
			capture.OpRead: {Errno: "EISDIR"}, capture.OpLines: {Errno: "EISDIR"}, capture.OpList: {}, capture.OpStat: {Kind: sysread.KindDir},
		}, false)
		for kind, text := range contents {
			add(kind, same(content(text)), false)
		}
	}
	return all
}

func kindOf(ops []capture.Op) sysread.Kind {
	switch {
	case slices.Contains(ops, capture.OpLink):
		return sysread.KindLink
	case slices.Contains(ops, capture.OpList):
		return sysread.KindDir
	}
	return sysread.KindFile
}

// content is what reading a file of that content gives.
func content(text string) capture.FileAnswer {
	answer := capture.FileAnswer{Size: int64(len(text))}
	if text != "" {
		answer.Data = []capture.Segment{{Bytes: []byte(text)}}
	}
	return answer
}

func listed(files []capture.File, indices []int) []string {
	for _, i := range indices {
		if files[i].Op == capture.OpList {
			return files[i].Last.Names
		}
	}
	return nil
}

// replaced returns the recording with other answers at a path; below says that
// nothing is left below it.
func replaced(r *capture.Recording, at string, answers map[capture.Op]capture.FileAnswer, below bool) *capture.Recording {
	changed := &capture.Recording{Header: r.Header, Answers: r.Answers, Files: make([]capture.File, 0, len(r.Files)+len(answers))}
	for i := range r.Files {
		file := &r.Files[i]
		if _, other := answers[file.Op]; other && file.Path == at {
			continue
		}
		if below && strings.HasPrefix(file.Path, at+"/") {
			changed.Files = append(changed.Files, capture.File{Path: file.Path, Op: file.Op, Last: capture.FileAnswer{Errno: "ENOENT"}})
			continue
		}
		changed.Files = append(changed.Files, *file)
	}
	for op, answer := range answers {
		changed.Files = append(changed.Files, capture.File{Path: at, Op: op, Last: answer})
	}
	return changed
}

// without returns the recording as if there were nothing at a path: every
// operation there and below gives ENOENT, and its directory does not list it.
func without(r *capture.Recording, at string) *capture.Recording {
	changed := &capture.Recording{Header: r.Header, Answers: r.Answers, Files: slices.Clone(r.Files)}
	dir, name := path.Split(at)
	dir = strings.TrimSuffix(dir, "/")
	for i := range changed.Files {
		file := &changed.Files[i]
		switch {
		case file.Path == at || strings.HasPrefix(file.Path, at+"/"):
			file.Last, file.First = capture.FileAnswer{Errno: "ENOENT"}, nil
		case file.Path == dir && file.Op == capture.OpList && file.Last.Errno == "":
			names := slices.Clone(file.Last.Names)
			file.Last.Names = slices.DeleteFunc(names, func(n string) bool { return n == name })
		}
	}
	return changed
}

// answerMutations returns all mutations of the answer of that index.
func answerMutations(answers []capture.Answer, i int) []mutation {
	a := &answers[i]
	at := a.Part + " " + a.Question
	all := []mutation{}
	add := func(kind string, value capture.Value) {
		all = append(all, mutation{kind, at, func(r *capture.Recording) *capture.Recording {
			changed := &capture.Recording{Header: r.Header, Files: r.Files, Answers: slices.Clone(r.Answers)}
			changed.Answers[i].Last, changed.Answers[i].First = value, nil
			return changed
		}})
	}
	isOpen := strings.HasPrefix(a.Question, "open ")
	switch {
	case a.Part == capture.PartEvents:
	case a.Part == capture.PartNVML && strings.HasPrefix(a.Question, "symbol "):
		add(kindAbsent, capture.Value{JSON: json.RawMessage("false")})
	case a.Part == capture.PartNVML && !isOpen:
		for name, code := range nvmlReturns {
			add(name, capture.Value{Return: code})
		}
		for kind, text := range answerGarbage {
			add(kind, capture.Value{JSON: json.RawMessage(text)})
		}
		add(kindHang, capture.Value{Hang: true})
	default:
		for _, errno := range slices.Concat(survivalErrnos, []string{"ENOENT", "EPERM", "EBUSY", "EMSGSIZE", "invalid"}) {
			add(errno, capture.Value{Errno: errno})
		}
		add(kindHang, capture.Value{Hang: true})
		if isOpen || strings.HasSuffix(a.Question, "dial") {
			break
		}
		for kind, text := range answerGarbage {
			add(kind, capture.Value{JSON: json.RawMessage(text)})
		}
	}
	return all
}

// nvmlReturns are return codes of NVML as a driver in trouble gives them.
var nvmlReturns = map[string]int{
	"UNINITIALIZED": 1, "INVALID_ARGUMENT": 2, "NOT_SUPPORTED": 3, "NO_PERMISSION": 4, "NOT_FOUND": 6,
	"FUNCTION_NOT_FOUND": 13, "GPU_IS_LOST": 15, "RESET_REQUIRED": 16, "LIB_RM_VERSION_MISMATCH": 18, "UNKNOWN": 999, "a code of the future": 777,
}

// answerGarbage are answers of another form than the question's.
var answerGarbage = map[string]string{"text": `"?"`, "a truth": "true"}

// mutations returns all mutations of a recording: of every path and of every
// question.
func mutationsOf(r *capture.Recording) []mutation {
	byPath := map[string][]int{}
	var paths []string
	for i := range r.Files {
		if byPath[r.Files[i].Path] == nil {
			paths = append(paths, r.Files[i].Path)
		}
		byPath[r.Files[i].Path] = append(byPath[r.Files[i].Path], i)
	}
	var all []mutation
	for _, at := range paths {
		if exists := slices.ContainsFunc(byPath[at], func(i int) bool { return r.Files[i].Last.Errno == "" }); exists && at != "/" {
			all = append(all, fileMutations(at, r.Files, byPath[at])...)
		}
	}
	for i := range r.Answers {
		all = append(all, answerMutations(r.Answers, i)...)
	}
	slices.SortStableFunc(all, func(a, b mutation) int {
		return strings.Compare(a.at+"\x00"+a.kind, b.at+"\x00"+b.kind)
	})
	return all
}
