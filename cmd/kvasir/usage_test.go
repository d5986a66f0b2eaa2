package main

import (
	"os"
	"runtime"
	"strings"
	"testing"
)

// commands are all commands, with the least they need to be asked for help.
var commands = []string{
	"demo", "run", "chat", "serve", "key create", "key list", "key revoke", "worker", "hub", "gateway", "token create",
	"token list", "token revoke", "token root", "token grant", "wallet show", "wallet history", "wallet export", "wallet verify", "model inspect", "model profile", "model synth",
	"doctor", "version", "config", "plan", "trace",
	"batch run", "batch submit", "batch status", "batch watch", "batch fetch", "batch cancel",
}

func TestUsageErrorsAreOneLineThatSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"misspelt flag", []string{"run", "--tokns", "3"}, []string{"unknown flag --tokns", "did you mean --tokens?", "kvasir run --help"}},
		{"misspelt flag with value", []string{"run", "--modell=x", "hi"}, []string{"--modell", "did you mean --model?"}},
		{"misspelt flag before the command", []string{"--tokns", "3", "run"}, []string{"did you mean --tokens?"}},
		{"flag like no other", []string{"run", "--qqqqqqq"}, []string{"unknown flag --qqqqqqq (see kvasir run --help)"}},
		{"flag of another command", []string{"doctor", "--tokens", "3"}, []string{"doctor has no flag --tokens; demo, run, chat and trace have it"}},
		{"flag before its command", []string{"--json", "version"}, []string{"--json stands behind its command"}},
		{"version as a flag", []string{"--version"}, []string{"use kvasir version"}},
		{"unknown short flag", []string{"run", "-x"}, []string{"unknown flag -x"}},
		{"short flag that is half a character", []string{"run", "-é"}, []string{"unknown flag"}},
		{"misspelt command", []string{"versionn"}, []string{`unknown command "versionn"`, "did you mean version?"}},
		{"unknown command", []string{"frobnicate"}, []string{`unknown command "frobnicate" (see kvasir --help)`}},
		{"command with a line end", []string{"a\nb"}, []string{`a\nb`}},
		{"group without a command", []string{"model"}, []string{"model needs a command: inspect or profile or synth"}},
		{"misspelt command of a group", []string{"model", "inspct"}, []string{`"model inspct"`, "did you mean inspect?"}},
		{"no command", []string{"--log", "warn"}, []string{"a command is missing"}},
		{"no file", []string{"model", "profile"}, []string{"FILE is missing: kvasir model profile FILE"}},
		{"two files", []string{"model", "inspect", "a", "b"}, []string{`"b" is one argument too many`}},
		{"prompt without quotes", []string{"run", "The", "capital"}, []string{`"capital"`, "put the prompt into quotes"}},
		{"no value", []string{"run", "hi", "--tokens"}, []string{"--tokens needs a value"}},
		{"flag for a value", []string{"run", "hi", "--tokens", "--json"}, []string{"--tokens needs a value, and --json is a flag"}},
		{"no tokens", []string{"run", "hi", "--tokens=0"}, []string{`--tokens: want a whole number of 1 or more, got "0"`}},
		{"fewer than no tokens", []string{"run", "hi", "--tokens=-1"}, []string{`got "-1"`}},
		{"tokens beyond all numbers", []string{"run", "hi", "--tokens=99999999999"}, []string{`got "99999999999"`}},
		{"more tokens than the context", []string{"run", "hi", "--tokens=1025"}, []string{"--tokens: 1025 is more than the context", "1024"}},
		{"word for a number", []string{"run", "hi", "--tokens", "many"}, []string{`got "many"`}},
		{"word for a switch", []string{"run", "hi", "--json=maybe"}, []string{"--json: want true or false"}},
		{"unknown level", []string{"version", "--log", "loud"}, []string{"--log: want debug, info, warn or error"}},
		{"empty home", []string{"version", "--home="}, []string{"--home"}},
		{"settings file that is not there", []string{"version", "--config", "nowhere.toml"}, []string{"settings file nowhere.toml is not there"}},
		{"settings file that is a folder", []string{"version", "--config", "."}, []string{"settings file ."}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			kvasir(t, c.args...).wantFailure(t, statusUsage, c.want...)
		})
	}
}

func TestWithoutArgumentsPrintsShortHelp(t *testing.T) {
	t.Parallel()
	o := kvasir(t)
	if o.status != statusUsage || o.stdout != "" {
		t.Errorf("exit status %d, standard output %q; want %d and none", o.status, o.stdout, statusUsage)
	}
	for _, c := range commands {
		c, _, _ = strings.Cut(c, " ") // those of a group stand in its own help
		if !strings.Contains(o.stderr, "kvasir "+c+" ") {
			t.Errorf("short help does not name kvasir %s:\n%s", c, o.stderr)
		}
	}
	if n := strings.Count(o.stderr, "\n"); n > 23 { // a terminal has 24
		t.Errorf("short help has %d lines", n)
	}
	wantNarrow(t, o.stderr)
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	t.Parallel()
	for _, c := range commands {
		t.Run(c, func(t *testing.T) {
			t.Parallel()
			for _, flag := range []string{"--help", "-h"} {
				o := kvasir(t, append(strings.Fields(c), flag)...).wantDone(t)
				wantNarrow(t, o.stdout)
				_, example, ok := strings.Cut(o.stdout, "Example")
				if !ok || !strings.Contains(example, "kvasir "+c) {
					t.Errorf("no example of kvasir %s in its help:\n%s", c, o.stdout)
				}
				if !strings.Contains(o.stdout, "--json") || !strings.Contains(o.stdout, "KVASIR_JSON") {
					t.Errorf("help does not tell of --json and KVASIR_JSON:\n%s", o.stdout)
				}
			}
		})
	}
	for _, args := range [][]string{{"--help"}, {"model", "--help"}, {"run", "hi", "--help"}} {
		o := kvasir(t, args...).wantDone(t)
		if !strings.HasPrefix(o.stdout, "Usage: kvasir") || !strings.Contains(o.stdout, "Example") {
			t.Errorf("kvasir %s prints %q", args, o.stdout)
		}
	}
}

func TestVersionTellsWhatItIs(t *testing.T) {
	t.Parallel()
	var v buildVersion
	kvasir(t, "version", "--json").wantDone(t).object(t, &v)
	if v.Arithmetic != 1 || v.Go != runtime.Version() || v.OS != runtime.GOOS || v.Arch != runtime.GOARCH || v.Version == "" {
		t.Errorf("version %+v", v)
	}
	text := kvasir(t, "version").wantDone(t).stdout
	for _, want := range []string{"kvasir " + v.Version + "\n", v.Go, "arithmetic  1\n", "commit "} {
		if !strings.Contains(text, want) {
			t.Errorf("version prints %q, want %q in it", text, want)
		}
	}
}

func TestFullDiskIsAFailure(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("no /dev/full on %s to write to", runtime.GOOS)
	}
	defer full.Close() //nolint:errcheck // nothing was written
	for _, args := range [][]string{
		{"version"}, {"config", "--json"}, {"--help"}, {"run", "hi", "--tokens", "2"}, {"run", "hi", "--tokens", "2", "--json"},
	} {
		cmd := call{args: args}.command(t)
		var stderr strings.Builder
		cmd.Stdout, cmd.Stderr = full, &stderr
		if status := exitStatus(t, cmd.Run()); status != statusFailed {
			t.Errorf("kvasir %s: exit status %d, want %d", args, status, statusFailed)
		}
		wantOneLine(t, stderr.String(), "writing standard output", "no space left")
	}
}

func TestReaderThatLeavesIsNoFailure(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"version"}, {"--help"}, {"doctor", "--json"}, {"run", "hi", "--tokens", "500"}, {"run", "hi", "--tokens", "2", "--json"},
	} {
		cmd := call{args: args}.command(t)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if status := exitStatus(t, cmd.Wait()); status != statusDone || stderr.Len() > 0 {
			t.Errorf("kvasir %s: exit status %d, standard error %q; want %d and none", args, status, stderr.String(), statusDone)
		}
	}
}
