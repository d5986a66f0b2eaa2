package engine

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"kvasir/batcher"
	"kvasir/engine/ledger"
	"kvasir/engine/worker"
	"kvasir/wire"
	"kvasir/wire/link"
	"kvasir/wire/relay"
	"kvasir/wire/seal"
)

// What a worker has done since a report that the hub has not confirmed is signed when the session ends, though
// the hub is away: both reports are kept, in order, and the hub gets them when it is back.
func TestTheLastWorkIsSignedThoughTheHubIsAway(t *testing.T) {
	ctx := t.Context()
	root, key, friend := seal.NewKey(), seal.NewKey(), seal.NewKey().Public()
	grant, err := seal.SignGrant(root, seal.Grant{Role: seal.Backbone, Key: key.Public(), Issued: time.Now()})
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(err)
	outbox, err := Home(t.TempDir()).openOutbox(ctx, seal.Backbone, nil)
	check(err)
	defer outbox.Close() //nolint:errcheck // the folder goes
	away := relay.BackboneConfig{
		Key: key, Grant: grant, Root: root.Public(), Hubs: []relay.Target{{Address: "ws://127.0.0.1:1", Hub: "away"}},
		Want: relay.Want{Model: "m", Workers: 1},
	}
	backbone, err := relay.NewBackbone(away)
	check(err)
	defer backbone.Close()
	dispatcher := batcher.NewDispatcher(batcher.Options{})
	defer dispatcher.Close()
	s := &Swarm{c: SwarmConfig{Key: key, Grant: grant, Outbox: outbox, Model: worker.Model{Hidden: 256}}, backbone: backbone}
	here, there := net.Pipe()
	served := make(chan error, 1)
	o := link.Options{Hello: wire.Hello{Layers: 4, Experts: 32, Hidden: 256, Model: wire.Hash{1}, Window: 64 << 20}}
	go func() { served <- link.Serve(ctx, there, link.Worker{}, o) }()
	session, err := link.Open(ctx, here, o)
	check(err)
	defer func() { t.Log("nothing is under way:", session.Close(), <-served) }()
	w := &attached{key: friend, session: &timed{Session: session}, member: dispatcher.Join("w", nil, &batcher.Set{})}
	a := s.newAccounts(w, "away", ledger.SessionID{7}.String())

	check(a.reporter.Count(3, 5))
	a.report(time.Second, false)
	check(a.reporter.Count(3, 6))
	a.report(time.Second, false) // the first waits for the hub
	a.report(time.Second, true)

	var got []int64
	check(outbox.Flush(ctx, "away", func(_ context.Context, i ledger.Item) (ledger.Given, error) {
		r, err := ledger.Verify(i.Report)
		total, terr := r.Total()
		got = append(got, r.Sequence, total.Picks)
		return ledger.Given{}, errors.Join(err, terr)
	}))
	if len(got) != 4 || got[0] != 1 || got[1] != 5 || got[2] != 2 || got[3] != 6 {
		t.Errorf("kept are sequences and picks %v, want 1 of 5 and 2 of 6", got)
	}
}
