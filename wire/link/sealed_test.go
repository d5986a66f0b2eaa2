package link

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"time"

	"kvasir/internal/moe"
	"kvasir/wire"
	"kvasir/wire/seal"
	"kvasir/wire/ws"
)

// sealed returns the two ends of an inner TLS session over WebSocket over TCP, and a tap on each side's
// TCP connection.
func sealed(t testing.TB) (backbone, worker net.Conn, taps [2]*tap) {
	t.Helper()
	a, b := loopback(t)
	taps = [2]*tap{newTap(a), newTap(b)}
	backbone, worker = sealedOver(t, taps[0], taps[1])
	return backbone, worker, taps
}

// sealedOver makes an inner TLS session over WebSocket of the two ends of a connection.
func sealedOver(t testing.TB, a, b net.Conn) (backbone, worker net.Conn) {
	t.Helper()
	root, bb, wk := seal.NewKey(), seal.NewKey(), seal.NewKey()
	now := time.Now()
	grant, err := seal.SignGrant(root, seal.Grant{Role: seal.Backbone, Key: bb.Public(), Issued: now, Name: "b"})
	if err != nil {
		t.Fatal(err)
	}
	token, err := seal.SignToken(root, seal.Token{Role: seal.Worker, Hub: "hub", Issued: now, Expires: now.Add(time.Hour), Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	proof, err := seal.ProveToken(wk, token, seal.Challenge{Hub: "hub", Nonce: "bm9uY2U"}, "/join")
	if err != nil {
		t.Fatal(err)
	}
	type end struct {
		conn *tls.Conn
		err  error
	}
	ends := make(chan end, 1)
	go func() {
		nc := ws.NetConn(ws.New(b, ws.Client, nil, ws.Options{}))
		c, err := seal.Client(context.Background(), nc, seal.ClientConfig{Self: wk, Root: root.Public(), Paired: grant, Now: time.Now})
		ends <- end{c, err}
	}()
	nc := ws.NetConn(ws.New(a, ws.Server, nil, ws.Options{}))
	s, err := seal.Server(context.Background(), nc, seal.ServerConfig{Self: bb, Root: root.Public(), Paired: proof})
	e := <-ends
	if err := errors.Join(err, e.err); err != nil {
		t.Fatal(err)
	}
	return s, e.conn
}

func TestASealedSessionAnswersAndEnds(t *testing.T) {
	backbone, worker, taps := sealed(t)
	inner := [2]*tap{newTap(backbone), newTap(worker)}
	var before [2]int
	for i := range taps {
		before[i] = len(taps[i].writes())
	}
	r := join(t, inner[0], inner[1], Worker{Experts: hashes{}}, Options{}, Options{})
	for i, rows := range []int{1, 3, 64, 512} {
		batch := newBatch(t, seeded(uint64(i)), moe.Shape{Hidden: 512, Format: moe.RowQ8K}, rows)
		if err := check(r.Session, batch); err != nil {
			t.Error(err)
		}
	}
	if err := r.Drain(context.Background(), wire.GoAway{Reason: wire.Stopping}); err != nil {
		t.Errorf("Drain: %v", err)
	}
	var away *Away
	if err := <-r.served; !errors.As(err, &away) {
		t.Errorf("Serve: %v, want Away", err)
	}
	r.stop()

	// A write of the session is one TLS record, one frame, one write on TCP: 22 bytes of record and at
	// most 8 of frame on top. What closes TLS and WebSocket comes after them.
	for side := range taps {
		above, beneath := inner[side].writes(), taps[side].writes()[before[side]:]
		if len(beneath) < len(above) || len(beneath) > len(above)+3 {
			t.Errorf("side %d: %d writes of the session are %d on TCP", side, len(above), len(beneath))
			continue
		}
		for i, p := range above {
			if extra := len(beneath[i]) - len(p); extra < 22+2 || extra > 22+8 {
				t.Errorf("side %d: %d bytes became %d on TCP", side, len(p), len(beneath[i]))
			}
		}
	}
}
