package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// inForce runs kvasir config --json and returns one setting, "tokens of run".
func (c call) inForce(t *testing.T, setting, command string) settingValue {
	t.Helper()
	c.args = append([]string{"config", "--json"}, c.args...)
	var r configReport
	c.run(t).wantDone(t).object(t, &r)
	for _, v := range r.Settings {
		if v.Setting == setting && v.Command == command {
			return v
		}
	}
	t.Fatalf("kvasir config does not list %s of %q: %+v", setting, command, r)
	return settingValue{}
}

func TestSettingsComeFromFlagThenEnvironmentThenFileThenDefault(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "my.toml", []byte("log = \"info\"\n\n[run]\ntokens = 7\n"))
	type want struct {
		value any
		from  sourceKind
		name  string
		line  int
	}
	for _, c := range []struct {
		name             string
		setting, command string
		args, env        []string
		want             want
	}{
		{"default", "log", "", nil, nil, want{"warn", fromDefault, "", 0}},
		{"default of a command", "tokens", "run", nil, nil, want{64.0, fromDefault, "", 0}},
		{"file", "log", "", []string{"--config", file}, nil, want{"info", fromFile, file, 1}},
		{"table of the file", "tokens", "run", []string{"--config", file}, nil, want{7.0, fromFile, file, 4}},
		{"file named by the environment", "tokens", "run", nil, []string{"KVASIR_CONFIG=" + file}, want{7.0, fromFile, file, 4}},
		{"environment before file", "log", "", []string{"--config", file}, []string{"KVASIR_LOG=error"}, want{"error", fromEnvironment, "KVASIR_LOG", 0}},
		{"environment before table", "tokens", "run", []string{"--config", file}, []string{"KVASIR_TOKENS=9"}, want{9.0, fromEnvironment, "KVASIR_TOKENS", 0}},
		{"empty environment is unset", "tokens", "run", []string{"--config", file}, []string{"KVASIR_TOKENS="}, want{7.0, fromFile, file, 4}},
		{"flag before environment", "log", "", []string{"--config", file, "--log", "info"}, []string{"KVASIR_LOG=error"}, want{"info", fromFlag, "", 0}},
		{"flag that says no", "verbose", "", []string{"--verbose=false"}, []string{"KVASIR_VERBOSE=yes"}, want{false, fromFlag, "", 0}},
		{"switch of the environment", "chat", "run", nil, []string{"KVASIR_CHAT=1"}, want{true, fromEnvironment, "KVASIR_CHAT", 0}},
		{"switch of the environment that says no", "chat", "run", nil, []string{"KVASIR_CHAT=no"}, want{false, fromEnvironment, "KVASIR_CHAT", 0}},
		{"flag of config itself", "json", "config", nil, nil, want{true, fromFlag, "", 0}},
		{"the same flag of another command", "json", "run", nil, nil, want{false, fromDefault, "", 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := call{args: c.args, env: c.env}.inForce(t, c.setting, c.command)
			if got := (want{v.Value, v.From, v.Name, v.Line}); got != c.want {
				t.Errorf("%s is %+v, want %+v", c.setting, got, c.want)
			}
		})
	}
}

func TestSettingsReachTheCommand(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "kvasir.toml"), []byte("json = true\nrun.tokens = 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		env  []string
		want int
	}{
		{"file", nil, 3},
		{"environment", []string{"KVASIR_TOKENS=2"}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var r runResult
			call{args: []string{"run", "The king", "--home", home}, env: c.env}.run(t).wantDone(t).object(t, &r)
			if r.Tokens != c.want {
				t.Errorf("%d tokens, want %d", r.Tokens, c.want)
			}
		})
	}
}

func TestSettingsFileInTheHomeFolder(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skipf("the test sets the configuration folder as Linux names it, not %s", runtime.GOOS)
	}
	home := t.TempDir()
	dir := filepath.Join(home, ".config", "kvasir")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "kvasir.toml")
	text := "[run]\nmodel = \"models/a.gguf\"\n[model.profile]\ntext = \"~/b.txt\"\n[model.inspect]\ntensors = true\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := call{home: home}
	if v := c.inForce(t, "model", "run"); v.Value != filepath.Join(dir, "models", "a.gguf") || v.Name != file {
		t.Errorf("model is %v of %s; want it relative to the settings file", v.Value, v.Name)
	}
	if v := c.inForce(t, "text", "model profile"); v.Value != filepath.Join(home, "b.txt") {
		t.Errorf("text is %v; want it in the user's home", v.Value)
	}
	withVariable := call{home: home, env: []string{"KVASIR_MODEL=~/c.gguf"}}
	if v := withVariable.inForce(t, "model", "run"); v.Value != filepath.Join(home, "c.gguf") {
		t.Errorf("model of the environment is %v; want it in the user's home", v.Value)
	}
	c.args = []string{"config"}
	text = c.run(t).wantDone(t).stdout
	wantNarrow(t, text)
	for _, want := range []string{"run.model", "run.tokens", "model.inspect.tensors true", "\njson "} {
		if !strings.Contains(text, want) && !strings.Contains(strings.Join(strings.Fields(text), " "), want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
}

func TestSettingsFileIsRefusedWithItsLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		line       string
		want       string
	}{
		{"misspelt key", "tokns = 5\n", ":1: ", "tokns is not a setting; did you mean tokens?"},
		{"misspelt key in a table", "\n[run]\n\n  tokns = 5\n", ":4: ", "run.tokns is not a setting; did you mean tokens?"},
		{"misspelt dotted key", "run.tokns = 6\n", ":1: ", "did you mean tokens?"},
		{"key like no other", "xyzzyxyzzy = 6\n", ":1: ", "xyzzyxyzzy is not a setting; kvasir config lists them"},
		{"misspelt table", "[rum]\ntokens = 5\n", ":1: ", "rum is not a setting; did you mean run?"},
		{"key of another command", "[run]\ntensors = true\n", ":2: ", "run.tensors is not a setting"},
		{"text for a number", "[run]\ntokens = \"5\"\n", ":2: ", "run.tokens must be a whole number, without quotes"},
		{"fraction for a number", "tokens = 5.5\n", ":1: ", "must be a whole number"},
		{"list for a number", "tokens = [5]\n", ":1: ", "must be a whole number"},
		{"number for text", "[run]\nmodel = 5\n", ":2: ", "must be text in quotes"},
		{"text for a switch", "[run]\nchat = \"yes\"\n", ":2: ", "must be true or false"},
		{"value out of range", "[run]\ntokens = 0\n", ":2: ", "want a whole number of 1 or more"},
		{"unknown level", "log = \"loud\"\n", ":1: ", "want debug, info, warn or error"},
		{"command as a key", "run = 3\n", ":1: ", "is a command"},
		{"list of tables", "[[run]]\ntokens = 5\n", ":1: ", "is a command"},
		{"home", "home = \"x\"\n", ":1: ", "use --home or KVASIR_HOME"},
		{"syntax", "\ntokens = \n", ":2: ", ""},
		{"twice", "tokens = 5\ntokens = 6\n", ":2: ", "already"},
		{"not text", "tokens = \"\xff\"\n", ":1: ", ""},
		{"key with a line end", "\"a\\nb\" = 1\n", ":1: ", `a\nb`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := writeFile(t, "kvasir.toml", []byte(c.text))
			kvasir(t, "version", "--home", filepath.Dir(file)).wantFailure(t, statusUsage, file+c.line, c.want)
		})
	}
}

func TestSettingsFileHasALimit(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "kvasir.toml", []byte(strings.Repeat("#\n", maxSettingsFile/2+1)))
	kvasir(t, "version", "--config", file).wantFailure(t, statusUsage, file, "larger than")
}

func TestEnvironmentIsRefusedByName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ env, want string }{
		{"KVASIR_TOKENS=many", `KVASIR_TOKENS: want a whole number of 1 or more, got "many"`},
		{"KVASIR_CHAT=maybe", `KVASIR_CHAT: want true or false, got "maybe"`},
		{"KVASIR_LOG=loud", "KVASIR_LOG: want debug, info, warn or error"},
		{"KVASIR_CONFIG=nowhere.toml", "settings file nowhere.toml is not there"},
	} {
		call{args: []string{"run", "hi"}, env: []string{c.env}}.run(t).wantFailure(t, statusUsage, c.want)
	}
	// A command that has no such flag does not mind.
	call{args: []string{"version"}, env: []string{"KVASIR_TOKENS=many"}}.run(t).wantDone(t)
}

func TestConfigNamesVariablesThatAreNoSettings(t *testing.T) {
	t.Parallel()
	c := call{args: []string{"config"}, env: []string{"KVASIR_TOKENZ=3", "KVASIR_ZZZZZZZZ=", "KVASIR_KERNEL=portable"}}
	text := c.run(t).wantDone(t).stdout
	if !strings.Contains(text, "KVASIR_TOKENZ is set, but there is no such setting; did you mean KVASIR_TOKENS?") {
		t.Errorf("config does not tell of KVASIR_TOKENZ:\n%s", text)
	}
	if strings.Count(text, "KVASIR_") != 2 {
		t.Errorf("config tells of variables that are empty or known:\n%s", text)
	}
}

// Every flag that the program has must be listed with the value that is in force.
func TestConfigListsEverySettingOfEveryCommand(t *testing.T) {
	t.Parallel()
	var r configReport
	kvasir(t, "config", "--json").wantDone(t).object(t, &r)
	listed := map[string]bool{}
	for _, v := range r.Settings {
		listed[v.Command+" "+v.Setting] = true
	}
	for _, c := range append(commands, "") {
		help := kvasir(t, append(strings.Fields(c), "--help")...).stdout
		for _, word := range strings.Fields(help) {
			name, ok := strings.CutPrefix(word, "[KVASIR_")
			if !ok {
				continue
			}
			name = strings.ReplaceAll(strings.ToLower(strings.TrimSuffix(name, "]")), "_", "-")
			if !listed[c+" "+name] && !listed[" "+name] {
				t.Errorf("setting %s of %q is not listed", name, c)
			}
		}
	}
}
