package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v2"
)

// startAlertmanager starts Alertmanager with the example, whose receivers are this
// program's.
func (s *Stack) startAlertmanager(ctx context.Context) error {
	path, err := program("prometheus-alertmanager", "prometheus-alertmanager")
	if err != nil {
		return err
	}
	receiver, err := address(s.options.Receiver)
	if err != nil {
		return fmt.Errorf("receiver: %w", err)
	}
	if s.Receiver, err = newReceiver(receiver, s.options.Told); err != nil {
		return fmt.Errorf("receiver: %w", err)
	}
	listen, err := address(s.options.Alertmanager)
	if err != nil {
		return fmt.Errorf("address of Alertmanager: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(s.options.Deploy, "alertmanager", "alertmanager.yaml"))
	if err == nil {
		text, err = s.alertmanagerYAML(text)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir, "alertmanager.yaml"), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("configuration of Alertmanager: %w", err)
	}
	s.Alertmanager = "http://" + listen
	return s.launch(ctx, s.Alertmanager+"/-/ready", path, "--config.file=alertmanager.yaml", "--storage.path="+filepath.Join(s.dir, "alertmanager"),
		"--web.listen-address="+listen, "--cluster.listen-address=")
}

func (s *Stack) launch(ctx context.Context, url, path string, args ...string) error {
	p, err := launch(ctx, s.dir, url, path, args...)
	if err != nil {
		return err
	}
	s.servers = append(s.servers, p)
	return nil
}

// alertmanagerYAML has Alertmanager's example tell this program all, also what the
// example tells nobody. Rules of one scrape come up to an interval after each other:
// waiting for less would tell what is held back a moment later.
func (s *Stack) alertmanagerYAML(text []byte) ([]byte, error) {
	var root yaml.MapSlice
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, err
	}
	err := editBelow(root, func(key, value string) (string, error) {
		switch key {
		case "group_wait", "group_interval", "repeat_interval":
			return s.Clock.duration(value, 2*s.interval())
		}
		return value, nil
	})
	if err != nil {
		return nil, err
	}
	var known struct {
		Receivers []struct {
			Name string `yaml:"name"`
		} `yaml:"receivers"`
	}
	if err := yaml.Unmarshal(text, &known); err != nil {
		return nil, err
	}
	var receivers []any
	for _, receiver := range known.Receivers {
		hook := map[string]any{"url": s.Receiver.url + "/" + receiver.Name, "max_alerts": 0}
		receivers = append(receivers, map[string]any{"name": receiver.Name, "webhook_configs": []any{hook}})
	}
	return yaml.Marshal(replaced(root, "receivers", receivers))
}

// replaced replaces the value of a key, or adds it.
func replaced(m yaml.MapSlice, key string, value any) yaml.MapSlice {
	for i := range m {
		if m[i].Key == key {
			m[i].Value = value
			return m
		}
	}
	return append(m, yaml.MapItem{Key: key, Value: value})
}

// lookback is for how long Prometheus takes a sample to stand, by default.
const lookback = 5 * time.Minute

// startPrometheus starts Prometheus with the rules and the scrape configuration.
func (s *Stack) startPrometheus(ctx context.Context) error {
	path, err := program("prometheus", "prometheus")
	if err != nil {
		return err
	}
	listen, err := address(s.options.Prometheus)
	if err != nil {
		return fmt.Errorf("address of Prometheus: %w", err)
	}
	if err := errors.Join(s.writeRules(), s.writeScrape(), s.writeHistory(ctx)); err != nil {
		return err
	}
	s.Prometheus = "http://" + listen
	return s.launch(ctx, s.Prometheus+"/-/ready", path, "--config.file=prometheus.yaml", "--storage.tsdb.path="+filepath.Join(s.dir, "prometheus"),
		"--web.listen-address="+listen, "--query.lookback-delta="+model.Duration(max(s.Clock.Real(lookback), 4*s.interval())).String(),
		// An alert that is not sent again is resolved.
		"--rules.alert.resend-delay="+model.Duration(max(s.Clock.Real(time.Minute), s.interval())).String())
}

// family is a family of the exporter in a rule.
var family = regexp.MustCompile(`\bgdr_[a-z0-9_]+`)

// readByRules are the families of the exporter that rules and their annotations name.
func (s *Stack) readByRules() (map[string]bool, error) {
	names, err := s.ruleFiles()
	if err != nil {
		return nil, err
	}
	read := map[string]bool{}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Clean(name))
		if err != nil {
			return nil, err
		}
		for _, found := range family.FindAllString(string(text), -1) {
			read[found] = true
		}
	}
	return read, nil
}

func (s *Stack) ruleFiles() ([]string, error) {
	names, err := filepath.Glob(filepath.Join(s.options.Deploy, "prometheus", "rules", "*.yaml"))
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s: no rules", s.options.Deploy)
	}
	return names, err
}

// writeRules writes the rules, by the clock.
func (s *Stack) writeRules() error {
	names, err := s.ruleFiles()
	if err == nil {
		err = os.MkdirAll(filepath.Join(s.dir, "rules"), 0o750)
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Clean(name))
		if err == nil && s.Clock.speed > 1 {
			text, err = s.Clock.Rules(text, s.interval())
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(s.dir, "rules", filepath.Base(name)), text, 0o600)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(name), err)
		}
	}
	return nil
}

// writeScrape writes the scrape configuration with this program's targets, rules and
// Alertmanager in place of what it names.
func (s *Stack) writeScrape() error {
	text, err := os.ReadFile(filepath.Join(s.options.Deploy, "prometheus", "scrape.yaml"))
	var root yaml.MapSlice
	if err == nil {
		err = yaml.Unmarshal(text, &root)
	}
	if err != nil {
		return fmt.Errorf("scrape.yaml: %w", err)
	}
	interval := model.Duration(s.interval()).String()
	for i := range root {
		jobs, is := root[i].Value.([]any)
		if root[i].Key != "scrape_configs" || !is {
			continue
		}
		for j := range jobs {
			job, _ := jobs[j].(yaml.MapSlice)
			job = replaced(job, "scrape_interval", interval)
			job = replaced(job, "scrape_timeout", interval)
			jobs[j] = replaced(job, "file_sd_configs", []any{map[string]any{"files": []string{"targets.yaml"}}})
		}
	}
	root = replaced(root, "global", map[string]any{"evaluation_interval": interval})
	root = replaced(root, "rule_files", []string{"rules/*.yaml"})
	managers := []any{}
	if s.Alertmanager != "" {
		target := map[string]any{"targets": []string{s.Alertmanager[len("http://"):]}}
		managers = append(managers, map[string]any{"static_configs": []any{target}})
	}
	root = replaced(root, "alerting", map[string]any{"alertmanagers": managers})
	if text, err = yaml.Marshal(root); err == nil {
		err = os.WriteFile(filepath.Join(s.dir, "prometheus.yaml"), text, 0o600)
	}
	if err != nil {
		return err
	}
	targets, err := yaml.Marshal(s.farm.targets())
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, "targets.yaml"), targets, 0o600)
}

// writeHistory gives Prometheus samples from before the start.
func (s *Stack) writeHistory(ctx context.Context) error {
	if s.options.History == nil {
		return nil
	}
	path, err := program("promtool", "prometheus")
	if err != nil {
		return err
	}
	file := filepath.Join(s.dir, "history.txt")
	if err := os.WriteFile(file, []byte(s.options.History(s.Clock)), 0o600); err != nil {
		return err
	}
	output, err := exec.CommandContext(ctx, path, "tsdb", "create-blocks-from", "openmetrics", file, filepath.Join(s.dir, "prometheus")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("history: %w: %s", err, output)
	}
	return nil
}
