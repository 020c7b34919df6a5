package main

import (
	"bytes"
	"io"
	"sync"
)

// mostLine is how much of a line is kept until its end has come. Longer ones are
// passed on in parts.
const mostLine = 64 << 10

// prefixer passes on whole lines, each behind a prefix, so that the outputs of several
// VMs can be told apart.
type prefixer struct {
	out    io.Writer
	prefix string
	shared *sync.Mutex // of all that write to out

	mu   sync.Mutex
	part []byte // of a line
}

func newPrefixer(out io.Writer, prefix string, shared *sync.Mutex) *prefixer {
	return &prefixer{out: out, prefix: prefix, shared: shared}
}

// Write never fails: see stream.
func (p *prefixer) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.part = append(p.part, data...)
	end := bytes.LastIndexByte(p.part, '\n') + 1
	if end == 0 && len(p.part) > mostLine {
		p.pass(p.part)
		p.part = nil
		return len(data), nil
	}
	p.pass(p.part[:end])
	p.part = append([]byte(nil), p.part[end:]...)
	return len(data), nil
}

// flush ends a line that has no end.
func (p *prefixer) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pass(p.part)
	p.part = nil
}

func (p *prefixer) pass(text []byte) {
	if len(text) == 0 {
		return
	}
	var lines bytes.Buffer
	for line := range bytes.Lines(text) {
		lines.WriteString(p.prefix)
		lines.Write(line)
	}
	if text[len(text)-1] != '\n' {
		lines.WriteByte('\n')
	}
	p.shared.Lock()
	defer p.shared.Unlock()
	_, _ = p.out.Write(lines.Bytes())
}

// flush passes on what is left of the outputs of one of several VMs.
func (v *vm) flush() {
	for _, output := range []io.Writer{v.stdout, v.stderr} {
		if p, is := output.(*prefixer); is {
			p.flush()
		}
	}
}
