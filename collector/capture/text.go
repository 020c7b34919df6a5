package capture

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"gdr_exporter/collector/sysread"
)

// Version is the version of the text that is written. Older ones are read.
const Version = 1

// Limits of the text of a recording. A node with 8 GPUs and 8 NICs has some 8,000
// lines and 1 MiB, one with 256 devices 50,000 lines; the longest lines are the
// names of ethtool statistics. Reading the worst text within them takes some
// 200 MiB of memory.
const (
	MaxText  = 32 << 20 // bytes, not compressed
	MaxLine  = 4 << 20  // bytes of one line
	MaxLines = 1 << 17
)

// Errors of Read.
var (
	ErrForeign   = errors.New("no capture of gdr_exporter")
	ErrTruncated = errors.New("the capture is truncated")
	ErrTooLarge  = errors.New("the capture is too large")
	ErrInvalid   = errors.New("the capture is damaged")
)

// firstLine is the first line of the text.
type firstLine struct {
	Version int `json:"gdr_exporter_capture"`
	Header
}

// lastLine is the last line: a text without it is truncated.
type lastLine struct {
	Lines int `json:"lines"` // of files and answers
}

// textLine is each other line: a file or an answer.
type textLine struct {
	Path string `json:"path,omitempty"`
	Op   Op     `json:"op,omitempty"`

	Part     string `json:"part,omitempty"`
	Question string `json:"ask,omitempty"`

	textAnswer
	First *textAnswer `json:"first,omitempty"`
}

// textAnswer is a FileAnswer or a Value.
type textAnswer struct {
	Errno  string          `json:"errno,omitempty"`
	Hang   bool            `json:"hang,omitempty"`
	Target string          `json:"target,omitempty"`
	Kind   sysread.Kind    `json:"kind,omitempty"`
	Names  []string        `json:"names,omitzero"`
	Text   *string         `json:"text,omitempty"`  // of a file that was read as a whole
	Parts  []textPart      `json:"parts,omitempty"` // of any other
	Size   *int64          `json:"size,omitempty"`  // beside parts, if it is known
	Return int             `json:"return,omitempty"`
	Value  json.RawMessage `json:"value,omitempty"`
}

// textPart is a Segment.
type textPart struct {
	At    int64  `json:"at"`
	Hex   string `json:"hex,omitempty"`
	Errno string `json:"errno,omitempty"`
}

// WriteText writes a recording as text.
func (r *Recording) WriteText(w io.Writer) error {
	if err := r.validate(); err != nil {
		return err
	}
	var written int
	buffered := bufio.NewWriter(w)
	put := func(value any) error {
		var line bytes.Buffer
		encoder := json.NewEncoder(&line)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(value); err != nil {
			return fmt.Errorf("capture: %w", err)
		}
		if written += line.Len(); written > MaxText || line.Len() > MaxLine {
			return fmt.Errorf("%w: over %d bytes, or %d in a line", ErrTooLarge, MaxText, MaxLine)
		}
		_, err := buffered.Write(line.Bytes())
		return err
	}
	if err := put(firstLine{Version, r.Header}); err != nil {
		return err
	}
	if r.Scenario != nil {
		if err := put(r.Scenario.text()); err != nil {
			return err
		}
	}
	for i := range r.Files {
		if err := put(r.Files[i].text()); err != nil {
			return err
		}
	}
	for i := range r.Answers {
		if err := put(r.Answers[i].text()); err != nil {
			return err
		}
	}
	if err := put(lastLine{len(r.Files) + len(r.Answers)}); err != nil {
		return err
	}
	return buffered.Flush()
}

// Write writes a recording as text compressed with gzip.
func (r *Recording) Write(w io.Writer) error {
	compressed, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := r.WriteText(compressed); err != nil {
		return err
	}
	return compressed.Close()
}

func (f *File) text() textLine {
	line := textLine{Path: f.Path, Op: f.Op, textAnswer: f.Last.text(f.Op)}
	if f.First != nil {
		first := f.First.text(f.Op)
		line.First = &first
	}
	return line
}

func (a *FileAnswer) text(op Op) textAnswer {
	t := textAnswer{Errno: a.Errno, Hang: a.Hang, Target: a.Target, Kind: a.Kind, Names: a.Names}
	if op != OpRead && op != OpLines || a.Errno != "" || a.Hang {
		return t
	}
	if text, whole := a.whole(); whole {
		t.Text = &text
		return t
	}
	t.Parts = make([]textPart, len(a.Data))
	for i, s := range a.Data {
		t.Parts[i] = textPart{s.At, hex.EncodeToString(s.Bytes), s.Errno}
	}
	if a.Size >= 0 {
		t.Size = &a.Size
	}
	return t
}

// whole returns the content of a file that was read as a whole and is text.
func (a *FileAnswer) whole() (string, bool) {
	switch {
	case a.Size == 0 && len(a.Data) == 0:
		return "", true
	case len(a.Data) != 1 || a.Data[0].At != 0 || a.Data[0].Errno != "" || int64(len(a.Data[0].Bytes)) != a.Size:
		return "", false
	}
	text := a.Data[0].Bytes
	return string(text), utf8.Valid(text) && !bytes.ContainsFunc(text, func(c rune) bool {
		return c < ' ' && c != '\n' && c != '\t' && c != '\r' || c == 0x7f
	})
}

func (a *Answer) text() textLine {
	line := textLine{Part: a.Part, Question: a.Question, textAnswer: a.Last.text()}
	if a.First != nil {
		first := a.First.text()
		line.First = &first
	}
	return line
}

func (v *Value) text() textAnswer {
	return textAnswer{Errno: v.Errno, Hang: v.Hang, Return: v.Return, Value: v.JSON}
}
