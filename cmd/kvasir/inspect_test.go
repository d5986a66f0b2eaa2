package main

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"kvasir/engine/gguf"
	"kvasir/engine/tiny"
)

func TestInspectShowsSlicesAndMemory(t *testing.T) {
	t.Parallel()
	o := kvasir(t, "model", "inspect", "--hashes").wantDone(t)
	wantNarrow(t, o.stdout)
	for _, want := range []string{
		`(?m)^memory +\d+ kB a sequence and 512 B a token of it, \d+ kB with a full context; keys and values\n +in F16, state in F32$`,
		`(?m)^ +512 sequences: \d+ MB and 262 kB a token of each, \d+ MB with full contexts$`,
		`(?m)^layer +experts +formats +size +hash$`,
		`(?m)^ +2 +16 +Q6_K Q4_K +2\.04 MB +[0-9a-f]{16}$`,
		`(?m)^MTP 4 +16 +Q6_K Q4_K +2\.04 MB +[0-9a-f]{16}$`,
		`1 MTP block, kept and not run`,
	} {
		if !regexp.MustCompile(want).MatchString(o.stdout) {
			t.Errorf("inspect does not print %s:\n%s", want, o.stdout)
		}
	}
	var info struct {
		Slices struct {
			List []struct {
				Layer, Experts int
				MTP            bool
				Hash           string
			}
		}
	}
	for _, args := range [][]string{{"--json"}, {"--json", "--hashes"}} {
		out := kvasir(t, append([]string{"model", "inspect"}, args...)...).wantDone(t).stdout
		if err := json.Unmarshal([]byte(out), &info); err != nil {
			t.Fatal(err)
		}
		if len(info.Slices.List) != 5 || !info.Slices.List[4].MTP || (len(info.Slices.List[0].Hash) == 64) != (len(args) == 2) {
			t.Errorf("%s: slices %+v", args, info.Slices.List)
		}
	}
	if plain := kvasir(t, "model", "inspect").wantDone(t).stdout; strings.Contains(plain, "hash") {
		t.Errorf("inspect without --hashes prints hashes:\n%s", plain)
	}
}

func TestInspectShowsTheFilesOfASplitModel(t *testing.T) {
	t.Parallel()
	f, err := gguf.Parse(tiny.Model(), tiny.Name)
	if err != nil {
		t.Fatal(err)
	}
	paths, err := f.WriteParts(filepath.Join(t.TempDir(), "m"), 2)
	if err != nil {
		t.Fatal(err)
	}
	o := kvasir(t, "model", "inspect", paths[1]).wantDone(t)
	wantNarrow(t, o.stdout)
	for _, want := range []string{"m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "runs here     yes"} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("inspect does not print %q:\n%s", want, o.stdout)
		}
	}
}
