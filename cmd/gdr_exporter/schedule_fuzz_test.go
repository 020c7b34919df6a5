package main

import (
	"fmt"
	"strings"
	"testing"
)

// FuzzParsePair: a pair that is taken says what was asked for.
func FuzzParsePair(f *testing.F) {
	f.Add("0000:1B:00.0/mlx5_0:1")
	f.Add("0000:1b:00.0/mlx5_0")
	f.Add("/:")
	f.Fuzz(func(t *testing.T, text string) {
		pair, err := parsePair(text)
		if err != nil {
			return
		}
		want := strings.ToLower(pair.GPU) + "/" + pair.Device
		if got, _, _ := strings.Cut(text[len(pair.GPU):], ":"); strings.ToLower(text[:len(pair.GPU)])+got != want {
			t.Errorf("%q: %+v", text, pair)
		}
		if numbered := strings.Contains(text[len(pair.GPU):], ":"); numbered != (pair.Port > 0) || pair.Port > 255 {
			t.Errorf("%q: port %s", text, fmt.Sprint(pair.Port))
		}
	})
}
