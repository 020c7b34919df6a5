package nccllog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// chunk is the longest line that is looked at as one. What is longer, such as
// binary data without line ends, is looked at in pieces.
const chunk = 64 << 10

// lines reads a stream line by line in constant memory.
type lines struct{ r *bufio.Reader }

// newLines unpacks the stream if it begins as gzip does.
func newLines(r io.Reader) (*lines, error) {
	buffered := bufio.NewReaderSize(r, chunk)
	magic, err := buffered.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read: %w", err)
	}
	if !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return &lines{buffered}, nil
	}
	unpacked, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, fmt.Errorf("unpack gzip: %w", err)
	}
	return &lines{bufio.NewReaderSize(unpacked, chunk)}, nil
}

// next returns a line, and whether it has an end: the last line of a file that is
// still being written has none, and a piece of one that is too long. The bytes are
// valid until the next call. At the end of the stream the error is io.EOF.
func (l *lines) next() (line []byte, ended bool, err error) {
	line, err = l.r.ReadSlice('\n')
	switch {
	case err == nil:
		return line[:len(line)-1], true, nil
	case errors.Is(err, bufio.ErrBufferFull):
		return line, false, nil
	case errors.Is(err, io.EOF) && len(line) > 0:
		return line, false, nil
	case errors.Is(err, io.EOF):
		return nil, false, io.EOF
	case len(line) > 0: // the error comes again at the next call
		return line, false, nil
	default:
		return nil, false, fmt.Errorf("read: %w", err)
	}
}
