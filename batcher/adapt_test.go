package batcher

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
)

// serial is an executor that computes one batch at a time: fixed and 20 us a row, some way off.
type serial struct {
	rtt, fixed time.Duration
	turn       chan struct{} // room for one
}

func (s *serial) RTT() time.Duration { return s.rtt }

func (s *serial) Forward(_ context.Context, b *moe.Batch, out *moe.Partials) error {
	time.Sleep(s.rtt/2 + time.Duration(rand.Int64N(int64(s.rtt/4+1))))
	s.turn <- struct{}{}
	time.Sleep(s.fixed + time.Duration(b.Rows)*20*time.Microsecond)
	<-s.turn
	time.Sleep(s.rtt / 2)
	out.Size(b.Rows, b.Hidden)
	return nil
}

// walk takes micro-batches through layers that three executors hold in turn, and returns how long that took.
func walk(t *testing.T, flights int, x serial, l Limits) time.Duration {
	const steps, layers, rows, own = 12, 12, 16, time.Millisecond
	var lanes []*Lane
	for range 3 {
		lane := newLane(t, &serial{x.rtt, x.fixed, make(chan struct{}, 1)}, l, 0)
		defer lane.Close()
		lanes = append(lanes, lane)
	}
	began, backbone := time.Now(), make(chan struct{}, 1)
	var wg sync.WaitGroup
	for f := range uint64(flights) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, f))
			b := randomBatch(rng, moe.Shape{Hidden: 1, Format: moe.RowQ8K}, rows, 1, 8)
			for at := range steps * layers {
				backbone <- struct{}{}
				time.Sleep(own + time.Duration(rng.IntN(200))*time.Microsecond)
				<-backbone
				b.Layer = at % layers
				if err := lanes[b.Layer%3].Forward(t.Context(), b, &moe.Partials{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}

// A lane that adapts makes those who follow each other closely go together where executors nearby are what is
// scarce, and is no slower elsewhere.
func TestALaneThatAdaptsIsQuickerNearbyAndNoSlowerFarAway(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name    string
		flights int
		x       serial
		most    float64 // of the time without
	}{
		{"executors nearby are scarce", 16, serial{rtt: 0, fixed: 5 * ms}, 0.80},
		{"a millisecond away", 16, serial{rtt: ms, fixed: 5 * ms}, 0.80},
		{"the backbone is scarce", 4, serial{rtt: 0, fixed: ms}, 1.01},
		{"one at a time", 1, serial{rtt: 0, fixed: 5 * ms}, 1.01},
		{"far away", 16, serial{rtt: 13 * ms, fixed: 5 * ms}, 1.05},
		{"further away", 8, serial{rtt: 80 * ms, fixed: ms}, 1.05},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var took [2]time.Duration
			for i, l := range []Limits{{}, {Adapt: true}} {
				synctest.Test(t, func(t *testing.T) { took[i] = walk(t, tt.flights, tt.x, l) })
			}
			if share := float64(took[1]) / float64(took[0]); share > tt.most {
				t.Errorf("takes %v, and %v without: %.3f of it, want up to %v", took[1], took[0], share, tt.most)
			} else {
				t.Logf("%.3f of %v", share, took[0])
			}
		})
	}
}
