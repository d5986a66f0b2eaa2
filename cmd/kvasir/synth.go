package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"kvasir/engine/synth"
)

type synthCmd struct {
	File filePath `arg:"" help:"File to write, in GGUF format."`

	Like   string `help:"Start from the dimensions of: anchor, mini, qwen3-30b-a3b, qwen3-235b-a22b, qwen3.5-35b-a3b or qwen3.5-122b-a10b (default ${default})." placeholder:"MODEL" default:"anchor"`
	Format string `help:"Format of experts and large matrices: F32, F16, BF16, Q8_0, Q4_K, Q5_K, Q6_K or MXFP4 (default Q4_K)." placeholder:"FORMAT"`
	Seed   seed   `help:"Of the weights (default ${default})." placeholder:"N" default:"1"`
	Force  bool   `help:"Write over a file that is there."`

	Layers     extent `help:"Layers, without MTP blocks." placeholder:"N" group:"Dimensions (default: those of --like):"`
	Hidden     extent `help:"Values a row." placeholder:"N" group:"Dimensions (default: those of --like):"`
	Experts    extent `name:"expert-count" help:"Routed experts of a layer." placeholder:"N" group:"Dimensions (default: those of --like):"`
	TopK       extent `name:"topk" help:"Experts a row." placeholder:"N" group:"Dimensions (default: those of --like):"`
	FFN        extent `name:"ffn" help:"Values between gate and down of an expert." placeholder:"N" group:"Dimensions (default: those of --like):"`
	Heads      extent `help:"Query heads." placeholder:"N" group:"Dimensions (default: those of --like):"`
	KVHeads    extent `name:"kv-heads" help:"Key and value heads." placeholder:"N" group:"Dimensions (default: those of --like):"`
	HeadDim    extent `help:"Values of a head." placeholder:"N" group:"Dimensions (default: those of --like):"`
	Vocab      extent `help:"Tokens." placeholder:"N" group:"Dimensions (default: those of --like):"`
	Context    extent `help:"Positions." placeholder:"N" group:"Dimensions (default: those of --like):"`
	SharedFFN  extent `name:"shared-ffn" help:"Values between gate and down of the shared expert." placeholder:"N" group:"Dimensions of qwen35moe only:"`
	Interval   extent `help:"Every so many layers one has attention." placeholder:"N" group:"Dimensions of qwen35moe only:"`
	KeyHeads   extent `help:"Key heads of gated DeltaNet." placeholder:"N" group:"Dimensions of qwen35moe only:"`
	ValueHeads extent `help:"Value heads of gated DeltaNet." placeholder:"N" group:"Dimensions of qwen35moe only:"`
	State      extent `name:"state-dim" help:"Values of a head of gated DeltaNet." placeholder:"N" group:"Dimensions of qwen35moe only:"`
	Conv       extent `help:"Taps of the convolution." placeholder:"N" group:"Dimensions of qwen35moe only:"`
	NoMTP      bool   `name:"no-mtp" help:"Leave out the block for multi-token prediction." group:"Dimensions of qwen35moe only:"`
	jsonFlag
}

// Help is printed by kvasir model synth --help.
func (synthCmd) Help() string {
	return `The weights are random and make no sense, but the file is like a real one: it runs, and takes the memory and the time of a model of its size. The same flags and seed give the same file everywhere.

Examples:

    kvasir model synth small.gguf
    kvasir model synth --like qwen3.5-122b-a10b --layers 4 part.gguf`
}

// synthResult is what kvasir model synth --json prints.
type synthResult struct {
	File         string `json:"file"`
	Architecture string `json:"architecture"`
	Format       string `json:"format"`
	Seed         uint64 `json:"seed"`
	Bytes        int64  `json:"bytes"`
	Weights      int64  `json:"weights"`
	Tensors      int    `json:"tensors"`
}

// Run writes the file.
func (c *synthCmd) Run(ctx context.Context, a *app) error {
	shape, err := c.shape()
	var plan *synth.Plan
	if err == nil {
		plan, err = shape.Plan()
	}
	if errors.Is(err, synth.ErrShape) {
		return usagef("%s", strings.TrimPrefix(err.Error(), synth.ErrShape.Error()+": "))
	}
	if err != nil {
		return err
	}
	o := synth.Options{Seed: uint64(c.Seed), Force: c.Force}
	bar := bytesBar{screen: a.stderr, total: plan.Size}
	if a.stderr.terminal {
		o.Progress = bar.set
	}
	err = plan.Write(ctx, string(c.File), o)
	bar.clear()
	if err != nil {
		return synthError(string(c.File), err)
	}
	if c.JSON {
		return a.stdout.printJSON(synthResult{
			string(c.File), shape.Arch, shape.Format.String(), uint64(c.Seed), plan.Size, plan.Values, plan.Tensors,
		})
	}
	var t table
	t.add("written", string(c.File))
	t.add("size", size(uint64(plan.Size)))
	t.add("architecture", shape.Arch)
	t.add("weights", fmt.Sprintf("%s in %s, %s", decimal(uint64(plan.Values)), plural(plan.Tensors, "tensor"), shape.Format))
	t.print(a.stdout)
	return nil
}

// synthError names the file, where the error does not.
func synthError(path string, err error) error {
	for _, own := range []error{synth.ErrExists, synth.ErrSpace} {
		if errors.Is(err, own) {
			return errors.New(strings.TrimPrefix(err.Error(), "synth: "))
		}
	}
	return fmt.Errorf("%s: %w", path, err)
}

// shape is the dimensions of --like with those that were given in their place.
func (c *synthCmd) shape() (synth.Shape, error) {
	s, err := synth.Like(c.Like)
	if err != nil {
		return s, err
	}
	if c.Format != "" {
		if s.Format, err = synth.ParseFormat(c.Format); err != nil {
			return s, err
		}
	}
	for _, d := range []struct {
		to    *int
		given extent
	}{
		{&s.Layers, c.Layers}, {&s.Hidden, c.Hidden}, {&s.Experts, c.Experts}, {&s.TopK, c.TopK}, {&s.FFN, c.FFN},
		{&s.Heads, c.Heads}, {&s.KVHeads, c.KVHeads}, {&s.HeadDim, c.HeadDim}, {&s.Vocab, c.Vocab}, {&s.Context, c.Context},
	} {
		d.given.or(d.to)
	}
	if s.TopK > s.Experts && c.TopK == "" {
		s.TopK = s.Experts // of a model with fewer experts than was asked to be like
	}
	return s, c.shape35(&s)
}

// shape35 takes the flags that only Qwen35MoE has.
func (c *synthCmd) shape35(s *synth.Shape) error {
	for _, d := range []struct {
		name  string
		to    *int
		given extent
	}{
		{"shared-ffn", &s.SharedFFN, c.SharedFFN}, {"interval", &s.Interval, c.Interval}, {"key-heads", &s.KeyHeads, c.KeyHeads},
		{"value-heads", &s.ValHeads, c.ValueHeads}, {"state-dim", &s.State, c.State}, {"conv", &s.Conv, c.Conv},
	} {
		if d.given == "" {
			continue
		}
		if s.Arch != synth.Qwen35MoE {
			return fmt.Errorf("%w: --%s is not for %s, which --like %s is; try --like mini", synth.ErrShape, d.name, s.Arch, c.Like)
		}
		d.given.or(d.to)
	}
	if c.NoMTP {
		s.MTP = 0
	}
	return nil
}

// extent is a count that may be left out.
type extent string

// UnmarshalText checks an extent, wherever it comes from.
func (e *extent) UnmarshalText(text []byte) error {
	var c count
	if err := c.UnmarshalText(text); err != nil {
		return err
	}
	*e = extent(text)
	return nil
}

// or sets n to the extent, if there is one.
func (e extent) or(n *int) {
	var c count
	if e != "" && c.UnmarshalText([]byte(e)) == nil {
		*n = int(c)
	}
}

// bytesBar draws a bar on a terminal, from its first report on.
type bytesBar struct {
	screen *screen
	total  int64
	bar    *progressbar.ProgressBar
}

// set draws the bar. One that cannot be drawn is no reason to stop.
func (b *bytesBar) set(done, _ int64) {
	if b.bar == nil {
		b.bar = progressbar.NewOptions64(b.total,
			progressbar.OptionSetWriter(b.screen),
			progressbar.OptionSetDescription("writing"),
			progressbar.OptionShowBytes(true),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionSetWidth(30),
		)
	}
	_ = b.bar.Set64(done)
}

// clear wipes the bar, so that the next line starts on its left.
func (b *bytesBar) clear() {
	if b.bar != nil {
		_ = b.bar.Clear()
	}
}
