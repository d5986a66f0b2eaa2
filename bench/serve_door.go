package bench

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"kvasir/engine/access"
	"kvasir/engine/chat"
	counting "kvasir/engine/metrics"
	"kvasir/engine/serve"
)

// The door alone: everything between a token and its way onto a connection, before a model that costs nothing. A
// whole model takes a hundred times the processor time of its door, and its own varies by more than the door's.
const (
	doorSteps = 64
	doorPace  = 10 * time.Millisecond // between steps
	doorTimes = 3                     // the median counts
)

// door measures the processor time of a token of n streams at once, in microseconds.
func (r *serveRun) door(ctx context.Context, n int) (float64, error) {
	var list []float64
	for range doorTimes {
		one, err := r.doorOnce(ctx, n)
		if err != nil {
			return 0, err
		}
		list = append(list, one)
	}
	return middle(list), nil
}

func (r *serveRun) doorOnce(ctx context.Context, n int) (us float64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	g, err := access.New(access.Options{})
	if err != nil {
		_ = l.Close() // nobody was answered
		return 0, err
	}
	m := &stepper{all: n, metrics: counting.New(counting.Build{}).Requests("steps"), full: make(chan struct{})}
	h := serve.New(m, serve.Options{Model: "steps", Requests: n})
	h.Wrap(g.Around)
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx, l, time.Second) }() // ends with cancel
	defer func() {
		cancel()
		err = errors.Join(err, <-ended)
	}()
	var wg sync.WaitGroup
	wg.Go(func() { m.drive(ctx) })
	defer wg.Wait()
	defer cancel()
	c, err := startClient(ctx, r.s.Client, clientJob{
		Kind: jobStreams, Addr: l.Addr().String(), Model: "steps", Prompts: prompts(n), Tokens: doorSteps,
	})
	if err != nil {
		return 0, err
	}
	_, err = c.next()
	cpu := processCPU()
	if err == nil {
		_, err = c.next()
	}
	used := processCPU() - cpu
	// The streams begin with their first token.
	return perToken(used, int64(n*(doorSteps-1))), errors.Join(err, c.end())
}

// stepper is a serve.Generator whose streams all have a token at the same time, as those of a micro-batch do.
type stepper struct {
	all     int
	metrics *counting.Requests
	full    chan struct{} // closed when all are there

	mu    sync.Mutex
	wakes []chan struct{} // of each stream, with room for all of its tokens
}

// Reply is serve.Generator's.
func (m *stepper) Reply(serve.Request) (chat.ReplyOptions, error) { return chat.ReplyOptions{}, nil }

// drive steps at a pace once all streams are there.
func (m *stepper) drive(ctx context.Context) {
	select {
	case <-m.full:
	case <-ctx.Done():
		return
	}
	tick := time.NewTicker(doorPace)
	defer tick.Stop()
	for range doorSteps {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, w := range m.wakes {
			w <- struct{}{}
		}
	}
}

// Generate is serve.Generator's.
func (m *stepper) Generate(ctx context.Context, r serve.Request, emit func(serve.Piece) error) (serve.Result, error) {
	wake := make(chan struct{}, doorSteps)
	m.mu.Lock()
	m.wakes = append(m.wakes, wake)
	if len(m.wakes) == m.all {
		close(m.full)
	}
	m.mu.Unlock()
	note, call, out := m.metrics.Begin(1, false, time.Now()), access.From(ctx), serve.Outcome{Length: true}
	for out.Tokens < r.Tokens {
		select {
		case <-wake:
		case <-ctx.Done():
			return serve.Result{}, ctx.Err()
		}
		out.Tokens++
		note.Token(0, time.Now())
		call.Token()
		more := out.Tokens == r.Tokens || len(wake) > 0
		if err := emit(serve.Piece{Text: " word", More: more}); err != nil {
			return serve.Result{}, err
		}
	}
	note.EndChoice(0, counting.Length)
	note.End(counting.Length, time.Now())
	return serve.Result{Prompt: 1, Choices: []serve.Outcome{out}}, emit(serve.Piece{End: &out, More: true})
}
