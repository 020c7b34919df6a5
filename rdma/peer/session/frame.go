package session

import (
	"encoding/binary"
	"fmt"
	"io"
	"syscall"
)

// MaxMessage is how long a message is at most, in bytes without its length.
const MaxMessage = 64 << 10

const headerSize = 4

// The first byte of what TLS sends in clear is between these, the second one is 3. As
// a length it would be too long.
const recordAlert, recordData = 21, 23

// readFrame reads a message. Nothing is allocated for what is too long.
func readFrame(from io.Reader) ([]byte, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(from, header[:]); err != nil {
		return nil, err // io.EOF between two messages, io.ErrUnexpectedEOF within one
	}
	if header[0] >= recordAlert && header[0] <= recordData && header[1] == 3 {
		return nil, failf(ReasonTLS, "", "the other side speaks TLS and this one does not: %w", syscall.EPROTO)
	}
	length := binary.BigEndian.Uint32(header[:])
	if length == 0 || length > MaxMessage {
		return nil, protocolError("a message of %d bytes: %w", length, syscall.EMSGSIZE)
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(from, text); err != nil {
		if err == io.EOF { //nolint:errorlint // ReadFull returns it as it is
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return text, nil
}

// writeFrame writes a message at once, so that it is one record of TLS or few.
func writeFrame(to io.Writer, text []byte) error {
	if len(text) == 0 || len(text) > MaxMessage {
		return fmt.Errorf("a message of %d bytes: %w", len(text), syscall.EMSGSIZE)
	}
	_, err := to.Write(append(binary.BigEndian.AppendUint32(make([]byte, 0, headerSize+len(text)), uint32(len(text))), text...))
	return err
}
