package child

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// ErrFlood says that the other side wrote far more than it has to say.
var ErrFlood = errors.New("it wrote too much")

// ReadLines reads lines until there are no more, or line says that it wants none. One
// that is longer than longest bytes ends it with ErrFlood, as do more than most in all.
func ReadLines(in io.Reader, longest int, most int64, line func([]byte) (more bool)) error {
	limited := &io.LimitedReader{R: in, N: most}
	lines := bufio.NewScanner(limited)
	lines.Buffer(make([]byte, 0, min(longest, 64<<10)), longest)
	for lines.Scan() {
		if !line(lines.Bytes()) {
			return nil
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) || limited.N <= 0 {
		return ErrFlood
	}
	return nil // the end of what it says, however it came
}

// Teller writes messages to the other side, until one cannot be written: it is gone then.
type Teller struct {
	mu     sync.Mutex
	out    io.Writer
	broken func()
	err    error
}

// NewTeller tells out. broken is called when that fails, with a lock held.
func NewTeller(out io.Writer, broken func()) *Teller { return &Teller{out: out, broken: broken} }

// Tell writes a message as a line of JSON.
func (t *Teller) Tell(message any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return
	}
	line, err := json.Marshal(message)
	if err == nil {
		_, err = t.out.Write(append(line, '\n'))
	}
	if err != nil {
		t.err = fmt.Errorf("telling the parent: %w", err)
		t.broken()
	}
}

// Err is why a message could not be written, nil if all were.
func (t *Teller) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}
