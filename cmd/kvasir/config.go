package main

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

type configCmd struct {
	jsonFlag
}

// Help is printed by kvasir config --help.
func (configCmd) Help() string {
	return `A value comes from a flag, else from the environment, else from the settings file, else it is the default. An empty environment variable counts as unset.

The settings file is TOML. Keys are flag names; a table holds for one command alone:

    log = "info"

    [run]
    model  = "models/mine.gguf"   # relative to the settings file
    tokens = 200

Example:

    KVASIR_TOKENS=10 kvasir config`
}

// settingValue is one row of kvasir config.
type settingValue struct {
	Command string     `json:"command,omitempty"` // "model inspect"; absent: every command
	Setting string     `json:"setting"`
	Value   any        `json:"value"` // text, a number, true, false, a list of texts, or null: not set
	From    sourceKind `json:"from"`
	Name    string     `json:"name,omitempty"` // the variable, or the file
	Line    int        `json:"line,omitempty"`

	text   string
	source source
}

type configReport struct {
	Home      string         `json:"home"`
	File      string         `json:"file,omitempty"` // the settings file, if one was read
	Settings  []settingValue `json:"settings"`
	Strangers []stranger     `json:"unknown_environment,omitempty"`
}

// Run prints all settings of all commands.
func (c configCmd) Run(parsed *kong.Context, a *app) error {
	report := configReport{
		Home: a.settings.home, File: a.settings.file,
		Strangers: a.settings.strangers(a.model.Model),
	}
	for _, command := range flagsByCommand(a.model.Model) {
		for _, flag := range command.flags {
			v, err := settingInForce(parsed, a.settings, command.command, flag)
			if err != nil {
				return err
			}
			report.Settings = append(report.Settings, v)
		}
	}
	if c.JSON {
		return a.stdout.printJSON(report)
	}
	report.print(a.stdout)
	return nil
}

// settingInForce finds the value of a flag of any command. Flags of other commands than config
// itself cannot stand on this command line.
func settingInForce(parsed *kong.Context, s *settings, command string, flag *kong.Flag) (settingValue, error) {
	v := settingValue{Setting: flag.Name}
	if command != "" {
		v.Command = spaced(command)
	}
	onLine := false
	for _, p := range parsed.Path {
		if p.Flag == flag && !p.Resolved {
			onLine = true
		}
	}
	if onLine {
		v.text, v.source = written(flag.Target), source{kind: fromFlag}
	} else {
		var err error
		if v.text, v.source, err = s.lookup(command, flag); err != nil {
			return v, err
		}
	}
	if flag.Name == "config" && v.text == "" {
		v.text = s.file
	}
	if v.text != "" && flag.Target.Type() == reflect.TypeFor[databaseURL]() {
		v.text = databaseURL(v.text).shown()
	}
	if v.text != "" && flag.Target.Type() == reflect.TypeFor[apiKey]() {
		v.text = apiKey(v.text).shown()
	}
	v.From, v.Name, v.Line = v.source.kind, v.source.name, v.source.line
	if v.text != "" || flag.Target.Kind() != reflect.Pointer {
		v.Value = typedValue(settingType(flag).Kind(), &v.text)
	}
	return v, nil
}

// written is the value of a flag as it is typed.
func written(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return fmt.Sprint(v.Interface())
}

// typedValue returns a checked text as the type that JSON has for it, and rewrites the text as kvasir
// writes it.
func typedValue(kind reflect.Kind, text *string) any {
	switch kind {
	case reflect.Bool:
		on := *text == "true" || *text == "1" || *text == "yes"
		*text = strconv.FormatBool(on)
		return on
	case reflect.Int:
		n, err := strconv.Atoi(*text)
		if err != nil {
			panic("BUG: count " + *text + " passed its check")
		}
		return n
	case reflect.Uint64:
		n, err := strconv.ParseUint(*text, 10, 64)
		if err != nil {
			panic("BUG: number " + *text + " passed its check")
		}
		return n
	case reflect.Float64:
		var n number
		if err := n.UnmarshalText([]byte(*text)); err != nil {
			panic("BUG: number " + *text + " passed its check")
		}
		return float64(n)
	case reflect.Slice:
		list := []string{}
		if *text != "" {
			list = strings.Split(*text, listSeparator)
		}
		*text = strings.Join(list, ", ")
		return list
	}
	return *text
}

// print writes the table. A flag that several commands share is one row where its value is the same
// for all of them.
func (r *configReport) print(s *screen) {
	t := table{head: []string{"setting", "value", "from"}}
	var from []sourceKind
	t.style = func(row, column int) style {
		switch {
		case column == 0:
			return bold
		case column == 2 && from[row] == fromDefault:
			return faint
		}
		return plain
	}
	holders, differ := r.shared()
	printed := map[string]bool{}
	for _, v := range r.Settings {
		name := v.Setting
		if v.Command != "" && (holders[name] == 1 || differ[name]) {
			name = strings.ReplaceAll(v.Command, " ", ".") + "." + name
		}
		if printed[name] {
			continue
		}
		printed[name] = true
		t.add(name, shown(v), v.source.String())
		from = append(from, v.From)
	}
	t.print(s)
	for _, x := range r.Strangers {
		s.printf("note: %s is set, but there is no such setting", clean(x.Name))
		if x.Nearest != "" {
			s.printf("; did you mean %s?", x.Nearest)
		}
		s.printf("\n")
	}
}

// shared counts the commands that have a setting, and tells where they differ in its value.
func (r *configReport) shared() (holders map[string]int, differ map[string]bool) {
	holders, differ = map[string]int{}, map[string]bool{}
	first := map[string]settingValue{}
	for _, v := range r.Settings {
		if holders[v.Setting]++; holders[v.Setting] == 1 {
			first[v.Setting] = v
		} else if f := first[v.Setting]; f.text != v.text || f.source != v.source {
			differ[v.Setting] = true
		}
	}
	return holders, differ
}

// shown is a value in words; what is empty has a meaning.
func shown(v settingValue) string {
	if v.text != "" {
		return v.text
	}
	switch v.Setting {
	case "model":
		return "the built-in kvasir-tiny"
	case "text":
		return "the built-in text"
	case "config":
		return "none found"
	case "memory":
		return "half of what is left"
	case "thinking":
		return "as the template has it"
	}
	return "none"
}

// spaced writes "model.inspect" as it is typed.
func spaced(command string) string {
	return strings.ReplaceAll(command, ".", " ")
}
