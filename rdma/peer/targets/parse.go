package targets

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v2"
)

// Bounds of what a file may say: beyond is a mistake, or another kind of file.
const (
	maxFile       = 16 << 20
	maxEntries    = 1 << 18 // few lines of YAML can say many of them
	maxLabels     = 64
	maxLabelBytes = 1024
)

// DefaultMost is how many targets a list may have if nothing is said.
const DefaultMost = 1 << 14

// group is an entry of Prometheus's file_sd format.
type group struct {
	Targets []string          `yaml:"targets" json:"targets"`
	Labels  map[string]string `yaml:"labels" json:"labels"`
}

// Ports say which port a target has.
type Ports struct {
	Default uint16 // of those that name none; 0: DefaultPort
	// Always, if not 0, is that of all, whatever they name: for a list that is made
	// for the scrapes of the same nodes.
	Always uint16
}

// Parse reads text in the format of Prometheus's file_sd, JSON if the name ends so,
// else YAML. The error is of one line, and names the entry; then nothing of the
// text is good.
func Parse(name string, text []byte, ports Ports) ([]Target, error) {
	if ports.Default == 0 {
		ports.Default = DefaultPort
	}
	decode := decodeYAML
	if strings.EqualFold(filepath.Ext(name), ".json") {
		decode = decodeJSON
	}
	groups, err := decode(text)
	if err != nil {
		return nil, err
	}
	var all []Target
	for i, g := range groups {
		if g == nil {
			return nil, fmt.Errorf("group %d is empty", i+1)
		}
		if err := checkLabels(g.Labels); err != nil {
			return nil, fmt.Errorf("group %d: %w", i+1, err)
		}
		if len(all)+len(g.Targets) > maxEntries {
			return nil, fmt.Errorf("group %d: more than %d targets", i+1, maxEntries)
		}
		for j, entry := range g.Targets {
			t, err := ParseAddress(entry, ports.Default)
			if err != nil {
				return nil, fmt.Errorf("group %d, target %d (%.80q): %w", i+1, j+1, entry, err)
			}
			if ports.Always != 0 {
				t.Port = ports.Always
			}
			t.Labels, t.Source = g.Labels, name
			all = append(all, t)
		}
	}
	return all, nil
}

var errEmpty = errors.New("there is nothing in it: no targets at all are written []")

func decodeYAML(text []byte) (groups []*group, err error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.SetStrict(true)
	switch err := decoder.Decode(&groups); {
	case errors.Is(err, io.EOF):
		return nil, errEmpty
	case err != nil:
		return nil, oneLine(err)
	case groups == nil:
		return nil, errEmpty
	}
	if err := decoder.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one document in it")
	}
	return groups, nil
}

func decodeJSON(text []byte) (groups []*group, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	switch err := decoder.Decode(&groups); {
	case errors.Is(err, io.EOF):
		return nil, errEmpty
	case err != nil:
		return nil, fmt.Errorf("byte %d: %w", decoder.InputOffset(), oneLine(err))
	case groups == nil:
		return nil, errEmpty
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is something behind the list")
	}
	return groups, nil
}

// oneLine is the first thing that a decoder says, without the names of Go's types.
func oneLine(err error) error {
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "json: ")
	if of := (*yaml.TypeError)(nil); errors.As(err, &of) && len(of.Errors) > 0 {
		text = of.Errors[0]
	}
	for _, typed := range []string{" in type ", " into targets.", " into []*targets.", " into Go "} {
		text, _, _ = strings.Cut(text, typed)
	}
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
	const most = 200
	if len(text) > most {
		text = text[:most] + "..."
	}
	return errors.New(strings.ToValidUTF8(text, "?"))
}

func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return fmt.Errorf("%d labels are more than %d", len(labels), maxLabels)
	}
	for _, name := range slices.Sorted(maps.Keys(labels)) { // the same mistake each time
		switch value := labels[name]; {
		case !labelName(name):
			return fmt.Errorf("%.80q is no name of a label", name)
		case len(value) > maxLabelBytes:
			return fmt.Errorf("label %.80s is longer than %d bytes", name, maxLabelBytes)
		}
	}
	return nil
}

func labelName(name string) bool {
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		return false
	}
	return len(name) <= maxLabelBytes && !strings.ContainsFunc(name, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}
