// Package embedded has the captures that come with the exporter: healthy nodes
// and, for each failure that it is made to show, a node that has it.
//
// They are text, so that a change of one can be read. A node with a failure is
// laid over the healthy one: its text has the lines that differ. All of them are
// made by this package's tests, see TestCaptures.
package embedded

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"gdr_exporter/collector/capture"
)

//go:embed captures/*.capture
var texts embed.FS

const (
	directory = "captures"
	extension = ".capture"
)

// ErrUnknown says that there is no capture of a name.
var ErrUnknown = errors.New("no embedded capture")

// Names returns the names of all captures, sorted.
func Names() []string {
	entries, err := fs.ReadDir(texts, directory)
	if err != nil {
		return nil // the directory is part of the program
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, strings.TrimSuffix(entry.Name(), extension))
	}
	slices.Sort(names) // the directory is sorted with the extension
	return names
}

// Open returns a capture. ErrUnknown is the error if there is none of that name.
func Open(name string) (*capture.Recording, error) {
	if strings.ContainsAny(name, `/\`) {
		return nil, fmt.Errorf("%w: %.80q", ErrUnknown, name)
	}
	file, err := texts.Open(directory + "/" + name + extension)
	if err != nil {
		return nil, fmt.Errorf("%w: %.80q", ErrUnknown, name)
	}
	recording, err := capture.ReadOver(file, Open)
	if err != nil {
		return nil, fmt.Errorf("embedded capture %s: %w", name, err)
	}
	return recording, nil
}
