package bench

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"kvasir/engine/model"
	batching "kvasir/engine/schedule"
	"kvasir/kernels/vector"
)

// scheduled makes tokens for many sequences together, as a server does: the scheduler decides for each
// micro-batch who is in it.
type scheduled struct {
	experts   *counter
	scheduler *batching.Scheduler
}

// scheduledConfig is for newScheduled.
type scheduledConfig struct {
	experts           *counter
	rows, flights     int // of a micro-batch, and of them under way; 0: the scheduler's own
	sequences, tokens int // at once, and of each
}

// newScheduled has room for so many sequences of so many tokens at once.
func newScheduled(rig *modelRig, c scheduledConfig) (*scheduled, error) {
	s, err := batching.New(batching.Config{
		Model: rig.model, Memory: rig.model.NewMemory(int64(c.sequences+1) * rig.model.SequenceBytes(c.tokens)),
		Experts: c.experts, Rows: c.rows, Flights: c.flights, Sequences: c.sequences, Waiting: c.sequences,
	})
	return &scheduled{c.experts, s}, err
}

func (d *scheduled) close() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = d.scheduler.Close(now) // nothing is under way
}

// generation is what came of it.
type generation struct {
	tokens  [][]int32     // of each prompt
	decoded int           // tokens that were made when all sequences had their first one
	decode  time.Duration // in which they were
	counted counts
}

// generate reads the prompts and makes so many tokens of each after the first, the most likely ones,
// whatever they are. Counting begins when all sequences have their first one.
func (d *scheduled) generate(ctx context.Context, prompts [][]int32, tokens int) (generation, error) {
	g := generation{tokens: make([][]int32, len(prompts))}
	t := &stopwatch{d: d, waiting: len(prompts)}
	streams := make([]*batching.Stream, len(prompts))
	for i, p := range prompts {
		var err error
		streams[i], err = d.scheduler.Submit(ctx, batching.Request{
			Prompt: p, Limit: tokens + 1, Choices: []batching.Chooser{&likeliest{stopwatch: t}},
		})
		if err != nil {
			return g, err
		}
		defer streams[i].Cancel()
	}
	for i, s := range streams {
		for {
			event, err := s.Next(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return g, err
			}
			g.tokens[i] = append(g.tokens[i], event.Token)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	g.decoded, g.decode, g.counted = t.decoded, t.last.Sub(t.start), t.end.less(t.before)
	return g, nil
}

// stopwatch counts tokens from the moment on at which all sequences have one.
type stopwatch struct {
	d *scheduled

	mu          sync.Mutex
	waiting     int // sequences without a token
	start, last time.Time
	before, end counts
	decoded     int
}

func (t *stopwatch) count(first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Others of the micro-batch with the last first token were computed before the count began.
	if now := t.d.experts.count(); t.waiting == 0 && now.calls > t.before.calls {
		t.decoded++
		t.last, t.end = time.Now(), now
	}
	if !first {
		return
	}
	if t.waiting--; t.waiting == 0 {
		t.start, t.before = time.Now(), t.d.experts.count()
	}
}

// likeliest is the scheduler's Chooser.
type likeliest struct {
	stopwatch *stopwatch
	begun     bool
}

// Next chooses the most likely token.
func (c *likeliest) Next(logits []float32, _ int) (token int32, end bool, err error) {
	c.stopwatch.count(!c.begun)
	c.begun = true
	return int32(vector.Active().Argmax(logits)), false, nil
}

// prefill reads one prompt to its last logits, and returns the token that follows.
func (r *modelRig) prefill(ctx context.Context, prompt []int32) (next int32, took time.Duration, err error) {
	seq, err := r.model.NewMemory(0).NewSequence()
	if err != nil {
		return 0, 0, err
	}
	defer seq.Free()
	s := &model.Step{Seq: seq, Tokens: prompt, Sink: func(logits []float32) { next = int32(vector.Active().Argmax(logits)) }}
	start := time.Now()
	if err := r.model.Forward(ctx, r.experts, []*model.Step{s}); err != nil {
		return 0, 0, err
	}
	return next, time.Since(start), s.Err
}
