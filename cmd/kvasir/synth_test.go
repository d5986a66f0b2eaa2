package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvasir/engine"
	"kvasir/engine/synth"
)

func TestSynthWritesModelsThatRun(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, c := range []struct {
		name string
		args []string
	}{
		{"qwen3moe", []string{"--like", "anchor", "--layers", "2", "--hidden", "256", "--expert-count", "8", "--ffn", "256"}},
		{"qwen35moe", []string{"--like", "mini"}},
		{"q8_0", []string{"--like", "mini", "--format", "q8_0", "--seed", "3"}},
	} {
		file := filepath.Join(folder, c.name+".gguf")
		var got synthResult
		kvasir(t, append([]string{"model", "synth", file, "--json"}, c.args...)...).wantDone(t).object(t, &got)
		if info, err := os.Stat(file); err != nil || info.Size() != got.Bytes {
			t.Errorf("%s: %v, want %d bytes: %v", c.name, info, got.Bytes, err)
		}
		var info engine.Info
		kvasir(t, "model", "inspect", file, "--json").wantDone(t).object(t, &info)
		if !info.Runs || info.Architecture != got.Architecture {
			t.Errorf("%s: inspect says runs %v (%s), architecture %s", c.name, info.Runs, info.Problem, info.Architecture)
		}
		for _, chat := range []string{"--chat=false", "--chat"} {
			kvasir(t, "run", "-m", file, chat, "--tokens", "8", "The old house").wantDone(t)
		}
	}
}

func TestSynthRefusesWhatItCannotWrite(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	usage := func(want string, args ...string) {
		t.Helper()
		kvasir(t, append([]string{"model", "synth", file}, args...)...).wantFailure(t, statusUsage, want)
	}
	usage("nothing is like", "--like", "gpt")
	usage("format", "--format", "Q9_K")
	usage("hidden is 300, want a multiple of 256", "--hidden", "300")
	usage("--state-dim is not for qwen3moe", "--state-dim", "64")
	kvasir(t, "model", "synth", file).wantFailure(t, statusFailed, "the file exists", "--force")
	kvasir(t, "model", "synth", file+".d/model.gguf").wantFailure(t, statusFailed, file+".d")
	if data, err := os.ReadFile(file); err != nil || string(data) != "mine" {
		t.Errorf("the file that was there holds %q, %v", data, err)
	}
}

func TestSynthHelpNamesPresetsAndFormats(t *testing.T) {
	t.Parallel()
	help := kvasir(t, "model", "synth", "--help").wantDone(t).stdout
	for _, name := range synth.Presets() {
		if !strings.Contains(help, name) {
			t.Errorf("help does not name %s", name)
		}
	}
	for _, f := range synth.Formats() {
		if !strings.Contains(help, f.String()) {
			t.Errorf("help does not name %s", f)
		}
	}
}
