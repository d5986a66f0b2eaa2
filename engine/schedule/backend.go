package schedule

import (
	"context"
	"math"

	"kvasir/engine/model"
	"kvasir/internal/moe"
)

// backend is what a scheduler needs of a model and its memory.
type backend interface {
	bytes(tokens int) int64 // what a sequence of so many tokens takes at most
	room() int64            // bytes that sequences may take beyond what they hold
	resume(tokens []int32) (sequence, error)
	forward(ctx context.Context, steps []*step) error
}

// sequence is the state of one sequence. Its user is alone with it.
type sequence interface {
	Len() int
	fork() (sequence, error)
	Free()
}

// step is a model's step for a sequence.
type step struct {
	model.Step
	seq sequence
}

// local is the backend that New uses.
type local struct {
	model   *model.Model
	memory  *model.Memory
	experts moe.Experts
}

func (l *local) bytes(tokens int) int64 { return l.model.SequenceBytes(tokens) }

func (l *local) room() int64 {
	s := l.memory.Stats()
	if s.Budget == 0 {
		return math.MaxInt64 / 2 // claims are taken from it
	}
	return s.Budget - s.Used + s.Cached
}

func (l *local) resume(tokens []int32) (sequence, error) {
	s, err := l.memory.Resume(tokens)
	if err != nil {
		return nil, err
	}
	return localSequence{s}, nil
}

func (l *local) forward(ctx context.Context, steps []*step) error {
	list := make([]*model.Step, len(steps))
	for i, s := range steps {
		s.Seq = s.seq.(localSequence).Sequence
		list[i] = &s.Step
	}
	return l.model.Forward(ctx, l.experts, list)
}

type localSequence struct{ *model.Sequence }

func (s localSequence) fork() (sequence, error) {
	f, err := s.Fork()
	if err != nil {
		return nil, err
	}
	return localSequence{f}, nil
}
