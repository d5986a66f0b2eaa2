package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/alecthomas/kong"

	"kvasir/engine"
)

// maxSettingsFile bounds the settings file; a real one has a few lines.
const maxSettingsFile = 1 << 20

// An entry is a checked value of the settings file.
type entry struct {
	value string
	line  int
}

// readFile reads and checks a settings file. Whatever is wrong with it is an error of usage.
func readFile(path string, root *kong.Application) (map[string]entry, error) {
	text, err := readBounded(path, maxSettingsFile)
	if absent(err) {
		return nil, fmt.Errorf("%w: %w", usagef("settings file %s is not there", path), err)
	}
	if err != nil {
		return nil, usagef("settings file %s: %v", path, pathless(err))
	}
	f := settingsFile{path: path, root: root, entries: map[string]entry{}}
	var top map[string]toml.Primitive
	if f.meta, err = toml.Decode(string(text), &top); err != nil {
		var parse toml.ParseError
		if errors.As(err, &parse) {
			return nil, usagef("%s: %s", position(path, parse.Position.Line), parse.Message)
		}
		return nil, usagef("settings file %s: %v", path, err)
	}
	if err := f.table(root.Node, top); err != nil {
		return nil, err
	}
	return f.entries, nil
}

// settingsFile walks through a decoded file beside the grammar.
type settingsFile struct {
	path    string
	root    *kong.Application
	meta    toml.MetaData
	entries map[string]entry
}

// table checks the keys of a table, which belongs to a command. It takes them in the order of the
// file, so that the first mistake is the one that is told.
func (f *settingsFile) table(node *kong.Node, values map[string]toml.Primitive) error {
	prefix := toml.Key(strings.Fields(node.Path()))
	seen := map[string]bool{}
	for _, full := range f.meta.Keys() {
		if len(full) <= len(prefix) || !slices.Equal(full[:len(prefix)], prefix) {
			continue
		}
		name := full[len(prefix)]
		if seen[name] {
			continue
		}
		seen[name] = true
		key := append(slices.Clone(prefix), name)
		if err := f.key(node, key, values[name]); err != nil {
			return err
		}
	}
	return nil
}

// key checks one key: a table of a command below, or a setting.
func (f *settingsFile) key(node *kong.Node, key toml.Key, p toml.Primitive) error {
	raw, line := f.decode(p)
	child := childNamed(node, key[len(key)-1])
	if _, isTable := raw.(map[string]any); isTable && child != nil {
		var inner map[string]toml.Primitive
		if err := f.meta.PrimitiveDecode(p, &inner); err != nil {
			return usagef("settings file %s: [%s]: %v", f.path, key, err)
		}
		return f.table(child, inner)
	}
	e, err := f.value(node, key, raw)
	if err != nil {
		return usagef("%s: %s %v", position(f.path, line), key, err)
	}
	f.entries[key.String()] = entry{e, line}
	return nil
}

// value checks the value of a setting and returns it as text.
func (f *settingsFile) value(node *kong.Node, key toml.Key, raw any) (string, error) {
	name := key[len(key)-1]
	if name == "home" || name == "config" {
		return "", fmt.Errorf("cannot stand in the settings file, which is found by it; use --%s or %s",
			name, variable(name))
	}
	flag := f.flag(node, name)
	if flag == nil {
		return "", f.unknown(node, name)
	}
	var text, want string
	switch v := raw.(type) {
	case bool:
		text, want = strconv.FormatBool(v), kindWanted(flag, reflect.Bool)
	case int64:
		text, want = strconv.FormatInt(v, 10), kindWanted(flag, reflect.Int)
	case float64:
		text, want = strconv.FormatFloat(v, 'g', -1, 64), kindWanted(flag, reflect.Float64)
	case string:
		text, want = v, kindWanted(flag, reflect.String)
	case []any:
		if text, want = listed(v), kindWanted(flag, reflect.Slice); want == "" && text == "" {
			want = kindWanted(flag, reflect.Invalid)
		}
	default:
		want = kindWanted(flag, reflect.Invalid)
	}
	if want != "" {
		return "", fmt.Errorf("must be %s", want)
	}
	if err := check(flag, text); err != nil {
		return "", fmt.Errorf("is wrong: %w", err)
	}
	if flag.Target.Type() == reflect.TypeFor[filePath]() && text != "" && !engine.IsURL(text) {
		if text = expandHome(text); !filepath.IsAbs(text) {
			text = filepath.Join(filepath.Dir(f.path), text)
		}
	}
	return text, nil
}

// unknown says what to write instead of a key that is no setting.
func (f *settingsFile) unknown(node *kong.Node, name string) error {
	if childNamed(node, name) != nil {
		return errors.New("is a command; its settings stand in a table of its own")
	}
	if near := nearest(name, f.names(node)); near != "" {
		return fmt.Errorf("is not a setting; did you mean %s?", near)
	}
	return errors.New("is not a setting; kvasir config lists them")
}

// kindWanted returns "" if a flag takes values of this kind, else what it takes, in words.
func kindWanted(flag *kong.Flag, got reflect.Kind) string {
	want := settingType(flag).Kind()
	if want == got || want == reflect.Uint64 && got == reflect.Int ||
		want == reflect.Float64 && got == reflect.Int || want == reflect.Slice && got == reflect.String {
		return ""
	}
	switch want {
	case reflect.Bool:
		return "true or false, without quotes"
	case reflect.Int, reflect.Uint64:
		return "a whole number, without quotes"
	case reflect.Float64:
		return "a number, without quotes"
	case reflect.Slice:
		return `text in quotes, or a list of such, as in ["…", "…"]`
	}
	return `text in quotes, as in "…"`
}

// listed writes a list of texts as a flag takes it from a settings file; "" if it is no such list, or
// empty.
func listed(values []any) string {
	var list []string
	for _, v := range values {
		text, ok := v.(string)
		if !ok || strings.Contains(text, listSeparator) {
			return ""
		}
		list = append(list, text)
	}
	return strings.Join(list, listSeparator)
}

// flag finds the flag that a key in a command's table sets: at the top level a flag of any command,
// in a table a flag of that command or of the commands below it.
func (f *settingsFile) flag(node *kong.Node, name string) *kong.Flag {
	for _, c := range flagsByCommand(f.root) {
		for _, flag := range c.flags {
			if flag.Name == name && below(node, c.command) {
				return flag
			}
		}
	}
	return nil
}

// names lists what a table may hold: settings and tables.
func (f *settingsFile) names(node *kong.Node) []string {
	var names []string
	for _, c := range flagsByCommand(f.root) {
		for _, flag := range c.flags {
			if below(node, c.command) && flag.Name != "home" && flag.Name != "config" {
				names = append(names, flag.Name)
			}
		}
	}
	for _, child := range node.Children {
		names = append(names, child.Name)
	}
	return names
}

// below reports whether a command is node itself or one of its children.
func below(node *kong.Node, command string) bool {
	key := commandKey(node)
	return key == "" || command == key || strings.HasPrefix(command, key+".")
}

func childNamed(node *kong.Node, name string) *kong.Node {
	for _, child := range node.Children {
		if child.Name == name {
			return child
		}
	}
	return nil
}

// decode returns the value of a key and its line. The library tells a line only in an error, so the
// value is caught on its way into one.
func (f *settingsFile) decode(p toml.Primitive) (value any, line int) {
	var c catcher
	err := f.meta.PrimitiveDecode(p, &c)
	var parse toml.ParseError
	if errors.As(err, &parse) {
		line = parse.Position.Line
	}
	return c.value, line
}

type catcher struct{ value any }

var errCaught = errors.New("caught")

// UnmarshalTOML keeps the value and fails.
func (c *catcher) UnmarshalTOML(v any) error {
	c.value = v
	return errCaught
}

// position writes a place in a file as compilers do.
func position(path string, line int) string {
	if line == 0 {
		return path
	}
	return fmt.Sprintf("%s:%d", path, line)
}

// readBounded reads a whole file of at most limit bytes.
func readBounded(path string, limit int64) (text []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	text, err = io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("larger than %s", size(uint64(limit)))
	}
	return text, nil
}
