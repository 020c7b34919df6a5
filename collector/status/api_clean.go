package status

import (
	"math"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// mostClean bounds each text of a Document, in characters. What the diagnosis says
// is shorter; sysfs may hold a whole page, and a log a very long line.
const mostClean = 420

// clean makes every text of a Document printable and of bounded length, and every
// number that JSON cannot hold (NaN, the infinities) null. It is done in one place,
// over all fields, so that no view can forget one.
func clean(document *Document) { cleanValue(reflect.ValueOf(document).Elem()) }

func cleanValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if text := v.String(); !isPlain(text) {
			v.SetString(cleanText(text))
		}
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		if v.Type().Elem().Kind() == reflect.Float64 {
			if !finite(v.Elem().Float()) {
				v.SetZero()
			}
			return
		}
		cleanValue(v.Elem())
	case reflect.Float64:
		if !finite(v.Float()) {
			v.SetFloat(0)
		}
	case reflect.Slice:
		for i := range v.Len() {
			cleanValue(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				cleanValue(v.Field(i))
			}
		}
	default:
	}
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// isPlain reports whether a text needs no cleaning, as nearly all do.
func isPlain(text string) bool {
	if len(text) > mostClean {
		return false
	}
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// cleanText replaces what is no text, marks of writing direction among them, and
// cuts what is too long.
func cleanText(text string) string {
	if utf8.RuneCountInString(text) > mostClean {
		text = string([]rune(text)[:mostClean]) + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
