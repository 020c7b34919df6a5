// Command generate writes the dashboards: go generate ./dashboards.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"gdr_exporter/dashboards"
)

func main() {
	directory := flag.String("directory", "", "where to write them; by default beside their sources")
	flag.Parse()
	if err := run(*directory); err != nil {
		fmt.Fprintf(os.Stderr, "generate: %v\n", err)
		os.Exit(1)
	}
}

func run(directory string) error {
	if directory == "" {
		directory = "."
		if _, err := os.Stat("dashboards/dashboards.go"); err == nil {
			directory = "dashboards"
		} else if _, err := os.Stat("dashboards.go"); err != nil {
			return errors.New("start this in the repository or in dashboards/, or name a -directory")
		}
	}
	all, err := dashboards.All()
	if err != nil {
		return err
	}
	for i := range all {
		text, err := all[i].JSON()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(directory, all[i].File), text, 0o644); err != nil { //nolint:gosec // for all to read, as other sources
			return err
		}
	}
	return nil
}
