package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"kvasir/engine"
	"kvasir/engine/tiny"
	"kvasir/internal/machine"
	"kvasir/internal/slab"
	"kvasir/kernels/cuda"
	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
)

type doctorCmd struct {
	jsonFlag
}

// Help is printed by kvasir doctor --help.
func (doctorCmd) Help() string {
	return `Every line says ok, note or problem. A note is worth knowing and stops nothing; a problem says what to do. With a problem the exit status is 1.

KVASIR_KERNEL, set to one of the kernels that doctor names, makes every command compute with that one. The results are the same.

Example:

    kvasir doctor`
}

// verdict is how a finding stands.
type verdict string

const (
	good    verdict = "ok"
	note    verdict = "note"
	problem verdict = "problem"
)

// finding is one line of the doctor.
type finding struct {
	Check   string  `json:"check"`
	Verdict verdict `json:"verdict"`
	Text    string  `json:"text"`
	Do      string  `json:"do,omitempty"` // what to do about it
}

type doctorReport struct {
	Machine   machine.Facts `json:"machine"`
	ReadRate  uint64        `json:"read_bytes_per_s"` // out of memory, by all threads; 0: not measured
	Pinned    pinnedMemory  `json:"pinned"`
	GPUs      []cuda.Device `json:"gpus"`
	Build     buildVersion  `json:"build"`
	Kernel    string        `json:"kernel"`  // the variant that is taken
	Kernels   []string      `json:"kernels"` // those that could be, the best last
	Class     string        `json:"class"`   // exact: this machine gives the bits of every other one
	Model     string        `json:"model"`
	ModelHash string        `json:"model_sha256"`
	Findings  []finding     `json:"findings"`
}

// Run examines the machine and the build.
func (c doctorCmd) Run(ctx context.Context, a *app) error {
	r := doctorReport{Machine: machine.Read(), Build: version(), Model: tiny.Name}
	r.Findings = append(r.Findings, r.processor(), r.features(), r.caches(), r.memory(),
		r.pinned(slab.Probe))
	r.Findings = append(r.Findings, r.bandwidth(machine.ReadRate(r.Machine.Threads, readTime)))
	r.Findings = append(r.Findings, r.kernel(variant.Active()))
	r.Findings = append(r.Findings, r.gpus(cuda.Devices())...)
	r.Findings = append(r.Findings, r.arithmetic(checkArithmetic(arithmeticChecks)), r.model(ctx))
	r.Findings = append(r.Findings, homeFinding(a.settings), fileFinding(a.settings))
	for _, x := range a.settings.strangers(a.model.Model) {
		r.Findings = append(r.Findings, strangerFinding(x))
	}
	r.Findings = append(r.Findings, r.build())
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.JSON {
		if err := a.stdout.printJSON(r); err != nil {
			return err
		}
	} else {
		r.print(a.stdout)
	}
	return r.err()
}

// err sums up the problems in one line.
func (r *doctorReport) err() error {
	var bad []string
	for _, f := range r.Findings {
		if f.Verdict == problem {
			bad = append(bad, f.Check)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return fmt.Errorf("%s found: %s", plural(len(bad), "problem"), strings.Join(bad, ", "))
}

func (r *doctorReport) print(s *screen) {
	t := table{style: func(row, column int) style {
		if column > 0 {
			return plain
		}
		switch r.Findings[row].Verdict {
		case good:
			return green
		case note:
			return yellow
		}
		return red
	}}
	for _, f := range r.Findings {
		text := f.Text
		if f.Do != "" {
			text += "; " + f.Do
		}
		t.add(string(f.Verdict), f.Check, text)
	}
	t.print(s)
}

func (r *doctorReport) arithmetic(wrong []string) finding {
	if len(wrong) > 0 {
		r.Class = "broken"
		return finding{"arithmetic", problem, strings.Join(wrong, ", "),
			"results would differ from other machines: build with the released Go toolchain, and report this"}
	}
	r.Class = "exact"
	return finding{"arithmetic", good, fmt.Sprintf("version %d, class exact: recip, exp, silu and experts of "+
		"all weight formats give the bits they should", ref.Arithmetic), ""}
}

// model loads the built-in model and lets it speak.
func (r *doctorReport) model(ctx context.Context) finding {
	r.ModelHash = fmt.Sprintf("%x", sha256.Sum256(tiny.Model()))
	broken := func(err error) finding {
		return finding{"model", problem, err.Error(), "build or install kvasir again"}
	}
	e, err := engine.Open(engine.Options{})
	if err != nil {
		return broken(err)
	}
	const prompt, want = "The capital of France is", " Paris"
	res, err := e.Generate(ctx, engine.Request{Prompt: prompt, Tokens: 8}, func(engine.Piece) error { return nil })
	if err = errors.Join(err, e.Close()); err != nil {
		return broken(err)
	}
	if text := res.First().Text; !strings.HasPrefix(text, want) {
		return broken(fmt.Errorf("%s continues %q with %q, want %q", tiny.Name, prompt, text, want))
	}
	return finding{"model", good, fmt.Sprintf("%s, %s, loads and knows Paris; sha256 %s", tiny.Name,
		size(uint64(len(tiny.Model()))), r.ModelHash[:16]), ""}
}

// homeFinding tries whether the home folder, or the place where it would be made, can be written to.
func homeFinding(s *settings) finding {
	if s.home == "" {
		return finding{"home", problem, "this system names no configuration folder",
			"set HOME, or give a folder with --home or KVASIR_HOME"}
	}
	cure := "change its owner or permissions, or give another folder with --home or KVASIR_HOME"
	dir, text := s.home, s.home+" can be written to"
	info, err := os.Stat(dir)
	for errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		dir, text = filepath.Dir(dir), s.home+" is not there yet and can be made"
		info, err = os.Stat(dir)
	}
	if err == nil && !info.IsDir() {
		return finding{"home", problem, dir + " is not a folder", cure}
	}
	if err == nil {
		err = tryWriting(dir)
	}
	if err != nil {
		return finding{"home", problem, fmt.Sprintf("%s cannot be written to: %v", s.home, pathless(err)), cure}
	}
	return finding{"home", good, text, ""}
}

// tryWriting makes a file in a folder and removes it.
func tryWriting(dir string) error {
	f, err := os.CreateTemp(dir, ".kvasir-doctor-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

func fileFinding(s *settings) finding {
	if s.file == "" {
		return finding{"settings", good, "no settings file; defaults, environment and flags are used", ""}
	}
	return finding{"settings", good, s.file + " is read and understood", ""}
}

func strangerFinding(x stranger) finding {
	do := "unset it"
	if x.Nearest != "" {
		do = "did you mean " + x.Nearest + "?"
	}
	return finding{"settings", note, x.Name + " is set, but there is no such setting", do}
}

func (r *doctorReport) build() finding {
	return finding{"build", good, fmt.Sprintf("kvasir %s, %s, commit %s", r.Build.Version, r.Build.Go,
		r.Build.commit()), ""}
}
