package main

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

// consoleLimit is how much of the console's end is kept for messages: the
// registers and stack of a panic are some 4 KiB.
const consoleLimit = 64 << 10

// console keeps the end of the kernel's console output.
type console struct {
	copyTo io.Writer

	mu   sync.Mutex
	tail []byte
}

func newConsole(copyTo io.Writer) *console {
	return &console{copyTo: copyTo}
}

// Write never fails, so that a full disk behind --console-log does not stop
// the VM.
func (c *console) Write(data []byte) (int, error) {
	_, _ = c.copyTo.Write(data)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tail = append(c.tail, data...)
	if extra := len(c.tail) - consoleLimit; extra > 0 {
		c.tail = append(c.tail[:0], c.tail[extra:]...)
	}
	return len(data), nil
}

// text returns the kept output with plain line ends.
func (c *console) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(bytes.ReplaceAll(c.tail, []byte("\r"), nil))
}

// verdict finds the line that says why the VM died, if there is one.
func (c *console) verdict() string {
	for line := range strings.Lines(c.text()) {
		for _, mark := range []string{panicMark, initMark} {
			if _, reason, ok := strings.Cut(line, mark); ok {
				return mark + strings.TrimSpace(reason)
			}
		}
	}
	return ""
}

// panicMark is what the kernel prints before the reason of a panic.
const panicMark = "Kernel panic - not syncing: "

// initMark is what init says before why it gives up.
const initMark = "vmtest: init: "

// lastWords is the part of the console's output that belongs into a message:
// from a panic on if there was one, whose stack can be long, else the last
// lines.
func lastWords(text string) string {
	const some, many = 40, 120
	_, after, panicked := strings.Cut(text, panicMark)
	if !panicked {
		return lastLines(text, some)
	}
	lines := strings.Split(strings.TrimRight(after, "\r\n"), "\n")
	return strings.Join(lines[:min(many, len(lines))], "\n")
}
