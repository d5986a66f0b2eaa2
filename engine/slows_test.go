package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"kvasir/batcher/place"
)

// TestWorkerThatSlowsIsToldOnTheSecondPlan holds that one plan leaves a worker out, and the next sends it away.
func TestWorkerThatSlowsIsToldOnTheSecondPlan(t *testing.T) {
	ctx, drain := context.WithCancelCause(t.Context())
	defer drain(nil)
	w := &attached{ctx: ctx, drain: drain}
	s := &Swarm{c: SwarmConfig{}}
	a := &planArgs{who: []*attached{w}}
	p := &place.Plan{Workers: []place.WorkerPlan{{Slows: true, Why: "not used: 9 tokens/s without it, 5 with it"}}}
	s.sendSlow(a, p)
	if ctx.Err() != nil {
		t.Fatal("sent away by the first plan")
	}
	s.follow(a, p)
	s.sendSlow(a, &place.Plan{Workers: []place.WorkerPlan{{}}})
	if ctx.Err() != nil {
		t.Fatal("sent away though the second plan uses it")
	}
	s.sendSlow(a, p)
	cause := context.Cause(ctx)
	if cause == nil || !strings.Contains(cause.Error(), "9 tokens/s without it") {
		t.Fatalf("the worker is told: %v", cause)
	}
	if back(fmt.Errorf("again: %w", cause)) != smallRest || back(errEnding) != 0 {
		t.Errorf("it may come again after %v, others after %v", back(cause), back(errEnding))
	}
}
