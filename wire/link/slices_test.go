package link

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
	"kvasir/wire"
)

// shelf is slices of a backbone.
type shelf map[wire.Hash][]byte

func (s shelf) read(_ context.Context, slice wire.Hash, offset uint64, dst []byte) (int, uint64, error) {
	p, ok := s[slice]
	if !ok {
		return 0, 0, moe.ErrNotHeld
	}
	if offset > uint64(len(p)) {
		return 0, 0, moe.ErrInvalid
	}
	return copy(dst, p[offset:]), uint64(len(p)), nil
}

// fetchAll reads a slice from an offset on.
func fetchAll(ctx context.Context, read SliceReader, slice wire.Hash, offset uint64) ([]byte, error) {
	var all []byte
	for buf := make([]byte, 256<<10); ; {
		n, size, err := read(ctx, slice, offset+uint64(len(all)), buf)
		if err != nil {
			return nil, err
		}
		if all = append(all, buf[:n]...); offset+uint64(len(all)) == size {
			return all, nil
		}
	}
}

func TestASliceIsFetchedAndServedFromThenOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := path(10_000_000, 2*time.Millisecond)
		books := shelf{{5}: make([]byte, 3<<20+17)}
		seeded(5).Perm(1) // any source
		for i := range books[wire.Hash{5}] {
			books[wire.Hash{5}][i] = byte(i * 7 >> 3)
		}
		var epochs []uint32
		w := Worker{Assign: func(ctx context.Context, a wire.Assign, fetch SliceReader) (moe.Experts, error) {
			epochs = append(epochs, a.Epoch)
			got, err := fetchAll(ctx, fetch, a.Slices[0].Hash, 1000)
			if err != nil {
				return nil, err
			}
			if !bytes.Equal(got, books[a.Slices[0].Hash][1000:]) {
				t.Error("the slice that came differs")
			}
			return hashes{}, nil
		}}
		bo, wo := Options{Hello: hello(), Slices: books.read}, Options{}
		bo.Hello.Features, wo.Hello.Features = wire.FeatureFetch, wire.FeatureFetch
		r := join(t, a, b, w, bo, wo)
		if err := check(r.Session, small(t, 1, 2)); !errors.Is(err, moe.ErrNotHeld) {
			t.Errorf("before anything is assigned: %v, want ErrNotHeld", err)
		}
		slices := []wire.Slice{{Layer: 1, Lo: 0, Hi: 256, Hash: wire.Hash{5}}}
		if err := r.Assign(context.Background(), slices); err != nil {
			t.Fatal(err)
		}
		if err := check(r.Session, small(t, 1, 2)); err != nil {
			t.Error(err)
		}
		slices[0].Hash = wire.Hash{6} // nobody has it: the former slice goes on
		if err := r.Assign(context.Background(), slices); !errors.Is(err, moe.ErrNotHeld) {
			t.Errorf("%v, want ErrNotHeld", err)
		}
		if err := check(r.Session, small(t, 1, 2)); err != nil {
			t.Error(err)
		}
		if len(epochs) != 2 || epochs[0] != 1 || epochs[1] != 2 {
			t.Errorf("epochs %v", epochs)
		}
		_ = r.end()
	})
}

func TestRowsGoBeforeSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := path(1_000_000, time.Millisecond) // a megabyte takes a second
		books := shelf{{5}: make([]byte, 20<<20)}
		var fetched atomic.Int64
		w := Worker{Experts: hashes{}, Assign: func(ctx context.Context, _ wire.Assign, fetch SliceReader) (moe.Experts, error) {
			var wg sync.WaitGroup
			for i := range uint64(4) {
				wg.Go(func() {
					for buf := make([]byte, wire.MaxSliceData); ; {
						n, _, err := fetch(ctx, wire.Hash{5}, i<<20, buf)
						if err != nil {
							return
						}
						fetched.Add(int64(n))
					}
				})
			}
			wg.Wait()
			return nil, ctx.Err()
		}}
		r := join(t, a, b, w, Options{Slices: books.read}, Options{})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- r.Assign(ctx, []wire.Slice{{Hi: 1, Hash: wire.Hash{5}}}) }()
		time.Sleep(10 * time.Second)
		for range 3 {
			begin := time.Now()
			if err := check(r.Session, small(t, 1, 100)); err != nil {
				t.Error(err)
			}
			// What was in the path's buffer goes first, 64 KiB and a chunk, and there is the answer.
			if took := time.Since(begin); took > 150*time.Millisecond {
				t.Errorf("7 kB of rows took %v beside slices", took)
			}
		}
		if n := fetched.Load(); n < 7<<20 {
			t.Errorf("%d bytes were fetched in 10s at 1 MB/s", n)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want Canceled", err)
		}
		time.Sleep(10 * time.Second)
		if st := r.Stats(); st.Calls != 0 || st.Jobs != 0 {
			t.Errorf("left over: %+v", st)
		}
		if err := r.Assign(context.Background(), nil); !errors.Is(err, ErrTooBig) {
			t.Errorf("no slices: %v, want ErrTooBig", err)
		}
		_ = r.end()
	})
}

func TestAWorkerThatHoldsWhatItHoldsSaysSo(t *testing.T) {
	r := piped(t)
	if err := r.Assign(context.Background(), []wire.Slice{{Hi: 1}}); !errors.Is(err, moe.ErrNotHeld) {
		t.Errorf("%v, want ErrNotHeld", err)
	}
	if err := check(r.Session, small(t, 1, 2)); err != nil {
		t.Error(err)
	}
	_ = r.end()
}

func TestABackboneWithoutSlicesSaysSo(t *testing.T) {
	a, b := net.Pipe()
	w := Worker{Assign: func(ctx context.Context, _ wire.Assign, fetch SliceReader) (moe.Experts, error) {
		_, _, err := fetch(ctx, wire.Hash{1}, 0, make([]byte, 10))
		return nil, err
	}}
	r := join(t, a, b, w, Options{}, Options{})
	err := r.Assign(context.Background(), []wire.Slice{{Hi: 1}})
	if !errors.Is(err, moe.ErrNotHeld) {
		t.Errorf("%v, want ErrNotHeld", err)
	}
	_ = r.end()
}

func TestReceiptsTravelBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		got := make(chan wire.Receipt, 4)
		keep := func(r wire.Receipt) {
			r.Signed = append([]byte(nil), r.Signed...)
			got <- r
		}
		started := make(chan *Peer, 1)
		w := Worker{Experts: hashes{}, Started: func(p *Peer) { started <- p }}
		r := join(t, a, b, w, Options{Receipt: keep}, Options{Receipt: keep})
		peer := <-started
		if string(peer.Hello().Agent) != "test" || r.Peer().Role != wire.RoleWorker {
			t.Errorf("hellos: %+v, %+v", peer.Hello(), r.Peer())
		}
		for i, send := range []func(wire.Receipt) error{r.SendReceipt, peer.SendReceipt} {
			if err := send(wire.Receipt{Sequence: uint64(i), Signed: []byte{1, 2, byte(i)}}); err != nil {
				t.Error(err)
			}
			if rc := <-got; rc.Sequence != uint64(i) || !bytes.Equal(rc.Signed, []byte{1, 2, byte(i)}) {
				t.Errorf("got %+v", rc)
			}
		}
		if err := r.SendReceipt(wire.Receipt{Signed: make([]byte, wire.MaxSigned+1)}); !errors.Is(err, ErrTooBig) {
			t.Errorf("%v, want ErrTooBig", err)
		}
		_ = r.end()
	})
}

func TestReceiptsThatCannotLeaveAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		tap := newTap(a)
		r := join(t, tap, b, Worker{Experts: hashes{}}, Options{}, Options{})
		synctest.Wait()
		tap.hold()
		var err error
		n := 0
		for ; err == nil && n < 100; n++ {
			err = r.SendReceipt(wire.Receipt{Sequence: uint64(n), Signed: make([]byte, wire.MaxSigned)})
			synctest.Wait()
		}
		if !errors.Is(err, ErrBusy) || n > maxReceipts+3 {
			t.Errorf("%v after %d, want ErrBusy", err, n)
		}
		tap.release()
		if err := check(r.Session, small(t, 1, 2)); err != nil {
			t.Error(err)
		}
		_ = r.end()
	})
}

func TestAPeerMayGoAwayByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		started := make(chan *Peer, 1)
		r := join(t, a, b, Worker{Experts: hashes{}, Started: func(p *Peer) { started <- p }}, Options{}, Options{})
		(<-started).GoAway(wire.GoAway{Reason: wire.Unsigned, Text: []byte("60 s without a receipt")})
		if err := <-r.served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		<-r.Done()
		var away *Away
		if err := r.Err(); !errors.As(err, &away) || away.Reason != wire.Unsigned {
			t.Errorf("the session: %v", err)
		}
		_ = r.Close()
		r.stop()
	})
}
