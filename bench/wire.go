package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"
)

// WireName is the name of the scenario Wire.
const WireName = "wire"

// chunkBytes is how much travels in one write, as between worker and backbone.
const chunkBytes = 16_000

// smallBytes is a frame in which the payload hardly counts, as those of control messages.
const smallBytes = 200

// wholeBytes is a message as a program without chunks sends it, as many as a batch of rows has.
const wholeBytes = 1 << 20

// Wire measures the path between worker and backbone, without computing: WebSocket frames, the sealed stream,
// and a gateway's copying, each in turns with the barest thing that moves the same bytes.
type Wire struct {
	Bytes  int64         // that each way moves a round
	Rounds int           // 0: as many as Budget allows, but five at least
	Budget time.Duration // for the whole run
}

// DefaultWire moves enough for a second of measuring a round.
func DefaultWire() Wire { return Wire{Bytes: 256 << 20, Budget: time.Minute} }

// QuickWire shows that everything works, and not how quick it is.
func QuickWire() Wire { return Wire{Bytes: 4 << 20, Budget: 3 * time.Second} }

// Name says what is measured, in words.
func (w Wire) Name() string {
	return fmt.Sprintf("bytes over loopback TCP in writes of %d, %s a way and round", chunkBytes, megabytes(w.Bytes))
}

func megabytes(n int64) string { return digits(float64(n)/1e6) + " MB" }

// wireRoundsLeast is how many rounds are measured whatever the budget says.
const wireRoundsLeast = 5

// Check returns an error, wrapping ErrSettings, that names the flag to change.
func (w Wire) Check() error {
	switch {
	case w.Rounds < 0 || w.Rounds > 1000:
		return fmt.Errorf("%w: --repeat %d, want 0 to 1000", ErrSettings, w.Rounds)
	case w.Budget < budgetLeast || w.Budget > budgetMost:
		return fmt.Errorf("%w: --budget %v, want %v to %v", ErrSettings, w.Budget, budgetLeast, budgetMost)
	}
	return nil
}

// wirePoint is a way of ours beside the barest ones.
type wirePoint struct {
	name  string
	chunk int       // bytes of a write; 0: chunkBytes
	ways  []wireWay // ours first
	bars  []wireBar
}

// wireBar is what a figure of a point has to come to. Of a share or a factor it is the least, of a cost the
// most.
type wireBar struct {
	of      string
	against int // way that ours is compared with, in wirePoint.ways; 0: none
	want    float64
	atMost  bool
}

// wirePoints lists what is measured.
func wirePoints() []wirePoint {
	bare := wireWay{name: "bare TCP", open: openTCP}
	frames := []wireWay{{name: "package ws", open: openFrames}, bare, {name: "gobwas wsutil", open: openUtil}}
	return []wirePoint{
		{"frames", 0, frames, []wireBar{
			{of: ofBaseline, against: 1, want: 0.75}, {of: ofBaseline, against: 2, want: 4},
			{of: ofAllocs, want: 0, atMost: true},
		}},
		{"small frames", smallBytes, frames, nil},
		// The helpers take a message whole, and package ws in chunks: each as its users use it.
		{"1 MiB messages", wholeBytes, frames, []wireBar{{of: ofBaseline, against: 2, want: 4}}},
		{"sealed", 0, []wireWay{{name: "TLS in frames", open: openSealed}, bare}, []wireBar{{of: ofCPU, want: 0.65, atMost: true}}},
		{"gateway, plain", 0, []wireWay{{name: "gateway", open: openGateway}, {name: "io.Copy", open: openCopy}}, []wireBar{
			{of: ofBaseline, against: 1, want: 0.9},
		}},
		{"gateway, TLS", 0, []wireWay{{name: "gateway", open: openGatewayTLS}, {name: "crypto/tls, io.Copy", open: openCopyTLS}}, []wireBar{
			{of: ofBaseline, against: 1, want: 0.75},
		}},
	}
}

// Run measures. When ctx ends it returns what is finished together with ctx's error.
func (w Wire) Run(ctx context.Context, o Observer[WireReport, WireResult]) (*WireReport, error) {
	if err := w.Check(); err != nil {
		return nil, err
	}
	r := &WireReport{Machine: ReadMachine(), Settings: WireSettings{
		Scenario: WireName, Bytes: w.Bytes, Chunk: chunkBytes, Rounds: w.Rounds,
	}, Results: []WireResult{}}
	if w.Rounds == 0 {
		r.Settings.Budget = w.Budget.Seconds()
	}
	o.begin(r)
	points := wirePoints()
	start := time.Now()
	for i := range points {
		until := start.Add(w.Budget * time.Duration(i+1) / time.Duration(len(points)))
		done := float64(i) / float64(len(points))
		x, err := w.point(ctx, &points[i], until, func(round int) {
			o.progress(done, fmt.Sprintf("%s, round %d", points[i].name, round))
		})
		if err != nil {
			return r, fmt.Errorf("%s: %w", points[i].name, err)
		}
		r.Results = append(r.Results, x...)
		r.Bars = append(r.Bars, judgeWire(&points[i], x, w.Bytes == DefaultWire().Bytes)...)
		for _, row := range x {
			o.row(row)
		}
	}
	return r, nil
}

// flowed is what one way did in one round.
type flowed struct {
	took   time.Duration
	cpu    time.Duration // of the process; 0: not known on this system
	allocs uint64
}

// point measures the ways of a point.
func (w Wire) point(ctx context.Context, p *wirePoint, until time.Time, say func(round int)) ([]WireResult, error) {
	rounds, err := w.rounds(ctx, p, until, say)
	if err != nil {
		return nil, err
	}
	return wireResults(p, p.bytes(w.Bytes), rounds), nil
}

// rounds has the ways of a point take turns, and returns the rounds of each.
func (w Wire) rounds(ctx context.Context, p *wirePoint, until time.Time, say func(round int)) ([][]flowed, error) {
	pipes := make([]*pipe, len(p.ways))
	defer func() {
		for _, x := range pipes {
			if x != nil {
				x.close()
			}
		}
	}()
	for i := range p.ways {
		var err error
		if pipes[i], err = p.ways[i].open(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", p.ways[i].name, err)
		}
		pipes[i].chunk = cmp.Or(p.chunk, chunkBytes)
		if _, err := pipes[i].move(ctx, min(w.Bytes, 1<<20)); err != nil { // buffers grow
			return nil, fmt.Errorf("%s: %w", p.ways[i].name, err)
		}
	}
	rounds := make([][]flowed, len(p.ways))
	for n := 0; w.again(n, until); n++ {
		say(n + 1)
		for k := range p.ways {
			i := (k + n) % len(p.ways) // each is first in its turn
			f, err := pipes[i].move(ctx, p.bytes(w.Bytes))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.ways[i].name, err)
			}
			rounds[i] = append(rounds[i], f)
		}
	}
	return rounds, nil
}

// bytes is how many a way moves a round: fewer in small writes, which take longer.
func (p *wirePoint) bytes(n int64) int64 {
	if p.chunk != smallBytes {
		return n
	}
	return max(1, n/16)
}

func (w Wire) again(n int, until time.Time) bool {
	if w.Rounds > 0 {
		return n < w.Rounds
	}
	return n < wireRoundsLeast || time.Now().Before(until)
}

// wireWay is how bytes get from one end to another within this process.
type wireWay struct {
	name string
	open func(ctx context.Context) (*pipe, error)
}

// pipe is a way that stands.
type pipe struct {
	write func(p []byte) error // one chunk; it may change p
	read  io.Reader
	into  []byte // for read
	chunk int    // bytes of a write
	close func()
}

// move sends n bytes and returns when all have been read.
func (x *pipe) move(ctx context.Context, n int64) (flowed, error) {
	stop := context.AfterFunc(ctx, x.close) // ends both sides
	defer stop()
	chunk := make([]byte, x.chunk)
	sent := make(chan error, 1)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, start := processCPU(), time.Now()
	go func() { // ends when all is written, or the pipe is closed
		for left := n; left > 0; left -= int64(x.chunk) {
			if err := x.write(chunk[:min(left, int64(x.chunk))]); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	var err error
	for left := n; left > 0 && err == nil; {
		var k int
		k, err = x.read.Read(x.into)
		left -= int64(k)
		if left == 0 {
			err = nil
		}
	}
	f := flowed{took: time.Since(start), cpu: processCPU() - cpu}
	runtime.ReadMemStats(&after)
	f.allocs = after.Mallocs - before.Mallocs
	if err != nil {
		x.close()
	}
	return f, errors.Join(ctx.Err(), err, <-sent)
}
