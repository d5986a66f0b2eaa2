package relay

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"kvasir/wire/seal"
)

// TestEveryFrameGluedToARequestIsDelivered lets workers send frames in the same write as their proof,
// and a backbone in the same write as its request for the session: 10,000 of 10,000 arrive, of both, in
// their order and with their bytes, through gateway and hub.
func TestEveryFrameGluedToARequestIsDelivered(t *testing.T) {
	const seed = 11
	n := longer(200, 10_000)
	r := newRig(t, rigConfig{limits: unhurried()})
	early := []byte("from the backbone, before it knows that the hub has said yes")
	b := r.backbone(r.gateAt, func(c *BackboneConfig) { c.Dialer.NetDial = glue(sessionProtocol, frame(early, false)) })
	var mu sync.Mutex
	taken := map[seal.PublicKey]chan *Accepted{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for range n {
			a, err := b.Accept(t.Context())
			if err != nil {
				return
			}
			mu.Lock()
			taken[a.Worker.Key] <- a
			mu.Unlock()
		}
	})
	delivered := 0
	places := make(chan struct{}, 8)
	for i := range n {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		w, want := r.worker(r.gateAt), make([]byte, 1+random.IntN(12<<10))
		for j := range want {
			want[j] = byte(i + j)
		}
		cut := random.IntN(len(want))
		w.Dialer.NetDial = glue("Kvasir-Signature", append(frame(want[:cut], true), frame(want[cut:], true)...))
		come := make(chan *Accepted, 1)
		mu.Lock()
		taken[w.Key.Public()] = come
		mu.Unlock()
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			if err := glued(t, w, come, want, early); err != nil {
				t.Errorf("seed %d, dial %d: %v", seed, i, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			delivered++
		})
		if t.Failed() {
			break
		}
	}
	for range cap(places) {
		places <- struct{}{}
	}
	b.Close() // ends the accepting, if something is missing
	wg.Wait()
	t.Logf("%d of %d frames glued to requests were delivered, each way", delivered, n)
	if delivered != n {
		t.Errorf("%d of %d were delivered", delivered, n)
	}
}

// glued dials, and compares what arrives at both ends with what was glued.
func glued(t *testing.T, w WorkerConfig, come <-chan *Accepted, want, early []byte) error {
	ctx := t.Context()
	p, err := DialWorker(ctx, w)
	if err != nil {
		return err
	}
	a := <-come
	limit := time.Now().Add(patience)
	_, _ = p.Conn.SetDeadline(limit), a.Conn.SetDeadline(limit)
	got := make([]byte, len(want))
	if n, err := io.ReadFull(a.Conn, got); err != nil || !bytes.Equal(got, want) {
		return fmt.Errorf("%d of %d bytes of the worker, %w", n, len(want), err)
	}
	got = make([]byte, len(early))
	if n, err := io.ReadFull(p.Conn, got); err != nil || !bytes.Equal(got, early) {
		return fmt.Errorf("%d of %d bytes of the backbone, %w", n, len(early), err)
	}
	done := make(chan error, 1)
	go func() { done <- p.Conn.Close() }()
	_ = a.Conn.Close()
	<-done
	return nil
}
