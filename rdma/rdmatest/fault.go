package rdmatest

import (
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const einval = syscall.EINVAL

// Rule says how a file or directory misbehaves. The zero rule changes nothing.
type Rule struct {
	OpenErrno syscall.Errno // open of a file, or of a directory for listing, fails with it
	Errno     syscall.Errno // each read fails with it
	Once      bool          // only the first read does
	Content   *string       // a read returns this instead of the file's content
	Short     int           // a read returns at most so many bytes, if not 0
	Hang      bool          // a read blocks until the rule is released
	HangOpen  bool          // an open blocks until the rule is released
	Delay     time.Duration // a read takes so long
}

// Text is a rule by which a file has this content.
func Text(content string) Rule { return Rule{Content: &content} }

// Fault is a rule and the path it is for. A path is relative to the root of the served tree; "*" stands for any part of a name and a last
// element "**" for everything below.
type Fault struct {
	Path string
	Rule Rule
}

// refuses reports whether a read fails with Errno.
func (a *active) refuses() bool { return a.Errno != 0 && (!a.failed.Swap(true) || !a.Once) }

// active is a rule in force; gone is closed when it is replaced, cleared or released, which ends its hangs.
type active struct {
	Rule
	pattern string
	match   func(path string) bool
	failed  atomic.Bool // a read failed with Errno
	gone    chan struct{}
}

// rules is the list of rules in force, of which the last that fits a path counts.
type rules struct {
	mu     sync.Mutex
	list   []*active
	closed bool
}

func (r *rules) find(name string) *active {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.list) - 1; i >= 0; i-- {
		if r.list[i].match(name) {
			return r.list[i]
		}
	}
	return &active{}
}

// set puts a rule in force in place of the one with the same pattern.
func (r *rules) set(pattern string, match func(string) bool, rule Rule) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.remove(pattern)
	r.list = append(r.list, &active{Rule: rule, pattern: pattern, match: match, gone: make(chan struct{})})
}

// drop ends a rule; requests that hang by it look for the rule that is in force then.
func (r *rules) drop(pattern string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.remove(pattern)
}

func (r *rules) remove(pattern string) bool {
	for i, rule := range r.list {
		if rule.pattern == pattern {
			r.list = append(r.list[:i:i], r.list[i+1:]...)
			close(rule.gone)
			return true
		}
	}
	return false
}

// dropAll ends all rules, for good if final.
func (r *rules) dropAll(final bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rule := range r.list {
		close(rule.gone)
	}
	r.list, r.closed = nil, r.closed || final
}

// matcher returns the test for a pattern.
func matcher(pattern string) func(string) bool {
	if above, ok := strings.CutSuffix(pattern, "/**"); ok {
		return func(name string) bool {
			for ; name != "." && name != "/"; name = path.Dir(name) {
				if ok, _ := path.Match(above, name); ok {
					return true
				}
			}
			return false
		}
	}
	if !strings.ContainsAny(pattern, `*?[\`) {
		return func(name string) bool { return name == pattern }
	}
	return func(name string) bool { ok, _ := path.Match(pattern, name); return ok }
}
