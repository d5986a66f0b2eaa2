package place

import (
	"fmt"
	"testing"
	"time"
)

// inForce returns the workers with what a plan has given them.
func inForce(ws []Worker, p Plan) []Worker {
	now := append([]Worker(nil), ws...)
	for i := range now {
		now[i].Held, now[i].Cached = p.Workers[i].Ranges, append(now[i].Cached, p.Workers[i].Ranges...)
	}
	return now
}

// measured is a swarm of equal workers, each with room for half of the model.
func measured() (Model, []Worker) {
	m := Model{Layers: 12, Experts: 32, TopK: 4, ExpertBytes: []int64{mib}, RowBytes: 3120, PartialBytes: 5000}
	var ws []Worker
	for i := range 3 {
		ws = append(ws, Worker{
			Name: fmt.Sprint(i), Memory: 2 * 12 * 32 * mib, Rows: 20000, RTT: 13 * time.Millisecond,
			Up: 12.5e6, Down: 12.5e6,
		})
	}
	return m, ws
}

// TestAgainMovesForWhatPaysOnly changes what is measured of one worker, a little and much.
func TestAgainMovesForWhatPaysOnly(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(w *Worker)
		worth  bool
	}{
		{"nothing", func(*Worker) {}, false},
		{"a little slower", func(w *Worker) { w.Rows *= 0.9 }, false},
		{"a little less uplink", func(w *Worker) { w.Up *= 0.9 }, false},
		{"another round trip", func(w *Worker) { w.RTT *= 3 }, false}, // more micro-batches hide it
		{"ten times slower", func(w *Worker) { w.Rows /= 10 }, true},
		{"a tenth of the uplink", func(w *Worker) { w.Up /= 10 }, true},
		{"a tenth of the uplink, and all fetch for long", func(w *Worker) { w.Up /= 10 }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, ws := measured()
			for i := range ws {
				ws[i].Memory = 5 * 12 * 32 * mib / 12 // four layers, and no copy
			}
			if c.worth || c.name == "nothing" {
				for i := range ws {
					ws[i].Memory *= 3
				}
			}
			b := Backbone{Copies: 1}
			now := inForce(ws, Make(m, b, ws))
			c.change(&now[1])
			if c.name == "a tenth of the uplink, and all fetch for long" {
				for i := range now {
					now[i].Memory *= 3
					now[i].Down = 1e5
				}
			}
			p, got := Again(m, b, now, Rules{})
			if got.Worth != c.worth {
				t.Fatalf("%+v, want worth %v", got, c.worth)
			}
			if !c.worth {
				return
			}
			if got.Gain < DefaultGain || got.Next < got.Now*DefaultGain {
				t.Errorf("%+v", got)
			}
			// Once moved, there is nothing more to be had: no plan flaps.
			if _, second := Again(m, b, inForce(now, p), Rules{}); second.Worth || second.Now < got.Next*0.999 {
				t.Errorf("after the move: %+v, which promised %+v", second, got)
			}
		})
	}
}

// TestAgainSettles measures anew and anew, with noise of a fifth: next to nothing is moved.
func TestAgainSettles(t *testing.T) {
	m, ws := measured()
	b := Backbone{}
	now := inForce(ws, Make(m, b, ws))
	moves := 0
	for i := range 60 {
		noisy := append([]Worker(nil), now...)
		for k := range noisy {
			f := 0.9 + 0.2*float64((i*7+k*5)%11)/10
			noisy[k].Rows, noisy[k].Up = noisy[k].Rows*f, noisy[k].Up*(2-f)
		}
		if p, c := Again(m, b, noisy, Rules{}); c.Worth {
			moves++
			now = inForce(now, p)
		}
	}
	if moves > 1 {
		t.Errorf("%d moves in 60 plans of the same swarm, measured with noise", moves)
	}
}

// TestAgainSaysWhoSlowsAll finds a worker with whom less comes out.
func TestAgainSaysWhoSlowsAll(t *testing.T) {
	m, ws := measured()
	for i := range ws {
		ws[i].Memory *= 2
	}
	b := Backbone{Flights: 1} // so that far workers cost
	now := inForce(ws, Make(m, b, ws))
	now[2].RTT, now[2].Rows = 900*time.Millisecond, 200
	p, c := Again(m, b, now, Rules{})
	if !c.Worth || p.Workers[2].Used || !p.Workers[2].Slows || p.Workers[0].Slows {
		t.Errorf("%+v; worker 2: %+v", c, p.Workers[2])
	}
}
