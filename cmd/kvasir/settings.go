package main

import (
	"encoding"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// settings finds the value of a flag that the command line does not give. Rules:
//
//  1. Flag, then environment, then settings file, then default.
//  2. The variable of --some-flag is KVASIR_SOME_FLAG, for every command that has the flag. An
//     empty variable counts as unset.
//  3. The file is --config or KVASIR_CONFIG, which must be there, or else kvasir.toml in the home
//     folder, which need not. Keys are flag names; a table named like a command ([run],
//     [model.inspect]) holds for that command alone and goes before a key on top.
//  4. Everything in the file is checked when it is loaded, whichever command runs; a variable is
//     checked when the command at hand has its flag.
type settings struct {
	environ map[string]string // KVASIR_ variables that are not empty
	home    string            // "" where the system has no configuration folder
	file    string            // the settings file that was loaded, or ""
	entries map[string]entry  // of the file, by full key: "tokens", "run.tokens"
}

// A source says where a value comes from.
type source struct {
	kind sourceKind
	name string // the variable, or the file
	line int    // in the file; 0 if it is not known
}

type sourceKind string

const (
	fromFlag        sourceKind = "flag"
	fromEnvironment sourceKind = "environment"
	fromFile        sourceKind = "file"
	fromDefault     sourceKind = "default"
)

func (s source) String() string {
	switch s.kind {
	case fromEnvironment:
		return "environment " + s.name
	case fromFile:
		return position(s.name, s.line)
	}
	return string(s.kind)
}

func newSettings(environ []string) *settings {
	s := &settings{environ: map[string]string{}}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "KVASIR_") && value != "" {
			s.environ[name] = value
		}
	}
	return s
}

// variable returns the environment variable of a flag.
func variable(flag string) string {
	return "KVASIR_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// isSetting reports whether a flag has a variable and a key. Help has not.
func isSetting(f *kong.Flag) bool {
	return f.Target.Type() != reflect.TypeFor[helpFlag]()
}

// load finds home and settings file and reads it. Kong calls it when it has read the command line
// and before it asks for anything else.
func (s *settings) load(ctx *kong.Context) error {
	given := func(name string) (string, bool) {
		for _, p := range ctx.Path {
			if p.Flag != nil && p.Flag.Name == name {
				return fmt.Sprint(ctx.FlagValue(p.Flag)), true
			}
		}
		value, ok := s.environ[variable(name)]
		return expandHome(value), ok
	}
	var ok bool
	if s.home, ok = given("home"); !ok {
		if dir, err := os.UserConfigDir(); err == nil {
			s.home = filepath.Join(dir, "kvasir")
		}
	}
	if ok && s.home == "" {
		return usagef("--home: want a folder, got an empty name")
	}
	path, named := given("config")
	if !named {
		if s.home == "" {
			return nil
		}
		path = filepath.Join(s.home, "kvasir.toml")
	}
	entries, err := readFile(path, ctx.Model)
	if !named && absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	s.file, s.entries = path, entries
	return nil
}

// absent reports whether a file is not there, or cannot be because what should be its folder is a file.
func absent(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// Validate implements kong.Resolver; the file has been checked by load.
func (s *settings) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver for flags that the command line does not give.
func (s *settings) Resolve(_ *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
	value, from, err := s.lookup(commandKey(parent.Node()), flag)
	if err != nil || from.kind == fromDefault {
		return nil, err
	}
	return value, nil
}

// lookup returns the value of a flag of a command ("model.inspect"; "" for flags of every command)
// below the command line, and where it comes from.
func (s *settings) lookup(command string, flag *kong.Flag) (string, source, error) {
	byDefault := source{kind: fromDefault}
	if !isSetting(flag) {
		return "", byDefault, nil
	}
	name := variable(flag.Name)
	if value, ok := s.environ[name]; ok {
		if err := check(flag, value); err != nil {
			return "", byDefault, usagef("%s: %v", name, err)
		}
		if flag.Target.Type() == reflect.TypeFor[filePath]() {
			value = expandHome(value)
		}
		return value, source{kind: fromEnvironment, name: name}, nil
	}
	for table := command; ; { // [model.inspect], then [model], then the top
		if e, ok := s.entries[strings.TrimPrefix(table+"."+flag.Name, ".")]; ok {
			return e.value, source{fromFile, s.file, e.line}, nil
		}
		if table == "" {
			break
		}
		table = table[:max(0, strings.LastIndexByte(table, '.'))]
	}
	if flag.Name == "home" {
		return s.home, byDefault, nil
	}
	return flag.Default, byDefault, nil
}

// check reports whether a text is a value of a flag.
func check(flag *kong.Flag, text string) error {
	v := reflect.New(settingType(flag))
	if u, ok := v.Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	if flag.IsBool() && !slices.Contains([]string{"true", "1", "yes", "false", "0", "no"},
		strings.ToLower(text)) {
		return fmt.Errorf("want true or false, got %q", text)
	}
	return nil
}

// settingType is the type of a flag's value; a flag that may be left out is a pointer to it.
func settingType(flag *kong.Flag) reflect.Type {
	t := flag.Target.Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// commandKey names a command as the settings file does: "model.inspect", "" for the root.
func commandKey(n *kong.Node) string {
	return strings.ReplaceAll(n.Path(), " ", ".")
}

// expandHome replaces a leading ~/ by the user's home folder.
func expandHome(path string) string {
	rest, ok := strings.CutPrefix(path, "~/")
	if !ok {
		return path
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return path
	}
	return filepath.Join(home, rest)
}

// strangers lists variables that look like settings and are none, each with the nearest that is.
func (s *settings) strangers(root *kong.Application) []stranger {
	known := []string{"KVASIR_KERNEL", clockVariable}
	for _, group := range flagsByCommand(root) {
		for _, f := range group.flags {
			known = append(known, variable(f.Name))
		}
	}
	var out []stranger
	for name := range s.environ {
		if !slices.Contains(known, name) {
			out = append(out, stranger{name, nearest(name, known)})
		}
	}
	slices.SortFunc(out, func(a, b stranger) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// A stranger is a variable KVASIR_… that no flag has.
type stranger struct {
	Name    string `json:"name"`
	Nearest string `json:"nearest,omitempty"`
}

// commandFlags are the flags that one command adds.
type commandFlags struct {
	command string // "model.inspect"; "" for flags of every command
	flags   []*kong.Flag
}

// flagsByCommand lists all settings of the program in the order of the grammar.
func flagsByCommand(root *kong.Application) []commandFlags {
	var out []commandFlags
	var walk func(n *kong.Node)
	walk = func(n *kong.Node) {
		c := commandFlags{command: commandKey(n)}
		for _, f := range n.Flags {
			if isSetting(f) {
				c.flags = append(c.flags, f)
			}
		}
		if len(c.flags) > 0 {
			out = append(out, c)
		}
		for _, child := range n.Children {
			walk(child)
		}
	}
	walk(root.Node)
	return out
}
