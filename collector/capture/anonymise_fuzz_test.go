package capture

import (
	"bytes"
	"strings"
	"testing"
)

// FuzzAnonymise: whatever is in a recording, anonymising it does not fail, and
// what comes of it is a recording that can be written and read, or too long.
func FuzzAnonymise(f *testing.F) {
	for _, recording := range []*Recording{sample(), plantedHost()} {
		var text bytes.Buffer
		if err := recording.WriteText(&text); err != nil {
			f.Fatal(err)
		}
		f.Add(text.String(), "secret-node")
	}
	f.Add(sampleText, "sys")
	f.Fuzz(func(t *testing.T, text, host string) {
		recording, err := Read(strings.NewReader(text))
		if err != nil {
			return
		}
		anonymous, _ := Anonymise(recording, testKey(1), []string{host})
		var written bytes.Buffer
		if err := anonymous.WriteText(&written); err != nil {
			if len(text) < maxPath/4 {
				t.Fatalf("%v\n%s", err, text)
			}
			return
		}
		if _, err := Read(&written); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzPseudonyms: no text makes it fail, and a text of a form keeps it.
func FuzzPseudonyms(f *testing.F) {
	for _, text := range planted {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p := newPseudonyms(testKey(1), []string{text, "node-17"})
		for _, kind := range []kind{kindGUID, kindGID, kindMAC, kindIP, kindUUID, kindHost, kindText, kindPath} {
			first := p.of(kind, text)
			if p.of(kind, text) != first {
				t.Errorf("%s %q", kind, text)
			}
		}
		knownParams(p, text)
		knownCommandLine(p, text)
		mountPoints(p, text)
		mappedFiles(p, text)
		withoutBuilder(p, text)
	})
}
