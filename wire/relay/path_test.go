package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"kvasir/wire/seal"
)

func TestBytesAreEqualOnEveryPath(t *testing.T) {
	for _, c := range []struct{ hubTLS, gateTLS, workerDirect, backboneGate bool }{
		{},
		{gateTLS: true},
		{hubTLS: true, gateTLS: true},
		{gateTLS: true, backboneGate: true}, // gateway and hub together on a rented machine
		{hubTLS: true, workerDirect: true},
		{hubTLS: true, gateTLS: true, backboneGate: true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			r := newRig(t, rigConfig{hubTLS: c.hubTLS, gateTLS: c.gateTLS})
			wAt, bAt := r.gateAt, r.hubAt
			if c.workerDirect {
				wAt = r.hubAt
			}
			if c.backboneGate {
				bAt = r.gateAt
			}
			b := r.backbone(bAt, nil)
			p, a := r.pair(b, wAt)
			exchange(t, p.Conn, a.Conn, 7, 200)
		})
	}
}

// gluing sends extra in the same write as the first one that has a mark in it.
type gluing struct {
	net.Conn
	mark  string
	extra []byte
}

func (g *gluing) Write(p []byte) (int, error) {
	if g.extra == nil || !bytes.Contains(p, []byte(g.mark)) {
		return g.Conn.Write(p)
	}
	all := append(bytes.Clone(p), g.extra...)
	g.extra = nil
	if n, err := g.Conn.Write(all); err != nil {
		return min(n, len(p)), err
	}
	return len(p), nil
}

func glue(mark string, extra []byte) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &gluing{nc, mark, extra}, nil
	}
}

// The inner session is end to end, over what DialWorker and Accept return.
func TestInnerSessionRunsOverAPairing(t *testing.T) {
	r := newRig(t, rigConfig{hubTLS: true, gateTLS: true})
	b := r.backbone(r.gateAt, nil)
	w := r.worker(r.gateAt)
	p, a := r.join(b, w)
	ctx := within(t)
	type result struct {
		nc  net.Conn
		err error
	}
	got := make(chan result, 1)
	go func() {
		nc, err := seal.Client(ctx, p.Conn, seal.ClientConfig{Self: w.Key, Root: root.Public(), Paired: p.Grant, Now: time.Now})
		got <- result{nc, err}
	}()
	inner, err := seal.Server(ctx, a.Conn, seal.ServerConfig{Self: b.c.Key, Root: root.Public(), Paired: a.Worker})
	worker := <-got
	if err := errors.Join(err, worker.err); err != nil {
		t.Fatal(err)
	}
	exchange(t, worker.nc, inner, 3, 50)
}

// frame returns a binary frame of RFC 6455, up to 65,535 bytes long.
func frame(p []byte, masked bool) []byte {
	f := []byte{0x82, byte(len(p))}
	if len(p) > 125 {
		f = binary.BigEndian.AppendUint16([]byte{0x82, 126}, uint16(len(p)))
	}
	if !masked {
		return append(f, p...)
	}
	key := [4]byte{1, 2, 3, 4}
	f[1] |= 0x80
	f = append(f, key[:]...)
	for i, b := range p {
		f = append(f, b^key[i%4])
	}
	return f
}

// Frames that are glued to the upgrade request get lost in many relays.
func TestEarlyFramesAreDelivered(t *testing.T) {
	r := newRig(t, rigConfig{})
	early := []byte("from the backbone, before it knows that the hub has said yes")
	b := r.backbone(r.gateAt, func(c *BackboneConfig) {
		c.Dialer.NetDial = glue(sessionProtocol, frame(early, false))
	})
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		want := make([]byte, 1+random.IntN(12<<10))
		for j := range want {
			want[j] = byte(i + j)
		}
		cut := random.IntN(len(want))
		frames := append(frame(want[:cut], true), frame(want[cut:], true)...)
		w := r.worker(r.gateAt)
		w.Dialer.NetDial = glue("Kvasir-Signature", frames)
		p, a := r.join(b, w)
		got := make([]byte, len(want))
		if n, err := io.ReadFull(a.Conn, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("dial %d: %d of %d bytes, %v", i, n, len(want), err)
		}
		got = make([]byte, len(early))
		if n, err := io.ReadFull(p.Conn, got); err != nil || !bytes.Equal(got, early) {
			t.Fatalf("dial %d: %d of %d bytes of the backbone, %v", i, n, len(early), err)
		}
	}
}

func TestEarlyFramesAreBounded(t *testing.T) {
	r := newRig(t, rigConfig{limits: quick})
	w := r.worker(r.gateAt)
	w.Dialer.NetDial = glue("Kvasir-Signature", frame(make([]byte, keepEarly+1), true))
	if _, err := DialWorker(within(t), w); err == nil {
		t.Error("the worker was paired")
	}
	until(t, "the hub has let go", func() bool { return r.hub.Status() == HubStatus{} })
}

func TestMeterCountsEveryByte(t *testing.T) {
	r := newRig(t, rigConfig{limits: Limits{Tick: quick.Tick}})
	var k keeper
	b := r.backbone(r.hubAt, func(c *BackboneConfig) { c.Dialer.NetDial = k.dial })
	for seed := range uint64(3) {
		w, early := r.worker(r.gateAt), make([]byte, 1000)
		w.Dialer.NetDial = glue("Kvasir-Signature", frame(early, true))
		p, a := r.join(b, w)
		if _, err := io.ReadFull(a.Conn, early); err != nil {
			t.Fatal(err)
		}
		exchange(t, p.Conn, a.Conn, seed, 100)
		done := make(chan error)
		go func() { done <- p.Conn.Close() }()
		if err := errors.Join(a.Conn.Close(), <-done); err != nil {
			t.Fatal(err)
		}
		select {
		case <-r.meter.done:
		case <-within(t).Done():
			t.Fatal("the session does not end")
		}
		up, down := k.of(a.Conn).after()
		r.meter.mu.Lock()
		got := r.meter.ended[a.Session]
		bad := r.meter.bad
		r.meter.mu.Unlock()
		if got != [2]uint64{up, down} || up < 100_000 || bad != nil {
			t.Errorf("seed %d: meter says %v, the wire %d and %d; %v", seed, got, up, down, bad)
		}
	}
	c := r.hub.Counts()
	if c["paired"] != 3 || c["workers"] != 3 || c["backbones"] != 1 || c["bytes_to_backbones"] == 0 {
		t.Errorf("counts: %v", c)
	}
}

// tapped keeps all that goes over a connection.
type tapped struct {
	net.Conn
	mu      sync.Mutex
	in, out []byte
}

func (c *tapped) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in = append(c.in, p[:n]...)
	return n, err
}

func (c *tapped) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = append(c.out, p[:n]...)
	return n, err
}

// A keeper keeps the connections that are dialled with it.
type keeper struct {
	mu    sync.Mutex
	conns map[string]*tapped // by their local address
	at    string             // the far address that connections say; empty: their own
}

func (k *keeper) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	nc, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conns == nil {
		k.conns = map[string]*tapped{}
	}
	c := &tapped{Conn: nc}
	if k.at != "" {
		c.Conn = elsewhere{nc, k.at}
	}
	k.conns[nc.LocalAddr().String()] = c
	return c, nil
}

// of returns the connection under one that was made over it.
func (k *keeper) of(nc net.Conn) *tapped {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.conns[nc.LocalAddr().String()]
}

// all returns every connection.
func (k *keeper) all() []*tapped {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Values(k.conns))
}

// saw reports whether p went over a connection as it is.
func (c *tapped) saw(p []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Contains(c.in, p) || bytes.Contains(c.out, p)
}

// after returns how many bytes came and went after the heads of an upgrade.
func (c *tapped) after() (in, out uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	end := []byte("\r\n\r\n")
	return uint64(len(c.in) - bytes.Index(c.in, end) - 4), uint64(len(c.out) - bytes.Index(c.out, end) - 4)
}

// Whoever dies in mid-stream, the others notice, and nothing is left.
func TestDeathOfAnyPartyEndsTheOthers(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 9))
			r := newRig(t, rigConfig{limits: quick, gateTLS: seed%3 == 0, hubTLS: seed%5 == 0})
			var k keeper
			b := r.backbone(r.hubAt, func(c *BackboneConfig) { c.Dialer.NetDial = k.dial })
			w := r.worker(r.gateAt)
			w.Dialer.NetDial = k.dial
			p, a := r.join(b, w)
			worker, backbone := k.of(p.Conn).Conn, k.of(a.Conn).Conn
			var wg sync.WaitGroup
			reached := make(chan struct{})
			at := random.IntN(64 << 10)
			for _, dir := range [][2]net.Conn{{p.Conn, a.Conn}, {a.Conn, p.Conn}} {
				wg.Go(func() {
					chunk := make([]byte, 1000)
					for {
						if _, err := dir[0].Write(chunk); err != nil {
							return
						}
					}
				})
				wg.Go(func() {
					buf, sum := make([]byte, 4096), 0
					for {
						n, err := dir[1].Read(buf)
						if err != nil {
							return
						}
						if sum += n; sum-n < at && sum >= at && dir[0] == p.Conn {
							close(reached)
						}
					}
				})
			}
			if at > 0 {
				<-reached
			}
			switch random.IntN(5) {
			case 0:
				_ = worker.Close()
			case 1:
				_ = worker.(*net.TCPConn).SetLinger(0) // a RST
				_ = worker.Close()
			case 2:
				_ = backbone.Close()
			case 3:
				r.gateway.Close()
			case 4:
				r.hub.Close()
			}
			wg.Wait() // all four loops have met an error
			until(t, "no session is left", func() bool { return r.hub.Status().Sessions == 0 })
		})
	}
}
