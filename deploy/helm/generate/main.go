// Command generate writes what is generated from or for the chart: its copies
// of rules and dashboards, the table of values in its README, and the plain
// manifests. Run it in the folder above: go run ./generate
package main

import (
	"fmt"
	"os"
	"path/filepath"

	chart "gdr_exporter/deploy/helm"
)

func main() {
	if err := generate("."); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

// generate writes in this order: the manifests have the copies' rules.
func generate(root string) error {
	copies, missing, err := chart.Copies(root)
	if err != nil {
		return err
	}
	for _, folder := range missing {
		fmt.Fprintf(os.Stderr, "generate: nothing in %s, its copies are left as they are\n", folder)
	}
	stale, err := chart.Stale(root)
	if err != nil {
		return err
	}
	for _, file := range stale {
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("copy without original: %w", err)
		}
	}
	readme, err := chart.Readme(root)
	if err != nil {
		return err
	}
	if err := write(root, append(copies, readme)); err != nil {
		return err
	}
	manifests, err := chart.Manifests(root)
	if err != nil {
		return err
	}
	return write(root, manifests)
}

func write(root string, files []chart.File) error {
	for _, file := range files {
		path := filepath.Join(root, file.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("folder of a generated file: %w", err)
		}
		if err := os.WriteFile(path, file.Content, 0o644); err != nil {
			return fmt.Errorf("generated file: %w", err)
		}
	}
	return nil
}
