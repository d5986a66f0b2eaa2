package main

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"kvasir/internal/machine"
	"kvasir/kernels/variant"
)

// verdicts runs kvasir doctor --json and returns the verdict and text of each check.
func (c call) verdicts(t *testing.T) (outcome, map[string]finding) {
	t.Helper()
	c.args = append([]string{"doctor", "--json"}, c.args...)
	o := c.run(t)
	var r doctorReport
	o.object(t, &r)
	out := map[string]finding{}
	for _, f := range r.Findings {
		if old, ok := out[f.Check]; !ok || old.Verdict == good {
			out[f.Check] = f
		}
	}
	return o, out
}

func TestDoctorFindsThisMachineSound(t *testing.T) {
	t.Parallel()
	o, found := call{}.verdicts(t)
	o.wantDone(t)
	for _, check := range []string{"processor", "features", "caches", "kernel", "arithmetic", "model", "home", "settings", "build"} {
		if found[check].Verdict != good {
			t.Errorf("%s: %+v", check, found[check])
		}
	}
	for _, check := range []string{"memory", "pinned", "bandwidth", "gpu"} { // these may be a note, where there is little or something odd
		if v := found[check].Verdict; v != good && v != note {
			t.Errorf("%s: %+v", check, found[check])
		}
	}
	text := kvasir(t, "doctor").wantDone(t).stdout
	wantNarrow(t, text)
	for _, want := range []string{"class exact", "knows Paris", "sha256 ", runtime.Version(), variant.Available()[0].String()} {
		if !strings.Contains(text, want) {
			t.Errorf("doctor does not print %q:\n%s", want, text)
		}
	}
}

func TestDoctorFindsAHomeThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "file", nil)
	for _, home := range []string{file, filepath.Join(file, "below")} {
		o, found := call{args: []string{"--home", home}}.verdicts(t)
		if o.status != statusFailed || found["home"].Verdict != problem || found["home"].Do == "" {
			t.Errorf("home %s: exit status %d, %+v", home, o.status, found["home"])
		}
		wantOneLine(t, o.stderr, "1 problem found: home")
	}
}

func TestDoctorLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	call{home: home}.verdicts(t)
	if left, err := os.ReadDir(home); err != nil || len(left) != 0 {
		t.Errorf("doctor left %v (%v)", left, err)
	}
}

func TestDoctorNotesWhatHasNoEffect(t *testing.T) {
	t.Parallel()
	o, found := call{env: []string{"KVASIR_TOKENZ=3"}}.verdicts(t)
	if o.status != statusDone {
		t.Errorf("exit status %d: notes are no problems", o.status)
	}
	if f := found["settings"]; f.Verdict != note || !strings.Contains(f.Text, "KVASIR_TOKENZ") || !strings.Contains(f.Do, "KVASIR_TOKENS") {
		t.Errorf("settings: %+v", f)
	}
}

func TestDoctorSaysWhatIsWrongWithTheArithmetic(t *testing.T) {
	var r doctorReport
	f := r.arithmetic([]string{"exp gives 00000000, want 0cbe354c"})
	if f.Verdict != problem || f.Do == "" || r.Class != "broken" {
		t.Errorf("%+v, class %s", f, r.Class)
	}
}

func TestArithmeticCheckNoticesAWrongBit(t *testing.T) {
	if wrong := checkArithmetic(arithmeticChecks); len(wrong) != 0 {
		t.Errorf("wrong: %v", wrong)
	}
	off := []arithmeticCheck{{"off", checksum(3, func(i int) float32 { return float32(i) }), func() uint32 {
		return checksum(3, func(i int) float32 { return float32(i) * 1.0000001 })
	}}}
	if wrong := checkArithmetic(off); len(wrong) != 1 || !strings.HasPrefix(wrong[0], "off gives ") {
		t.Errorf("a wrong bit was not noticed: %v", wrong)
	}
}

func TestMemoryFindingInWords(t *testing.T) {
	for _, c := range []struct {
		name             string
		total, available uint64
		verdict          verdict
		text             string
	}{
		{"plenty", 16e9, 8e9, good, "16.0 GB, 8.00 GB available"},
		{"little", 16e9, 1e8, note, "16.0 GB, only 100 MB available"},
		{"no word of what is available", 16e9, 0, good, "16.0 GB"},
		{"no word at all", 0, 0, note, "this system does not tell"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := doctorReport{Machine: machine.Facts{Memory: c.total, Available: c.available}}
			if f := r.memory(); f.Verdict != c.verdict || f.Text != c.text {
				t.Errorf("%+v", f)
			}
		})
	}
}

func TestReadVersionTakesWhatTheLinkerWrote(t *testing.T) {
	v := readVersion(&debug.BuildInfo{
		Main: debug.Module{Version: "v1.2.3"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"},
			{Key: "vcs.modified", Value: "true"}, {Key: "GOARCH", Value: "x"},
		},
	})
	if v.Version != "v1.2.3" || v.Commit != "abc" || v.CommitTime == "" || !v.Modified {
		t.Errorf("%+v", v)
	}
	if v.commit() != "abc, with changes since" {
		t.Errorf("commit %q", v.commit())
	}
	if v := readVersion(nil); v.Version != "(devel)" || v.commit() != "not recorded in this build" {
		t.Errorf("%+v", v)
	}
}
