package main

import (
	"os"
	"strings"
	"testing"
)

// Every flag is in the README, with its default.
func TestReadmeFlags(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := string(text)
	app, _ := newApp()
	for _, flag := range app.Model().Flags {
		switch {
		case flag.Hidden || flag.Name == "help" || flag.Name == "version":
		case strings.HasPrefix(flag.Name, "collector."):
			if !strings.Contains(readme, strings.TrimPrefix(flag.Name, "collector.")) {
				t.Errorf("README does not name the collector of --%s", flag.Name)
			}
		case flag.IsBoolFlag() && strings.Contains(readme, "`--[no-]"+flag.Name+"`"):
		case !strings.Contains(readme, "`--"+flag.Name):
			t.Errorf("README has no row for --%s", flag.Name)
		case len(flag.Default) == 1 && flag.Default[0] != "" && !flag.IsBoolFlag() && !strings.Contains(readme, "`"+flag.Default[0]+"`"):
			t.Errorf("README does not give the default of --%s, %s", flag.Name, flag.Default[0])
		}
	}
}
