package embedded

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/capture"
)

var (
	update       = flag.Bool("update", false, "write the captures anew")
	recordedFrom = flag.String("recorded", "", "with -update: NAME=FILE, a capture as gdr_exporter capture wrote it")
)

// recorded are the captures of hosts that there were. They stand still.
var recorded = []string{"h200-1", "h200-2", "soft-roce"}

// mostBytes is how large all captures together may be: they are part of every
// program.
const mostBytes = 2_500_000

// without returns a list in JSON without the member of a name.
func without(t *testing.T, list []byte, name string) string {
	t.Helper()
	var all []map[string]any
	if err := json.Unmarshal(list, &all); err != nil {
		t.Fatal(err)
	}
	kept := slices.DeleteFunc(slices.Clone(all), func(member map[string]any) bool { return member["name"] == name })
	if len(kept) != len(all)-1 {
		t.Fatalf("%d members of %d are not %s", len(kept), len(all), name)
	}
	text, err := json.Marshal(kept)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestCaptures compares the captures with what makes them; -update writes them.
func TestCaptures(t *testing.T) {
	base := scenes[healthy].make(t)
	for name, scene := range scenes {
		if testing.Short() && !slices.Contains([]string{healthy, "h100-8x8-demo", "soft-roce"}, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			recording := scene.make(t)
			if scene.base != "" {
				recording = recording.Differences(base, scene.base)
			}
			text := write(t, recording)
			if *update {
				if err := os.WriteFile(fileOf(name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			kept, err := os.ReadFile(fileOf(name))
			if err != nil {
				t.Fatalf("%v; go test ./collector/capture/embedded -update writes it", err)
			}
			want, got := strings.Split(string(kept), "\n"), strings.Split(text, "\n")
			for i := range min(len(want), len(got)) {
				if want[i] != got[i] {
					t.Fatalf("line %d: want %.300s\n     got  %.300s", i+1, want[i], got[i])
				}
			}
			if len(want) != len(got) {
				t.Fatalf("%d lines, %d are kept", len(got), len(want))
			}
		})
	}
}

// TestNames: each capture is made by a scene and opens, and they are not too large.
func TestNames(t *testing.T) {
	names := Names()
	for name := range scenes {
		if !slices.Contains(names, name) {
			t.Errorf("no capture %s", name)
		}
	}
	size := int64(0)
	for _, name := range names {
		if _, found := scenes[name]; !found {
			t.Errorf("nothing makes %s", name)
		}
		info, err := os.Stat(fileOf(name))
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
		recording, err := Open(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if h := recording.Header; len(h.About) < 80 || h.Synthetic == slices.Contains(recorded, name) || h.Base != "" {
			t.Errorf("%s: header %+v", name, h)
		}
		t.Logf("%s: %d bytes, %d files, %d answers", name, info.Size(), len(recording.Files), len(recording.Answers))
	}
	if size > mostBytes {
		t.Errorf("%d bytes, at most %d", size, mostBytes)
	}
}

// TestScenarios: everything in a scenario concerns something, and a moment is the
// same however often it is asked for.
func TestScenarios(t *testing.T) {
	for _, name := range Names() {
		recording, err := Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if recording.Scenario == nil {
			if !slices.Contains(recorded, name) {
				t.Errorf("%s stands still", name)
			}
			continue
		}
		for _, c := range recording.Scenario.Counts {
			if !concerns(recording, c.Target) {
				t.Errorf("%s: nothing is counted by %+v", name, c)
			}
		}
		for _, c := range recording.Scenario.Changes {
			if !concerns(recording, c.Target) {
				t.Errorf("%s: nothing is changed by %+v", name, c.Target)
			}
		}
		if one, two := write(t, recording.At(90*time.Second)), write(t, recording.At(90*time.Second)); one != two || one == write(t, recording.At(0)) {
			t.Errorf("%s: it does not move, or not always alike", name)
		}
	}
}

// concerns reports whether there is something in a recording that a target means.
func concerns(r *capture.Recording, target capture.Target) bool {
	for i := range r.Files {
		f := &r.Files[i]
		if found, _ := path.Match(target.Path, f.Path); found && (target.Op == f.Op || target.Op == "") {
			return true
		}
		if target.Op == "" && target.Path != "" && f.Op == capture.OpList && f.Path == path.Dir(target.Path) && slices.Contains(f.Last.Names, path.Base(target.Path)) {
			return true
		}
	}
	for i := range r.Answers {
		a := &r.Answers[i]
		if found, _ := path.Match(target.Question, a.Question); found && target.Part == a.Part {
			return true
		}
	}
	return false
}

func TestUnknown(t *testing.T) {
	for _, name := range []string{"", "none", "../captures/h100-8x8", "h100-8x8.capture", strings.Repeat("x", 5000), "."} {
		if r, err := Open(name); !errors.Is(err, ErrUnknown) || r != nil {
			t.Errorf("%.20q: %v", name, err)
		}
	}
}
