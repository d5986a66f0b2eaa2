package batcher

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
)

// TestNowhereFailsThoseConcernedOnly has calls for two layers side by side, of which nobody holds one any more:
// its calls wait for as long as is allowed and fail by name; those for the other are as quick as before.
func TestNowhereFailsThoseConcernedOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rtt, wait = 13 * time.Millisecond, 5 * time.Second
		d := NewDispatcher(Options{Wait: wait})
		d.Join("stays", newStub(rtt, time.Millisecond, 0), holding(0, 32, 0))
		leaves := d.Join("leaves", newStub(rtt, time.Millisecond, 0), holding(0, 32, 1))
		leaves.Leave()
		var calls sync.WaitGroup
		for range 4 {
			calls.Go(func() {
				b := smallBatch(8)
				b.Layer = 1
				began := time.Now()
				err := d.Forward(t.Context(), b, &moe.Partials{})
				if took := time.Since(began); !errors.Is(err, ErrNowhere) || took != wait {
					t.Errorf("%v after %v, want ErrNowhere after %v", err, took, wait)
				}
			})
			calls.Go(func() {
				for range 100 {
					began := time.Now()
					forward(t, d, smallBatch(8))
					if took := time.Since(began); took > rtt+4*time.Millisecond {
						t.Errorf("a call that is not concerned took %v", took)
					}
				}
			})
		}
		calls.Wait()
	})
}
