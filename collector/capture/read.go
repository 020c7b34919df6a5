package capture

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Read reads a recording, compressed or not. It takes any input: the error says
// what is wrong with it, nothing is written anywhere, and no more memory is used
// than MaxText and MaxLines allow for.
func Read(from io.Reader) (*Recording, error) {
	recording, err := read(from)
	if err == nil && recording.Header.Base != "" {
		return nil, fmt.Errorf("%w: only a part, to be laid over the capture %q", ErrInvalid, recording.Header.Base)
	}
	return recording, err
}

// ReadOver is Read for a recording that may be laid over another one, which base
// returns by its name.
func ReadOver(from io.Reader, base func(name string) (*Recording, error)) (*Recording, error) {
	recording, err := read(from)
	if err != nil || recording.Header.Base == "" {
		return recording, err
	}
	below, err := base(recording.Header.Base)
	if err != nil {
		return nil, fmt.Errorf("%w: its base %q: %w", ErrInvalid, recording.Header.Base, err)
	}
	return recording.Over(below)
}

func read(from io.Reader) (*Recording, error) {
	input := bufio.NewReader(from)
	magic, err := input.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the capture: %w", err)
	}
	if !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return readText(input)
	}
	compressed, err := gzip.NewReader(input)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	compressed.Multistream(false)
	recording, err := readText(compressed)
	if err != nil {
		return nil, err
	}
	// Reading on to the end checks the checksum.
	if n, err := io.Copy(io.Discard, io.LimitReader(compressed, 1)); n > 0 || err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, errors.Join(err, errAfter))
	}
	if _, err := input.ReadByte(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, errAfter)
	}
	return recording, nil
}

var errAfter = errors.New("something follows its end")

// textReader reads the lines of a recording.
type textReader struct {
	limited *io.LimitedReader
	scanner *bufio.Scanner
	number  int // of the line
}

// next returns the next line; nil at the end of the text.
func (t *textReader) next() ([]byte, error) {
	more := t.scanner.Scan()
	if t.limited.N <= 0 {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, MaxText)
	}
	if more {
		t.number++
		if t.number > MaxLines+3 {
			return nil, fmt.Errorf("%w: more than %d lines", ErrTooLarge, MaxLines)
		}
		return t.scanner.Bytes(), nil
	}
	var corrupt flate.CorruptInputError
	switch err := t.scanner.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%w: line %d has more than %d bytes", ErrTooLarge, t.number+1, MaxLine)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%w after line %d", ErrTruncated, t.number)
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader), errors.As(err, &corrupt):
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	case err != nil:
		return nil, fmt.Errorf("read the capture after line %d: %w", t.number, err)
	}
	return nil, nil
}

// fail is an error about the line that was read last.
func (t *textReader) fail(err error) error {
	return fmt.Errorf("%w: line %d: %w", ErrInvalid, t.number, err)
}

// wholeLines splits a text into lines. One without its end has been truncated.
func wholeLines(data []byte, atEOF bool) (advance int, line []byte, err error) {
	if end := bytes.IndexByte(data, '\n'); end >= 0 {
		return end + 1, data[:end], nil
	}
	if atEOF && len(data) > 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return 0, nil, nil
}

func readText(from io.Reader) (*Recording, error) {
	t := &textReader{limited: &io.LimitedReader{R: from, N: MaxText + 1}}
	t.scanner = bufio.NewScanner(t.limited)
	t.scanner.Buffer(make([]byte, 0, 1<<16), MaxLine)
	t.scanner.Split(wholeLines)
	recording := &Recording{}
	if err := t.header(&recording.Header); err != nil {
		return nil, err
	}
	for {
		line, err := t.next()
		switch {
		case err != nil:
			return nil, err
		case line == nil:
			return nil, fmt.Errorf("%w after line %d", ErrTruncated, t.number)
		case bytes.HasPrefix(line, []byte(`{"lines":`)):
			if err := t.end(line, recording); err != nil {
				return nil, err
			}
			return recording, nil
		case t.number == 2 && bytes.HasPrefix(line, []byte(`{"scenario":`)):
			if recording.Scenario, err = readScenario(line); err != nil {
				return nil, t.fail(err)
			}
			continue
		}
		if err := recording.addLine(line); err != nil {
			return nil, t.fail(err)
		}
	}
}

// header reads the first line.
func (t *textReader) header(header *Header) error {
	line, err := t.next()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrForeign, err)
	}
	var version struct {
		Version int `json:"gdr_exporter_capture"`
	}
	if json.Unmarshal(line, &version) != nil || version.Version < 1 {
		return ErrForeign
	}
	if version.Version > Version {
		return fmt.Errorf("%w that this version reads: it is of version %d, at most %d is known", ErrForeign, version.Version, Version)
	}
	var first firstLine
	if err := decodeLine(line, &first); err != nil {
		return t.fail(err)
	}
	*header = first.Header
	if err := header.validate(); err != nil {
		return t.fail(err)
	}
	return nil
}

// end checks the last line.
func (t *textReader) end(line []byte, recording *Recording) error {
	var last lastLine
	if err := decodeLine(line, &last); err != nil {
		return t.fail(err)
	}
	if n := len(recording.Files) + len(recording.Answers); last.Lines != n {
		return t.fail(fmt.Errorf("%d lines are missing", last.Lines-n))
	}
	switch more, err := t.next(); {
	case err != nil:
		return err
	case more != nil:
		return t.fail(errAfter)
	}
	return nil
}

// decodeLine reads one value of JSON and nothing else.
func decodeLine(line []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errAfter
	}
	return nil
}

// addLine takes up a line, which has to follow those before it in order.
func (r *Recording) addLine(text []byte) error {
	var line textLine
	if err := decodeLine(text, &line); err != nil {
		return err
	}
	if line.Path == "" {
		return r.addAnswer(&line)
	}
	file := File{Path: line.Path, Op: line.Op}
	if line.Part != "" || line.Question != "" || len(r.Answers) > 0 {
		return errMixed
	}
	var err error
	if file.Last, err = line.file(line.Op); err != nil {
		return err
	}
	if line.First != nil {
		first, err := line.First.file(line.Op)
		if err != nil {
			return err
		}
		file.First = &first
	}
	if err := file.validate(); err != nil {
		return err
	}
	if n := len(r.Files); n > 0 && compareFiles(r.Files[n-1], file) >= 0 {
		return errOrder
	}
	r.Files = append(r.Files, file)
	return nil
}

var (
	errMixed = errors.New("files and answers are mixed")
	errOrder = errors.New("out of order")
	errField = errors.New("a field that does not belong there")
)

func (r *Recording) addAnswer(line *textLine) error {
	answer := Answer{Part: line.Part, Question: line.Question}
	if line.Op != "" {
		return errMixed
	}
	var err error
	if answer.Last, err = line.value(); err != nil {
		return err
	}
	if line.First != nil {
		first, err := line.First.value()
		if err != nil {
			return err
		}
		answer.First = &first
	}
	if err := answer.validate(); err != nil {
		return err
	}
	if n := len(r.Answers); n > 0 && compareAnswers(r.Answers[n-1], answer) >= 0 {
		return errOrder
	}
	r.Answers = append(r.Answers, answer)
	return nil
}

// file makes the answer of a file's operation.
func (t *textAnswer) file(op Op) (FileAnswer, error) {
	a := FileAnswer{Errno: t.Errno, Hang: t.Hang, Target: t.Target, Kind: t.Kind, Names: t.Names}
	if t.Return != 0 || t.Value != nil {
		return a, errField
	}
	if op != OpRead && op != OpLines || a.Errno != "" || a.Hang {
		if t.Text != nil || t.Parts != nil || t.Size != nil {
			return a, errField
		}
		return a, nil
	}
	if t.Text != nil {
		if a.Size = int64(len(*t.Text)); a.Size > 0 {
			a.Data = []Segment{{Bytes: []byte(*t.Text)}}
		}
		if t.Parts != nil || t.Size != nil {
			return a, errField
		}
		return a, nil
	}
	a.Size = -1
	if t.Size != nil {
		a.Size = *t.Size
	}
	for _, part := range t.Parts {
		data, err := hex.DecodeString(part.Hex)
		if err != nil {
			return a, err
		}
		if len(data) == 0 {
			data = nil
		}
		a.Data = append(a.Data, Segment{part.At, data, part.Errno})
	}
	return a, nil
}

// value makes the answer to a question.
func (t *textAnswer) value() (Value, error) {
	if t.Target != "" || t.Kind != "" || t.Names != nil || t.Text != nil || t.Parts != nil || t.Size != nil {
		return Value{}, errField
	}
	return Value{Errno: t.Errno, Hang: t.Hang, Return: t.Return, JSON: t.Value}, nil
}
