package relay

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"kvasir/bench/wan"
	"kvasir/internal/moe"
	"kvasir/wire/link"
	"kvasir/wire/seal"
)

// hand is a worker.
type hand struct {
	s    *swarm
	key  seal.Key
	path *wan.Link // to the gateway; nil: none
	x    moe.Experts
	o    link.Options
	dial func(context.Context, string, string) (net.Conn, error) // nil: over path
	met  func(*link.Peer)                                        // may be nil

	noticed time.Time // when its end of the last session was over
}

// newHand returns a worker that sums.
func (s *swarm) newHand(p *wan.Link) *hand {
	return &hand{s: s, key: seal.NewKey(), path: p, x: sums{}}
}

// work joins and serves one session to its end.
func (h *hand) work(ctx context.Context) error {
	s := h.s
	dial := h.dial
	if dial == nil {
		dial = s.dial(h.path)
	}
	p, err := DialWorker(ctx, WorkerConfig{Join: seal.Join{Host: "test", Token: s.token, Root: root.Public()},
		Address: s.scheme() + s.gateAddr, Key: h.key, Dialer: Dialer{NetDial: dial}})
	if err != nil {
		return err
	}
	inner, err := seal.Client(ctx, p.Conn, seal.ClientConfig{Self: h.key, Root: root.Public(), Paired: p.Grant, Now: time.Now})
	if err != nil {
		_ = p.Conn.Close()
		return err
	}
	o := h.o
	o.Hello = s.hello()
	err = link.Serve(ctx, &dying{Conn: inner, at: &h.noticed}, link.Worker{Experts: h.x, Started: h.met}, o)
	return seal.Explain(err)
}

// dying notes when it is closed first: the session on it is over then.
type dying struct {
	net.Conn
	once sync.Once
	at   *time.Time
}

func (d *dying) Close() error {
	d.once.Do(func() { *d.at = time.Now() })
	return d.Conn.Close()
}

// sums is an executor without weights, whose answer depends on every value and pick of a row.
type sums struct{}

func (sums) Forward(_ context.Context, b *moe.Batch, out *moe.Partials) error {
	out.Reset(b.Rows, b.Hidden)
	for r := range b.Rows {
		row := b.Row(r)
		h := uint64(b.Layer) + 1
		expert, _ := b.Picks(r)
		for _, e := range expert {
			h = h*6364136223846793005 + uint64(e)
		}
		for k := range out.Row(r) {
			h = h*31 + uint64(row.Q[k])
			out.Row(r)[k] = int64(h) >> (40 + h%16)
		}
	}
	return nil
}

// slower is an executor that takes its time.
type slower struct {
	d time.Duration
	moe.Experts
}

func (x slower) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	sleep(ctx, x.d)
	return x.Experts.Forward(ctx, b, out)
}

func soakBatch(t testing.TB, hidden, rows, seed int) *moe.Batch {
	t.Helper()
	b, err := moe.NewBatch(moe.Shape{Layer: seed % 4, Hidden: hidden, Format: moe.RowQ8K}, rows, rows)
	if err != nil {
		t.Fatal(err)
	}
	v := uint32(seed)
	for range rows {
		row := b.Row(b.Grow([]uint16{uint16(v>>8) % 256}, []float32{1}))
		for i := range row.Q {
			v = v*1664525 + 1013904223
			row.Q[i] = int8(v>>24) | 1
		}
		for i := range row.Scales {
			row.Scales[i] = 1
		}
	}
	return b
}

// ask has a session compute a batch and compares the bits.
func ask(x moe.Experts, b *moe.Batch) error {
	var got, want moe.Partials
	if err := x.Forward(context.Background(), b, &got); err != nil {
		return err
	}
	_ = sums{}.Forward(context.Background(), b, &want) // never returns an error
	if got.Rows != want.Rows || !slices.Equal(got.Sum, want.Sum) || !slices.Equal(got.Status, want.Status) {
		return fmt.Errorf("the answer to %d rows has other bits", b.Rows)
	}
	return nil
}

// percentile returns the value below which so many of a hundred lie. It sorts d.
func percentile(d []time.Duration, p float64) time.Duration {
	slices.Sort(d)
	return d[min(len(d)-1, int(float64(p/100)*float64(len(d))))]
}
