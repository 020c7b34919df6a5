package collector

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxLabel bounds a label value in bytes. The kernel's names are shorter (64
// for a device, 255 for a file), and so is what firmware says of itself.
const maxLabel = 1024

// printable returns text fit for a label value. What is not printable becomes
// an escape like \x07, and a backslash two, so that different texts stay
// different and no two series fall together.
func printable(text string) string {
	if plain(text) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 && b.Len() < maxLabel {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == '\\':
			b.WriteString(`\\`)
		case r == utf8.RuneError && size == 1, !unicode.IsPrint(r):
			for i := range size {
				fmt.Fprintf(&b, `\x%02x`, text[i])
			}
		default:
			b.WriteString(text[:size])
		}
		text = text[size:]
	}
	return b.String()
}

// plain reports whether text is short printable ASCII, as nearly all is.
func plain(text string) bool {
	if len(text) > maxLabel {
		return false
	}
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '\\' {
			return false
		}
	}
	return true
}
