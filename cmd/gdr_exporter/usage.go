package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/template"

	"github.com/alecthomas/kingpin/v2"
)

// groupedUsage has --help show a command's own flags before those of all
// commands, of which there are many.
func groupedUsage(app *kingpin.Application) {
	const all, grouped = "Flags:\n{{.Context.Flags|FlagsToTwoColumns|FormatTwoColumns}}\n",
		"{{range Groups .Context.Flags .App.Flags -}}\n{{.Title}}:\n{{.Flags|FlagsToTwoColumns|FormatTwoColumns}}\n{{end -}}\n"
	app.UsageFuncs(template.FuncMap{"Groups": flagGroups})
	app.UsageTemplate(strings.Replace(kingpin.DefaultUsageTemplate, all, grouped, 1))
}

// flagGroup is a group of flags in --help.
type flagGroup struct {
	Title string
	Flags []*kingpin.FlagModel
}

func flagGroups(flags, ofAll []*kingpin.FlagModel) []flagGroup {
	own := slices.DeleteFunc(slices.Clone(flags), func(flag *kingpin.FlagModel) bool {
		return slices.ContainsFunc(ofAll, func(other *kingpin.FlagModel) bool { return other.Name == flag.Name })
	})
	if len(own) == 0 {
		return []flagGroup{{"Flags", flags}}
	}
	return []flagGroup{{"Flags", own}, {"Flags of all commands", ofAll}}
}

// judges are the commands whose exit codes are judgements: a mistake of the user's
// has one there that is none.
var judges = []string{"check", "nccl-log"}

// exitMistake is that exit code, EX_USAGE of sysexits.h.
const exitMistake = 64

// judging gives a mistake of the user's the exit code that a command which judges
// has for it, and leaves any other error alone.
func judging(args []string, stderr io.Writer, err error) error {
	var usage usageError
	if !errors.As(err, &usage) || !slices.Contains(judges, commandOf(args)) {
		return err
	}
	if !errors.Is(err, errPrinted) {
		fmt.Fprintf(stderr, "gdr_exporter: error: %s\n", oneLine(err.Error()))
	}
	return exitError(exitMistake)
}

// commandOf is the command that a command line means, whether or not it can be run:
// what kingpin finds, or else the first argument that is one of judges.
func commandOf(args []string) string {
	app, _ := newApp()
	app.UsageWriter(io.Discard).ErrorWriter(io.Discard).Terminate(terminate)
	if parsed, _ := app.ParseContext(args); parsed != nil && parsed.SelectedCommand != nil {
		return parsed.SelectedCommand.FullCommand()
	}
	for _, arg := range args {
		if slices.Contains(judges, arg) {
			return arg
		}
	}
	return ""
}
