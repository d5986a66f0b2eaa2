package engine

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"kvasir/batcher"
	"kvasir/internal/moe"
	"kvasir/wire/link"
)

// timed is a session that says where the time of a dispatch went, as far as this side can know: half of the
// smallest round trip each way, and what the bytes take at the rates that were measured. The rest is the
// worker's.
type timed struct {
	*link.Session
	down  atomic.Uint64 // bits of a float64: bytes a second to the worker; 0: not known
	speed speed
}

// ForwardTimed implements batcher.Timed.
func (t *timed) ForwardTimed(ctx context.Context, b *moe.Batch, out *moe.Partials, times *batcher.Times) error {
	began, picks := time.Now(), len(b.Expert)
	load, work := t.speed.begin(picks), time.Duration(0)
	defer func() { t.speed.end(time.Now(), picks, load, work) }()
	err := t.Forward(ctx, b, out)
	if err == nil {
		stats := t.Stats()
		parts := split(time.Since(began), stats.MinRTT, []wayBytes{
			{rowValue * float64(b.Rows*b.Hidden), math.Float64frombits(t.down.Load())},
			{partialValue * float64(b.Rows*b.Hidden), stats.InRate},
		})
		work = parts.Work
		if times != nil {
			*times = parts
		}
	}
	return err
}

// wayBytes is what goes one way, and how many bytes a second do; 0: not known.
type wayBytes struct{ bytes, rate float64 }

// split divides the time of a dispatch, given what goes out and back.
func split(took, rtt time.Duration, ways []wayBytes) batcher.Times {
	var way [2]time.Duration
	for i, w := range ways {
		way[i] = rtt / 2
		if w.rate > 0 {
			way[i] += time.Duration(min(w.bytes/w.rate, 1e6) * float64(time.Second))
		}
	}
	out, back := way[0], way[1]
	if sum := out + back; sum > took { // quicker than was reckoned
		out = time.Duration(float64(out) / float64(sum) * float64(took))
		back = took - out
	}
	return batcher.Times{Out: out, Work: took - out - back, Back: back}
}
