package child

import (
	"bytes"
	"strings"
	"sync"
	"unicode"
)

// mostStderr is what is kept of the beginning and of the end of what a child writes
// to its standard error.
const mostStderr = 4 << 10

// tail keeps the beginning and the end of what is written to it.
type tail struct {
	mu         sync.Mutex
	head, last []byte
}

// Write implements io.Writer.
func (t *tail) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	written := len(text)
	room := min(mostStderr-len(t.head), len(text))
	t.head = append(t.head, text[:room]...)
	t.last = append(t.last, text[room:]...)
	if over := len(t.last) - mostStderr; over > 0 {
		t.last = append(t.last[:0], t.last[over:]...)
	}
	return written, nil
}

// causes are how the line begins that says why a Go process died; what follows it
// are the stacks of its goroutines.
var causes = []string{"panic: ", "fatal error: ", "SIG"}

// mostCause is the longest line that is shown.
const mostCause = 200

// cause is the line that says most about a death: where Go says why, that one, else
// the last.
func (t *tail) cause() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	best := ""
	for line := range bytes.Lines(append(append([]byte{}, t.head...), t.last...)) {
		text := printable(string(line))
		if text == "" {
			continue
		}
		best = text
		for _, cause := range causes {
			if strings.HasPrefix(text, cause) {
				return text
			}
		}
	}
	return best
}

// printable makes a line fit for a log.
func printable(line string) string {
	line = strings.Map(func(c rune) rune {
		if c == unicode.ReplacementChar || !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, line)
	line = strings.TrimSpace(line)
	if runes := []rune(line); len(runes) > mostCause {
		line = string(runes[:mostCause]) + "..."
	}
	return line
}
