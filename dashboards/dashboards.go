// Package dashboards builds the Grafana dashboards, which are committed as JSON beside it.
//
// They are classic dashboards (schemaVersion 42), which every Grafana from 10.4 loads, from
// a file, from a ConfigMap or by hand. All queries go to the data source of a variable.
package dashboards

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

//go:generate go run ./generate

// Dashboard is one of the dashboards, with the name of its file.
type Dashboard struct {
	File  string
	Model dashboard.Dashboard //nolint:staticcheck // the classic form, which all Grafanas load, on purpose
}

// All returns all dashboards, from the whole fleet to the single port.
func All() ([]Dashboard, error) {
	var all []Dashboard
	for _, b := range []board{fleet(), node(), fabric()} {
		model, err := b.build()
		if err != nil {
			return nil, fmt.Errorf("dashboard %s: %w", b.uid, err)
		}
		all = append(all, Dashboard{File: b.uid + ".json", Model: model})
	}
	return all, nil
}

// JSON is the content of the dashboard's file.
func (d *Dashboard) JSON() ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // "<" and "&" of queries stay readable
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(d.Model); err != nil {
		return nil, fmt.Errorf("dashboard %s: %w", d.File, err)
	}
	return text.Bytes(), nil
}
