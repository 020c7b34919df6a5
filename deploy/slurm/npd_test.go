package slurm_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// npdConfig is the configuration of a custom plugin monitor of the node problem
// detector (pkg/custompluginmonitor/types).
type npdConfig struct {
	Plugin string `json:"plugin"`
	Global struct {
		Interval    string `json:"invoke_interval"`
		Timeout     string `json:"timeout"`
		MaxOutput   int    `json:"max_output_length"`
		Concurrency int    `json:"concurrency"`
		Messages    bool   `json:"enable_message_change_based_condition_update"`
	} `json:"pluginConfig"`
	Source     string `json:"source"`
	Metrics    bool   `json:"metricsReporting"`
	Conditions []struct {
		Type    string `json:"type"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
	} `json:"conditions"`
	Rules []struct {
		Type      string   `json:"type"`
		Condition string   `json:"condition"`
		Reason    string   `json:"reason"`
		Path      string   `json:"path"`
		Args      []string `json:"args"`
		Timeout   string   `json:"timeout"`
	} `json:"rules"`
}

// TestNPDConfig: the detector would take the file, and gives the plugin time to end.
func TestNPDConfig(t *testing.T) {
	t.Parallel()
	file, err := os.Open("../node-problem-detector/gdr-exporter.json")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	decoder := json.NewDecoder(file)
	decoder.DisallowUnknownFields()
	var c npdConfig
	if err := decoder.Decode(&c); err != nil {
		t.Fatal(err)
	}
	span := func(text string) time.Duration {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Error(err)
		}
		return d
	}
	if c.Plugin != "custom" || c.Source == "" || len(c.Rules) != 1 || len(c.Conditions) != 1 || c.Global.MaxOutput < 160 {
		t.Fatalf("%+v", c)
	}
	rule := c.Rules[0]
	if rule.Type != "permanent" || rule.Condition != c.Conditions[0].Type || rule.Reason == c.Conditions[0].Reason {
		t.Errorf("%+v", rule)
	}
	const slowest = 10*time.Second + 14*time.Second // of gdr_verdict
	if timeout := span(rule.Timeout); timeout > span(c.Global.Timeout) || timeout < slowest || span(c.Global.Interval) < span(c.Global.Timeout) {
		t.Errorf("timeout %v", timeout)
	}
	if _, err := os.Stat(filepath.Join("../node-problem-detector", filepath.Base(rule.Path))); err != nil {
		t.Error(err)
	}
}
