package main

import (
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
