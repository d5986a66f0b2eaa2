package bench

import (
	"context"
	"time"

	"kvasir/engine/model"
	"kvasir/kernels/vector"
)

// generator makes tokens for many sequences together: the model itself, all of them in one step, or a
// scheduler that decides for each step who is in it.
type generator interface {
	// generate reads the prompts and then makes so many tokens of each, the most likely ones, whatever they
	// are. The first token of each comes with the prompt and is not counted as decoded.
	generate(ctx context.Context, prompts [][]int32, tokens int) (generation, error)
}

// generation is what came of it.
type generation struct {
	tokens  [][]int32 // of each prompt, the first included
	decode  time.Duration
	counted counts // while decoding
}

// direct steps all sequences together. It is the least that any scheduler can take.
type direct struct {
	rig *modelRig
}

func (d direct) generate(ctx context.Context, prompts [][]int32, tokens int) (generation, error) {
	mem := d.rig.model.NewMemory(0)
	steps := make([]*model.Step, len(prompts))
	var g generation
	defer func() {
		for _, s := range steps {
			if s != nil {
				s.Seq.Free()
			}
		}
	}()
	for i, p := range prompts {
		seq, err := mem.NewSequence()
		if err != nil {
			return g, err
		}
		made := make([]int32, 0, tokens+1)
		g.tokens = append(g.tokens, made)
		steps[i] = &model.Step{Seq: seq, Tokens: p, Sink: func(logits []float32) {
			g.tokens[i] = append(g.tokens[i], int32(vector.Active().Argmax(logits)))
		}}
	}
	if err := d.step(ctx, steps); err != nil {
		return g, err
	}
	start, before := time.Now(), d.rig.experts.count()
	for range tokens {
		for i, s := range steps {
			s.Tokens = g.tokens[i][len(g.tokens[i])-1:]
		}
		if err := d.step(ctx, steps); err != nil {
			return g, err
		}
	}
	g.decode, g.counted = time.Since(start), d.rig.experts.count().less(before)
	return g, nil
}

// step takes one step of all.
func (d direct) step(ctx context.Context, steps []*model.Step) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := d.rig.model.Forward(ctx, d.rig.experts, steps); err != nil {
		return err
	}
	for _, s := range steps {
		if s.Err != nil {
			return s.Err
		}
	}
	return nil
}

// prefill reads one prompt to its last logits, and returns the token that follows.
func (d direct) prefill(ctx context.Context, prompt []int32) (next int32, took time.Duration, err error) {
	seq, err := d.rig.model.NewMemory(0).NewSequence()
	if err != nil {
		return 0, 0, err
	}
	defer seq.Free()
	s := &model.Step{Seq: seq, Tokens: prompt, Sink: func(logits []float32) { next = int32(vector.Active().Argmax(logits)) }}
	start := time.Now()
	err = d.step(ctx, []*model.Step{s})
	return next, time.Since(start), err
}
