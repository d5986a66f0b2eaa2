package chat

import (
	"fmt"
	"time"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// What a run may spend. The unit is about the work of copying a byte; every operation costs
// stepCost beside what it copies. Of 29 templates of known models the hungriest spends 37,000 on
// itself, 24,000 a message and 11 a byte.
const (
	fixedBudget      = 32 << 20
	budgetPerMessage = 256 << 10
	budgetPerByte    = 32

	stepCost  = 256
	valueCost = 16 // a value in a list, beside its text
)

// Names that no template can spell.
const (
	runName = " run"
	doName  = " do"
)

// run is one rendering. Gonja hands it to the functions through its context.
type run struct {
	budget  int
	macros  int // calls under way, one in another
	now     func() time.Time
	failure error // the first one; what gonja makes of it on its way up is of no use
}

func runOf(e *exec.Environment) *run {
	r, _ := e.Context.Get(runName)
	return r.(*run)
}

// spend takes n from the budget.
func (r *run) spend(n int) error {
	if n < 0 || n > r.budget {
		r.budget = 0
		return fmt.Errorf("%w: the template works for longer than these messages can need", ErrLimit)
	}
	r.budget -= n
	return nil
}

// spendFor pays for a walk through all of v. The walk itself ends when the budget does: a list that
// holds another one twice, and so on, is larger than memory.
func (r *run) spendFor(v any) error {
	n := valueCost
	switch v := v.(type) {
	case string:
		n += len(v)
	case []any:
		for _, x := range v {
			if err := r.spendFor(x); err != nil {
				return err
			}
		}
	case dict:
		for _, e := range v {
			if err := r.spendFor(e.key); err != nil {
				return err
			}
			if err := r.spendFor(e.value); err != nil {
				return err
			}
		}
	}
	return r.spend(n)
}

// fail keeps err as what Render returns, if it is the first, and adds the line that it came from.
func (r *run) fail(line int, err error) error {
	if r.failure == nil {
		r.failure = wrapLine(line, err)
	}
	return r.failure
}
