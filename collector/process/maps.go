package process

import (
	"bytes"
	"fmt"
	"regexp"

	"gdr_exporter/collector/sysread"
)

// Libraries are the communication libraries that a process has mapped, by the names
// of their files. One that is linked into another file, as NCCL is into some builds
// of PyTorch, does not show.
type Libraries struct {
	// NCCL is the version of libnccl.so as far as its file's name has it: "2.23.4",
	// "2" of Python packages, which call it libnccl.so.2, "0" without any; "" none is mapped.
	NCCL string `json:"nccl,omitempty"`
	// UCX: libucp is mapped. Its file's name has no version of UCX.
	UCX bool `json:"ucx,omitempty"`
}

// unversioned is Libraries.NCCL of a file whose name has no version.
const unversioned = "0"

// Bounds of /proc/PID/maps: a process has up to 65,530 mappings
// (vm.max_map_count), some ten thousand with PyTorch.
const (
	maxMaps     = 64 << 20
	maxMapsLine = 4096 + 256
	chunk       = 1 << 14
)

// Libraries reads /proc/PID/maps piece by piece. Each piece holds the lock of the
// process's memory map for a moment.
func (p *Proc) Libraries(pid int) (Libraries, error) {
	var s mapsScanner
	err := p.stream(p.path(pid, "maps"), maxMaps, s.feed)
	if err == nil {
		s.end()
	}
	return s.found, err
}

// stream reads a file piece by piece and forgets each piece once it has been fed.
func (p *Proc) stream(path string, limit int64, feed func(piece []byte)) error {
	io := &sysread.IO{Files: p.Files}
	file, err := sysread.Open(io, path)
	if err != nil {
		return err
	}
	defer file.Close()
	buf := make([]byte, chunk)
	defer clear(buf)
	for offset := int64(0); ; {
		n, err := file.ReadAt(buf, offset)
		switch {
		case err != nil:
			return err
		case n == 0: // seq_file gives fewer bytes than asked for before its end
			return nil
		case offset+int64(n) > limit:
			return fmt.Errorf("%w: longer than %d bytes", sysread.ErrInvalid, limit)
		}
		feed(buf[:n])
		clear(buf[:n])
		offset += int64(n)
	}
}

// mapsScanner looks for libraries in the lines of /proc/PID/maps.
type mapsScanner struct {
	line  []byte
	long  bool // the line is longer than any that counts
	found Libraries
}

func (s *mapsScanner) feed(piece []byte) {
	for len(piece) > 0 {
		part, rest, ended := bytes.Cut(piece, []byte("\n"))
		if len(s.line)+len(part) > maxMapsLine {
			s.long = true
		} else {
			s.line = append(s.line, part...)
		}
		if !ended {
			return
		}
		s.end()
		piece = rest
	}
}

// Names of the libraries' files. Python packages put a part of a hash into some.
var (
	ncclFile = regexp.MustCompile(`^libnccl(?:-[0-9a-f]{8})?\.so(?:\.([0-9]{1,4}(?:\.[0-9]{1,4}){0,3}))?$`)
	ucpFile  = regexp.MustCompile(`^libucp(?:-[0-9a-f]{8})?\.so(?:\.[0-9.]+)?$`)
)

// end looks at the line that has ended.
func (s *mapsScanner) end() {
	line := bytes.TrimSuffix(s.line, []byte(" (deleted)"))
	name := line[bytes.LastIndexByte(line, '/')+1:]
	switch {
	case s.long || len(name) == len(line):
	case ucpFile.Match(name):
		s.found.UCX = true
	default:
		if match := ncclFile.FindSubmatch(name); match != nil {
			version := string(match[1])
			if version == "" {
				version = unversioned
			}
			if len(version) > len(s.found.NCCL) { // the one that says more
				s.found.NCCL = version
			}
		}
	}
	s.line, s.long = s.line[:0], false
}
