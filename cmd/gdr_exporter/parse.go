package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kingpin/v2"
)

// terminated is kingpin's wish to end the process, on its way to dispatch.
type terminated int

// terminate is for kingpin, which goes on after a Terminate that returns.
func terminate(code int) { panic(terminated(code)) }

// untilTerminated runs f and returns its error. If kingpin wants to end the
// process meanwhile it has printed all that is to be said.
func untilTerminated(f func() error) (err error) {
	defer func() {
		switch code := recover().(type) {
		case nil:
		case terminated:
			if err = nil; code != 0 {
				err = usageError{errPrinted}
			}
		default:
			panic(code)
		}
	}()
	return f()
}

// parse returns the command that args ask for, which is serve if they name none.
//
// kingpin has default commands too, but where there is one it overlooks a flag
// without its value: it drops the flag and tries the default command on the rest.
func parse(app *kingpin.Application, args []string) (string, error) {
	if completes(args) {
		return app.Parse(args) // and ends
	}
	parsed, err := app.ParseContext(args)
	if err != nil {
		return "", explain(app, args, err)
	}
	if parsed.SelectedCommand == nil && !asksForHelp(parsed) {
		args = append([]string{"serve"}, args...)
	}
	command, err := app.Parse(args)
	if err != nil {
		return "", blame(parsed, err)
	}
	return command, nil
}

// asksForHelp reports whether there is --help, --help-long or --help-man, which
// without a command tell of all commands.
func asksForHelp(parsed *kingpin.ParseContext) bool {
	return slices.ContainsFunc(parsed.Elements, func(e *kingpin.ParseElement) bool {
		flag, isFlag := e.Clause.(*kingpin.FlagClause)
		return isFlag && strings.HasPrefix(flag.Model().Name, "help")
	})
}

// explain puts an error of the command line's form into words that help.
func explain(app *kingpin.Application, args []string, err error) error {
	for _, arg := range args {
		name, _, valued := strings.Cut(arg, "=")
		name, long := strings.CutPrefix(name, "--")
		name = strings.TrimPrefix(name, "no-")
		if flag := app.GetFlag(name); long && valued && flag != nil && flag.Model().IsBoolFlag() {
			return fmt.Errorf("%s: the flag takes no value, use --%s or --no-%s", arg, name, name)
		}
	}
	if rest, found := strings.CutPrefix(err.Error(), "unexpected "); found {
		return fmt.Errorf("unexpected argument %q", rest)
	}
	return err
}

// blame names the flag whose value is at fault, which kingpin does not.
func blame(parsed *kingpin.ParseContext, err error) error {
	for _, element := range parsed.Elements {
		flag, isFlag := element.Clause.(*kingpin.FlagClause)
		if !isFlag || element.Value == nil {
			continue
		}
		model := flag.Model()
		cause := model.Value.Set(*element.Value)
		if number := (*strconv.NumError)(nil); errors.As(cause, &number) {
			cause = errors.New("not a number")
		}
		if cause != nil {
			text := strings.TrimPrefix(strings.TrimPrefix(cause.Error(), "enum value "), "time: ")
			return fmt.Errorf("--%s=%s: %s", model.Name, *element.Value, text)
		}
	}
	return err
}
