package capture

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Contents says what is in a recording and what was left out of it.
type Contents struct {
	// Parts are the parts in their order, the files first.
	Parts []PartContents
	// Pseudonyms are how many different things of each kind were replaced.
	Pseudonyms map[string]int
	// Dropped are the lines that were not written, by what was asked.
	Dropped []string
	// Unclassed are those of them, and the fields, that no row of the table of
	// classes is about.
	Unclassed []string
}

// PartContents counts a part's lines by what became of them.
type PartContents struct {
	Part string // "files" or a part of answers
	// Kept lines are as they were read, in Replaced ones something was replaced or
	// left out, Dropped ones are not written.
	Kept, Replaced, Dropped int
}

// partFiles is the name of the files among the parts.
const partFiles = "files"

// Anonymise returns a recording without what identifies the host: the table of
// classes says what is kept, what is replaced by pseudonyms under the key, and what
// is not written. What is not in the table is not written. The same key gives the
// same pseudonyms; it must be random and be forgotten. hosts are names of the
// host, which are replaced wherever they stand.
//
// The recording is not changed. What was laid over it is not taken along.
func Anonymise(r *Recording, key []byte, hosts []string) (*Recording, *Contents) {
	a := &anonymiser{
		pseudonyms: newPseudonyms(key, hosts), table: newTable(r.Header.Readers),
		parts: map[string]*PartContents{}, unclassed: map[string]bool{},
	}
	out := &Recording{Header: a.header(&r.Header)}
	for i := range r.Files {
		a.addFile(out, &r.Files[i])
	}
	for i := range r.Answers {
		a.addAnswer(out, &r.Answers[i])
	}
	out.sort()
	// Two names may have become one; which of both was which nobody can tell then.
	out.Files = slices.CompactFunc(out.Files, func(a, b File) bool { return compareFiles(a, b) == 0 })
	out.Answers = slices.CompactFunc(out.Answers, func(a, b Answer) bool { return compareAnswers(a, b) == 0 })
	return out, a.contents()
}

// ContentsOf counts what is in a recording that is written as it is.
func ContentsOf(r *Recording) *Contents {
	a := &anonymiser{parts: map[string]*PartContents{}}
	a.part(partFiles).Kept = len(r.Files)
	for i := range r.Answers {
		a.part(r.Answers[i].Part).Kept++
	}
	return a.contents()
}

type anonymiser struct {
	pseudonyms *pseudonyms
	table      *table
	parts      map[string]*PartContents
	dropped    []string
	unclassed  map[string]bool
}

func (a *anonymiser) part(name string) *PartContents {
	if a.parts[name] == nil {
		a.parts[name] = &PartContents{Part: name}
	}
	return a.parts[name]
}

func (a *anonymiser) contents() *Contents {
	c := &Contents{Pseudonyms: map[string]int{}, Dropped: a.dropped, Unclassed: slices.Sorted(maps.Keys(a.unclassed))}
	for _, name := range append([]string{partFiles}, parts...) {
		if part := a.parts[name]; part != nil {
			c.Parts = append(c.Parts, *part)
		}
	}
	if a.pseudonyms != nil {
		for kind, n := range a.pseudonyms.replaced {
			c.Pseudonyms[string(kind)] = n
		}
	}
	return c
}

// header takes what the readers need, and when it was; no text of somebody's.
func (a *anonymiser) header(h *Header) Header {
	path := func(path string) string { return a.pseudonyms.of(kindPath, path) }
	return Header{
		Synthetic: h.Synthetic, Exporter: h.Exporter, Began: h.Began, Ended: h.Ended,
		Readers: Readers{Sysfs: path(h.Readers.Sysfs), Procfs: path(h.Readers.Procfs), DriverRoots: each(h.Readers.DriverRoots, path)},
	}
}

// count notes what became of a line.
func (a *anonymiser) count(part, asked string, written, same bool) {
	counts := a.part(part)
	switch {
	case !written:
		counts.Dropped++
		a.dropped = append(a.dropped, asked)
	case same:
		counts.Kept++
	default:
		counts.Replaced++
	}
}

func (a *anonymiser) addFile(out *Recording, f *File) {
	asked := fmt.Sprint(f.Op, " ", f.Path)
	class, known := a.table.file(f.Path)
	if !known {
		a.unclassed[asked] = true
	}
	if !known || class.verdict == drop {
		a.count(partFiles, asked, false, false)
		return
	}
	anonymous := File{Path: a.pseudonyms.of(kindPath, f.Path), Op: f.Op}
	var written bool
	anonymous.Last, written = a.fileAnswer(&f.Last, class)
	if written && f.First != nil {
		var first FileAnswer
		if first, written = a.fileAnswer(f.First, class); written {
			anonymous.First = &first
		}
	}
	if written {
		out.Files = append(out.Files, anonymous)
	}
	before, after := f.text(), anonymous.text()
	a.count(partFiles, asked, written, sameText(before, after))
}

// sameText reports whether two lines are written in the same way.
func sameText(a, b textLine) bool {
	one, errOne := json.Marshal(a)
	other, errOther := json.Marshal(b)
	return errOne == nil && errOther == nil && bytes.Equal(one, other)
}

// fileAnswer is an answer with what it names replaced; false: it is not written.
func (a *anonymiser) fileAnswer(answer *FileAnswer, class class) (FileAnswer, bool) {
	anonymous := answer.clone()
	anonymous.Target = a.pseudonyms.of(kindPath, answer.Target)
	if answer.Names != nil {
		anonymous.Names = each(answer.Names, func(name string) string { return a.pseudonyms.of(kindPath, name) })
		slices.Sort(anonymous.Names)
		anonymous.Names = slices.Compact(anonymous.Names)
	}
	if len(answer.Data) == 0 {
		return anonymous, true
	}
	if class.segments != nil {
		anonymous.Data = class.segments(anonymous.Data)
		return anonymous, true
	}
	return anonymous, a.content(&anonymous, class)
}

// content replaces what is in a file. One that was not read from its beginning in
// one piece can be kept, but nothing can be found in it; it is not written if
// something would have to be.
func (a *anonymiser) content(answer *FileAnswer, class class) bool {
	s := &answer.Data[0]
	if len(answer.Data) > 1 || s.At != 0 || s.Errno != "" {
		return class.verdict == keep && len(a.pseudonyms.hosts) == 0
	}
	text := a.treat(class, string(s.Bytes))
	switch {
	case answer.Size == int64(len(s.Bytes)):
		answer.Size = int64(len(text))
	case len(text) != len(s.Bytes):
		return false // where it ends is not known
	}
	s.Bytes = []byte(text)
	if text == "" {
		answer.Data = nil
	}
	return true
}

// treat is what a class leaves of a text.
func (a *anonymiser) treat(class class, text string) string {
	switch class.verdict {
	case keep:
		return a.pseudonyms.of(kindPath, text)
	case pseudonym:
		return a.pseudonyms.of(class.kind, text)
	case filtered:
		return class.filter(a.pseudonyms, text)
	default:
		return ""
	}
}

func (a *anonymiser) addAnswer(out *Recording, from *Answer) {
	asked := from.Part + " " + from.Question
	rows := a.table.asked(from.Part, from.Question)
	if len(rows) == 0 {
		a.unclassed[asked] = true
		a.count(from.Part, asked, false, false)
		return
	}
	anonymous := Answer{Part: from.Part, Question: a.question(from)}
	var written bool
	anonymous.Last, written = a.value(&from.Last, asked, rows)
	if written && from.First != nil {
		var first Value
		if first, written = a.value(from.First, asked, rows); written {
			anonymous.First = &first
		}
	}
	if written {
		out.Answers = append(out.Answers, anonymous)
	}
	a.count(from.Part, asked, written, sameText(from.text(), anonymous.text()))
}

// question is an answer's question. One about a process ends with its id.
func (a *anonymiser) question(of *Answer) string {
	if at := strings.LastIndexByte(of.Question, ' '); of.Part == PartProcess && at >= 0 {
		return of.Question[:at+1] + a.pseudonyms.pid(of.Question[at+1:])
	}
	return a.pseudonyms.of(kindPath, of.Question)
}

// value is a value with its fields treated; false: it is not written.
func (a *anonymiser) value(v *Value, asked string, rows []answerMatcher) (Value, bool) {
	if len(v.JSON) == 0 {
		return *v, true
	}
	decoder := json.NewDecoder(bytes.NewReader(v.JSON))
	decoder.UseNumber() // a counter is larger than a float64 can tell
	var value any
	if decoder.Decode(&value) != nil {
		return Value{}, false
	}
	fields := fields{a, asked, rows}
	value, written := fields.treat("", value)
	if !written {
		return Value{}, false
	}
	text, err := marshal(value)
	if err != nil {
		return Value{}, false
	}
	if again, err := compact(v.JSON); err == nil && bytes.Equal(again, text) {
		text = v.JSON // in the order that it was in
	}
	return Value{JSON: text}, true
}

// marshal writes JSON as it is in a recording.
func marshal(value any) (json.RawMessage, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// compact writes JSON as marshal does, with its members in the order of their names.
func compact(text json.RawMessage) (json.RawMessage, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	return marshal(value)
}

// fields treats the fields of an answer.
type fields struct {
	*anonymiser
	asked string
	rows  []answerMatcher
}

// treat returns a value with its fields treated. A member of an object is left out
// by itself; an element of an array takes the array with it, since its number says
// what it is.
func (f *fields) treat(at string, value any) (any, bool) {
	switch value := value.(type) {
	case map[string]any:
		for name, member := range value {
			treated, written := f.treat(at+"."+strings.ReplaceAll(name, ".", "_"), member)
			delete(value, name)
			if written {
				value[f.pseudonyms.of(kindPath, name)] = treated
			}
		}
		return value, true
	case []any:
		for i := range value {
			treated, written := f.treat(at+"[]", value[i])
			if !written {
				return nil, false
			}
			value[i] = treated
		}
		return value, true
	default:
		return f.leaf(at, value)
	}
}

func (f *fields) leaf(at string, value any) (any, bool) {
	for i := range f.rows {
		if !f.rows[i].field.MatchString(at) {
			continue
		}
		class := f.rows[i].class
		if text, is := value.(string); is && class.verdict != drop {
			return f.anonymiser.treat(class, text), true
		}
		if number, is := value.(json.Number); is && class.kind == kindPID {
			return json.Number(f.pseudonyms.pid(number.String())), true
		}
		// Other numbers have no pseudonyms: what is to be replaced is a text.
		return value, class.verdict == keep || value == nil && class.verdict != drop
	}
	f.unclassed[f.asked+" "+at] = true
	return nil, false
}
