package main

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// commandsOfAll are all commands that people give, each with those above it.
func commandsOfAll(t *testing.T) [][]string {
	t.Helper()
	app, _ := newApp()
	var all [][]string
	for _, command := range app.Model().FlattenedCommands() {
		if !command.Hidden && command.Name != "help" {
			all = append(all, strings.Fields(command.FullCommand))
		}
	}
	for _, command := range app.Model().Commands { // those with commands below them
		if len(command.Commands) > 0 {
			all = append(all, []string{command.Name})
		}
	}
	if len(all) < 14 {
		t.Fatalf("%d commands: %q", len(all), all)
	}
	return all
}

// TestHelpOfCommands: the help of every command has an example that the program would
// take, and fits a terminal.
func TestHelpOfCommands(t *testing.T) {
	binary(t) // built before anything's time runs
	for _, command := range commandsOfAll(t) {
		r := runBriefly(t, append(slices.Clone(command), "--help")...)
		if r.code != exitOK || r.stderr != "" {
			t.Errorf("%q: code %d, stderr %q", command, r.code, r.stderr)
		}
		wantTidy(t, r.stdout)
		_, example, found := strings.Cut(r.stdout, "\nExample")
		example, _, _ = strings.Cut(example, "\n\nFlags")
		if !found || !strings.Contains(example, "\n  ") || !strings.Contains(example, "gdr_exporter "+command[0]) {
			t.Errorf("%q: no example: %q", command, example)
		}
	}
}

// TestManualPage: man(1) takes the page without a warning, and all commands and flags
// are on it.
func TestManualPage(t *testing.T) {
	binary(t) // built before anything's time runs
	r := runBriefly(t, manFlag)
	if r.code != exitOK || r.stderr != "" || !strings.Contains(r.stdout, "\n.TH GDR_EXPORTER 8 ") {
		t.Fatalf("%+v", r)
	}
	if again := runBriefly(t, "check", manFlag); again.stdout != r.stdout {
		t.Error("it differs from one run to the next")
	}
	for _, command := range commandsOfAll(t) {
		if name := strings.Join(command, " "); len(command) > 1 && !strings.Contains(r.stdout, "\n.SS "+roff(name)+"\n") {
			t.Errorf("no command %s", name)
		}
	}
	app, _ := newApp()
	for _, flag := range app.Model().Flags {
		if at := strings.Contains(r.stdout, roff(flag.Name)+"\n") || strings.Contains(r.stdout, roff(flag.Name)+"="); at == flag.Hidden && len(flag.Name) > 8 {
			t.Errorf("flag %s is on the page: %v", flag.Name, at)
		}
	}
	page := write(t, "gdr_exporter.8", r.stdout)
	for _, judge := range [][]string{{"man", "--warnings", "-l", page}, {"mandoc", "-T", "lint", "-W", "warning", page}} {
		program, err := exec.LookPath(judge[0])
		if err != nil {
			t.Logf("%s is not installed", judge[0])
			continue
		}
		var text, complaints bytes.Buffer
		command := exec.CommandContext(t.Context(), program, judge[1:]...)
		command.Stdout, command.Stderr = &text, &complaints
		if err := command.Run(); err != nil || complaints.Len() > 0 {
			t.Errorf("%s: %v: %s", judge[0], err, complaints.String())
		}
		if judge[0] == "man" && !strings.Contains(text.String(), "gdr_exporter check --probe") {
			t.Errorf("what man shows has no example: %s", text.String())
		}
	}
}

func TestRoff(t *testing.T) {
	for text, want := range map[string]string{
		"plain": "plain", "--flag": `\-\-flag`, `a\b`: `a\eb`, ".PP": `\&.PP`, "'quote": `\&'quote`, "a\n.b": "a\n\\&.b",
	} {
		if got := roff(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestCompletion: bash completes commands, flags and values with what the program
// prints for it.
func TestCompletion(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed")
	}
	dir := filepath.Dir(binary(t))
	const script = `source <(gdr_exporter --completion-script-bash)
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_gdr_exporter_bash_autocomplete
printf '%s\n' "${COMPREPLY[@]}"`
	for _, test := range []struct {
		words []string
		want  []string
		not   string
	}{
		{[]string{"gdr_exporter", "c"}, []string{"check", "capture", "ctl"}, "topo"},
		{[]string{"gdr_exporter", "ctl", ""}, []string{"probe", "quiesce", "resume", "status"}, "check"},
		{[]string{"gdr_exporter", "check", "--fa"}, []string{"--fail-on"}, "--output"},
		{[]string{"gdr_exporter", "check", "--output", "j"}, []string{"json", "junit"}, "table"},
		{[]string{"gdr_exporter", "--log.l"}, []string{"--log.level"}, "--log.format"},
	} {
		command := exec.CommandContext(t.Context(), bash, append([]string{"--norc", "-c", script}, test.words...)...)
		command.Args = append([]string{bash, "--norc", "-c", script, "bash"}, test.words...)
		command.Env = append(command.Environ(), "PATH="+dir+":/usr/bin:/bin")
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		got := strings.Fields(string(out))
		for _, word := range test.want {
			if !slices.Contains(got, word) {
				t.Errorf("%q: no %s in %q", test.words, word, got)
			}
		}
		if slices.Contains(got, test.not) {
			t.Errorf("%q: %s in %q", test.words, test.not, got)
		}
	}
	if r := runBriefly(t, "--completion-script-zsh"); r.code != exitOK || !strings.HasPrefix(r.stdout, "#compdef gdr_exporter\n") {
		t.Errorf("%+v", r)
	}
}
