package kmsg

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
)

// match finds out what a line says. escaped is its text as /dev/kmsg has it.
func match(escaped []byte) (event Event, matches bool) {
	text := ""
	for i := range Rows {
		for j := range Rows[i].forms {
			f := &Rows[i].forms[j]
			if !bytes.HasPrefix(escaped, f.begins) || !bytes.Contains(escaped, f.needed) {
				continue
			}
			if text == "" {
				text = unescape(escaped)
			}
			if groups := f.line.FindStringSubmatchIndex(text); groups != nil {
				return f.event(Rows[i].Pattern, text, groups), true
			}
		}
	}
	return Event{}, false
}

// event makes an event of what a form matched.
func (f *form) event(pattern Pattern, text string, groups []int) Event {
	e := Event{Pattern: pattern, Address: address(f.group("addr", text, groups)), Text: shown(text)}
	if code := f.group("code", text, groups); code != "" {
		e.Code, _ = strconv.Atoi(code) // few digits: see the table
	}
	return e
}

// group is what a named group matched, "" if there is none.
func (f *form) group(name, text string, groups []int) string {
	i := f.line.SubexpIndex(name)
	if i < 0 || groups[2*i] < 0 {
		return ""
	}
	return text[groups[2*i]:groups[2*i+1]]
}

// Plain returns of a line what its pattern is made of: fixed words, numbers, and
// names of drivers, functions and interfaces. It returns "" for one that matches
// none. What users wrote is not in it, such as names of processes.
func Plain(line string) string {
	for i := range Rows {
		for j := range Rows[i].forms {
			f := &Rows[i].forms[j]
			groups := f.line.FindStringSubmatchIndex(line)
			if groups == nil {
				continue
			}
			plain := line[:groups[1]]
			if name := f.line.SubexpIndex("name"); name >= 0 {
				plain = line[:groups[2*name]] + "?" + line[groups[2*name+1]:groups[1]]
			}
			return plain
		}
	}
	return ""
}

// Known reports whether there is such a pattern.
func (p Pattern) Known() bool {
	for i := range Rows {
		if Rows[i].Pattern == p {
			return true
		}
	}
	return false
}

// Forms of PCI functions in lines: the driver of GPUs writes no function, DMAR no
// segment.
var (
	noFunction  = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}$`)
	noSegment   = regexp.MustCompile(`^[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	wholeName   = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	shortDomain = regexp.MustCompile(`^0+([0-9a-f]{4}:)`)
)

// address writes a PCI function as sysfs does. Where the kernel leaves out the
// segment it is taken to be 0, as on nearly all machines of the kinds where it
// does; the line has what the kernel said. It returns "" for what is none.
func address(text string) string {
	text = strings.ToLower(text)
	switch {
	case noFunction.MatchString(text):
		text += ".0"
	case noSegment.MatchString(text):
		text = "0000:" + text
	case !wholeName.MatchString(text):
		return ""
	}
	return shortDomain.ReplaceAllString(text, "$1")
}

// maxText bounds the text of an event in bytes.
const maxText = 300

// shown is a line as it is kept: printable, on one line, of bounded length.
func shown(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, text)
	text = strings.TrimSpace(text)
	if len(text) > maxText {
		text = text[:maxText-3] + "..."
	}
	return text
}

// Valid reports whether an event has the form of one that was read: whether its
// address is one, and its text is printable and not too long.
func (e *Event) Valid() bool {
	return (e.Address == "" || address(e.Address) == e.Address) && shown(e.Text) == e.Text
}
