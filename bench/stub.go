package bench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"kvasir/internal/moe"
)

// Speed is how fast a worker is that computes nothing: it takes Call for each batch and Row for each row, of
// all picks that a row has; of part of them it takes part of that. The zero Speed is that of a worker that
// computes.
type Speed struct {
	Call, Row time.Duration
}

// GPU is the speed at which a GPU was measured: 1.45 ms for one row and 9.6 ms for 512, of the layer of
// DefaultDispatch.
var GPU = Speed{Call: 1_434_050 * time.Nanosecond, Row: 15_950 * time.Nanosecond}

// speedMost bounds both parts of a Speed.
const speedMost = 10 * time.Second

// Words for workers.
const (
	workerCPU  = "cpu"
	stubPrefix = "stub:"
	stubGPU    = "gpu"
)

// String writes a speed as ParseSpeed reads it.
func (s Speed) String() string {
	switch s {
	case Speed{}:
		return workerCPU
	case GPU:
		return stubPrefix + stubGPU
	}
	return fmt.Sprintf("%s%v+%v", stubPrefix, s.Call, s.Row)
}

// ParseSpeed reads what workers are: cpu, stub:1.45ms+16us (each batch, and each row of it), or stub:gpu.
func ParseSpeed(text string) (Speed, error) {
	rest, stub := strings.CutPrefix(text, stubPrefix)
	switch {
	case text == workerCPU:
		return Speed{}, nil
	case stub && rest == stubGPU:
		return GPU, nil
	}
	call, row, ok := strings.Cut(rest, "+")
	a, err1 := time.ParseDuration(call)
	b, err2 := time.ParseDuration(row)
	s := Speed{a, b}
	if !stub || !ok || err1 != nil || err2 != nil || a < 0 || b < 0 || a > speedMost || b > speedMost || s == (Speed{}) {
		return Speed{}, fmt.Errorf("want cpu, stub:gpu, or a time a batch and a row such as stub:1.45ms+16us, got %q", text)
	}
	return s, nil
}

// of is how long a batch takes; topK is the picks of a whole row.
func (s Speed) of(picks, topK int) time.Duration {
	return s.Call + time.Duration(float64(s.Row)*float64(picks)/float64(topK))
}

// stub answers as experts would, after the time that its speed says, and computes nothing. Its answers follow
// from the rows: row r of a batch has a table's line that r's values choose, times its picks. So answers of
// parts add up to that of the whole, whoever gave them, and they are as wide as those of a real layer. Calls
// are computed one after the other, as by one device.
type stub struct {
	speed  Speed
	topK   int
	hidden int
	lines  []int64 // stubLines x hidden
	whole  []int64 // lines, of a row with all its picks here

	mu   sync.Mutex
	free time.Time // when all that was begun is done; under mu
}

const (
	stubLines  = 64
	stubSpread = 700 // of an answer's values: 13 bits a value, as those of the layer of DefaultDispatch
)

func newStub(s Speed, topK, hidden int, seed uint64) *stub {
	x := &stub{speed: s, topK: topK, hidden: hidden, lines: make([]int64, stubLines*hidden)}
	rng := rand.New(rand.NewPCG(seed, 2))
	for i := range x.lines {
		x.lines[i] = int64(math.RoundToEven(rng.NormFloat64() * stubSpread / float64(topK)))
	}
	x.whole = make([]int64, len(x.lines))
	for i, v := range x.lines {
		x.whole[i] = v * int64(topK)
	}
	return x
}

// another returns a device of its own that gives the same answers.
func (s *stub) another() *stub {
	return &stub{speed: s.speed, topK: s.topK, hidden: s.hidden, lines: s.lines, whole: s.whole}
}

// Forward implements moe.Experts.
func (s *stub) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	done := s.begin(time.Now(), len(b.Expert))
	if !out.Size(b.Rows, b.Hidden) {
		clear(out.Status)
	}
	for r := range b.Rows {
		at := (lineOf(b.Row(r)) + b.Layer) % stubLines * s.hidden
		picks := int64(b.First[r+1] - b.First[r])
		sum := out.Sum[r*b.Hidden : (r+1)*b.Hidden]
		if picks == int64(s.topK) {
			copy(sum, s.whole[at:at+s.hidden])
			continue
		}
		for i, v := range s.lines[at : at+s.hidden] {
			sum[i] = v * picks
		}
	}
	return until(ctx, done)
}

// begin returns when a batch that comes now is done.
func (s *stub) begin(now time.Time, picks int) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.After(s.free) {
		s.free = now
	}
	s.free = s.free.Add(s.speed.of(picks, s.topK))
	return s.free
}

// lineOf chooses a line of the table by some of a row's values.
func lineOf(r moe.Row) int {
	h := uint32(1)
	for i := 0; i < len(r.Q); i += 16 {
		h = h*31 + uint32(uint8(r.Q[i]))
	}
	for i := 0; i < len(r.F); i += 16 {
		h = h*31 + math.Float32bits(r.F[i])
	}
	return int(h % stubLines)
}

// until waits for a moment.
func until(ctx context.Context, t time.Time) error {
	d := time.Until(t)
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
