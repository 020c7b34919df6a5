package nccllog

import "strings"

// entry is what NCCL wrote at once.
type entry struct {
	host string // as NCCL prints it: up to the first dot
	pid  string
	dev  string // CUDA device of the thread, -1 for none
	// source is the file and line before NCCL WARN, "" for INFO.
	source string
	level  string // INFO, WARN, TRACE
	text   string
	// cut: its end is not known to be that of what NCCL wrote. Either another
	// process's output follows without a line end, or the file ends.
	cut bool
}

// levels are the words that follow "NCCL " in what NCCL_DEBUG writes.
var levels = []string{"INFO", "WARN", "TRACE", "CALL", "ABORT"}

// marker finds the next "NCCL LEVEL " in text from an index on.
func marker(text string, from int) (at, end int, level string) {
	for {
		found := strings.Index(text[from:], "NCCL ")
		if found < 0 {
			return -1, -1, ""
		}
		at = from + found
		rest := text[at+len("NCCL "):]
		for _, level := range levels {
			if strings.HasPrefix(rest, level+" ") || rest == level {
				return at, min(at+len("NCCL ")+len(level)+1, len(text)), level
			}
		}
		from = at + len("NCCL ")
	}
}

// split takes a line apart. Processes that share a file write into each other's
// lines, so that one line may have several entries.
func (p *parser) split(text string, ended bool) {
	at, end, level := marker(text, 0)
	if at < 0 {
		p.loose(text)
		return
	}
	start, next := p.prefix(text[:at])
	if start > 0 {
		p.loose(text[:start])
	}
	for at >= 0 {
		e := next
		e.level = level
		body := end
		at, end, level = marker(text, body)
		stop := len(text)
		e.cut = !ended
		if at >= 0 {
			start, next = p.prefix(text[body:at])
			stop = body + start
			e.cut = true
		}
		e.text = tail(text[body:stop])
		p.entry(&e)
	}
}

// tail cuts what container runtimes put behind a line in their JSON.
func tail(text string) string {
	if end := strings.Index(text, `\n"`); end >= 0 {
		text = text[:end]
	}
	return strings.TrimSpace(text)
}

// farthest is how far before the marker a prefix may begin.
const farthest = 1024

// prefix takes "host:pid:tid [dev] file:line " from the end of text, and says where
// it begins. Before it there may be anything: the prefixes of mpirun, srun,
// torchrun and kubectl, timestamps, another process's output.
func (p *parser) prefix(text string) (int, entry) {
	base := max(0, len(text)-farthest)
	near := text[base:]
	for open := strings.LastIndexByte(near, '['); open > 0; open = strings.LastIndexByte(near[:open], '[') {
		device, _, closed := strings.Cut(near[open+1:min(open+1+len("-9999]"), len(near))], "]")
		if !closed || !isDevice(device) {
			continue
		}
		start, e, found := p.thread(strings.TrimRight(near[:open], " "))
		if !found {
			continue
		}
		e.dev, e.source = strings.Clone(device), strings.TrimSpace(near[open+1+len(device)+1:])
		return base + start, e
	}
	return len(text), entry{}
}

func isDevice(text string) bool {
	text = strings.TrimPrefix(text, "-")
	return text != "" && len(text) < 5 && digits(text) == len(text)
}

// thread takes "host:pid:tid" from the end of text.
func (p *parser) thread(text string) (start int, e entry, found bool) {
	var ok bool
	rest := text
	if rest, _, ok = lastNumber(rest); !ok {
		return 0, entry{}, false
	}
	var pid string
	if rest, pid, ok = lastNumber(rest); !ok {
		return 0, entry{}, false
	}
	start = len(rest)
	for start > 0 && isHostByte(rest[start-1]) && len(rest)-start < 253 {
		start--
	}
	if start == len(rest) {
		return 0, entry{}, false
	}
	start = p.trueHost(rest, start)
	return start, entry{host: p.hostName(rest[start:]), pid: strings.Clone(pid)}, true
}

// lastNumber takes ":digits" from the end of text.
func lastNumber(text string) (rest, number string, found bool) {
	start := len(text)
	for start > 0 && text[start-1] >= '0' && text[start-1] <= '9' && len(text)-start < 10 {
		start--
	}
	if start == len(text) || start == 0 || text[start-1] != ':' {
		return "", "", false
	}
	return text[:start-1], text[start:], true
}

func isHostByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
}

// trueHost is where the host's name begins in text, which may have the end of
// another process's output glued to its front: if the whole is no known host but
// an end of it is, that is it.
func (p *parser) trueHost(text string, start int) int {
	if start == 0 || p.hosts.known(text[start:]) != nil {
		return start
	}
	for at := start + 1; at < len(text); at++ {
		if p.hosts.known(text[at:]) != nil {
			return at
		}
	}
	return start
}

// hostName is the one copy of a host's name that is kept.
func (p *parser) hostName(name string) string {
	if known := p.hosts.known(name); known != nil {
		return *known
	}
	cleaned := clean(name)
	*p.hosts.at(cleaned) = cleaned
	return cleaned
}
