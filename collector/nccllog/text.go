package nccllog

import (
	"strings"
	"unicode"
)

// mostText is how many characters of a text from the log are kept.
const mostText = 120

// clean is text as it may be kept and shown: without control characters, not
// long, and in memory of its own rather than that of the line.
func clean(text string) string {
	text = strings.TrimSpace(text[:min(len(text), 8*mostText)])
	var b strings.Builder
	count := 0
	for _, r := range text {
		if count++; count > mostText {
			b.WriteRune('…')
			break
		}
		if !unicode.IsPrint(r) {
			r = unicode.ReplacementChar
		}
		b.WriteRune(r)
	}
	return b.String()
}

// plain is text without what colours a terminal and without the bytes that no
// line of text has.
func plain(text string) string {
	if strings.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) < 0 {
		return text
	}
	var b strings.Builder
	b.Grow(len(text))
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == 0x1b:
			i += escapeLength(text[i:])
			continue
		case c >= ' ' && c != 0x7f || c == '\t':
			b.WriteByte(c)
		}
		i++
	}
	return b.String()
}

// escapeLength is how long the escape sequence is that text begins with: CSI up to
// its final byte, OSC up to BEL or ESC, others two bytes. What does not end is
// taken for the escape character alone, so that it hides nothing.
func escapeLength(text string) int {
	if len(text) < 2 {
		return len(text)
	}
	switch text[1] {
	case '[':
		for i := 2; i < len(text) && i < 32; i++ {
			if text[i] >= 0x40 && text[i] <= 0x7e {
				return i + 1
			}
		}
		return 1
	case ']':
		if end := strings.IndexAny(text[2:min(len(text), 256)], "\a\x1b"); end >= 0 {
			return 2 + end + 1
		}
		return 1
	default:
		return 2
	}
}

// digits is how many decimal digits text begins with.
func digits(text string) int {
	n := 0
	for n < len(text) && text[n] >= '0' && text[n] <= '9' {
		n++
	}
	return n
}

// number is the decimal number that text begins with, and whether there is one.
// What does not fit is none.
func number(text string) (int, bool) {
	n := digits(text)
	if n == 0 || n > 9 {
		return 0, false
	}
	value := 0
	for i := range n {
		value = 10*value + int(text[i]-'0')
	}
	return value, true
}

// after is what follows mark in text up to a blank, and whether mark is there.
func after(text, mark string) (string, bool) {
	_, rest, found := strings.Cut(text, mark)
	if !found {
		return "", false
	}
	if end := strings.IndexByte(rest, ' '); end >= 0 {
		rest = rest[:end]
	}
	return rest, true
}
