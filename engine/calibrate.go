package engine

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"

	"kvasir/engine/experts"
	"kvasir/engine/model"
	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// calibrationText is what a model reads while its profile is measured: prose, talk, code and numbers in
// several languages, written for this purpose.
//
//go:embed calibration.txt
var calibrationText string

// calibrationChunk is how many tokens one sequence of a calibration has.
const calibrationChunk = 256

// Calibration asks for a model's arithmetic profile.
type Calibration struct {
	Path string // of the model file; empty: the embedded kvasir-tiny
	Text string // what the model reads; empty: the built-in text

	// Progress, if set, is told how many tokens have been read.
	Progress func(done, total int)
}

// Calibrate measures the arithmetic profile of a model: one exponent a layer (DESIGN section 4). It
// takes the time of a prefill of a few thousand tokens.
func Calibrate(ctx context.Context, c Calibration) (ref.Profile, error) {
	var p ref.Profile
	f, err := openFile(c.Path)
	if err != nil {
		return p, err
	}
	e := &Engine{name: f.Name, file: f}
	if err := e.assemble(defaultProfile); err != nil {
		_ = f.Close() // read only: nothing is lost
		return p, fmt.Errorf("%s: %w", f.Name, err)
	}
	defer func() { _ = e.Close() }() // read only: nothing is lost
	if c.Text == "" {
		c.Text = calibrationText
	}
	tokens, err := e.tokens.Encode(c.Text, true)
	if err != nil {
		return p, fmt.Errorf("calibration text: %w", err)
	}
	if len(tokens) < ref.MinRows {
		return p, fmt.Errorf("the calibration text has %d tokens in this model's vocabulary, want at least %d; give a longer one with --text",
			len(tokens), ref.MinRows)
	}
	gauge := experts.NewGauge(e.experts, e.profile)
	for done := 0; done < len(tokens); {
		n := min(len(tokens)-done, calibrationChunk, e.model.Context)
		if err := e.gauge(ctx, gauge, tokens[done:done+n]); err != nil {
			return p, err
		}
		if done += n; c.Progress != nil {
			c.Progress(done, len(tokens))
		}
	}
	name := filepath.Base(f.Name)
	if p, err = gauge.Profile(name); err != nil {
		return p, fmt.Errorf("%s: %w", f.Name, err)
	}
	return p, nil
}

// gauge takes one chunk of the text through all layers, the last one included: so all logits are asked
// for.
func (e *Engine) gauge(ctx context.Context, x moe.Experts, tokens []int32) error {
	seq, err := e.memory.NewSequence()
	if err != nil {
		return err
	}
	defer seq.Free()
	step := &model.Step{Seq: seq, Tokens: tokens, Want: model.All, Sink: func([]float32) {}}
	if err := e.model.Forward(ctx, x, []*model.Step{step}); err != nil {
		return err
	}
	return step.Err
}

// SaveProfile writes a profile beside its model and returns the file's name. The file appears whole or
// not at all.
func SaveProfile(path string, p ref.Profile) (string, error) {
	name := profilePath(path)
	tmp, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return "", err
	}
	_, err = tmp.Write(p.Append(nil))
	if e := tmp.Chmod(0o644); err == nil {
		err = e
	}
	if e := tmp.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return "", err
	}
	return name, nil
}

func defaultProfile(layers int) (p ref.Profile, measured bool, err error) {
	return ref.DefaultProfile(layers), false, nil
}
