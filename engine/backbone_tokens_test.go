package engine

import (
	"errors"
	"testing"
	"time"

	"kvasir/wire/seal"
)

// TestABackboneCountsUsesItself is with hubs that do not, because they are several, or lie.
func TestABackboneCountsUsesItself(t *testing.T) {
	h := Home(t.TempDir())
	root := seal.NewKey()
	once, err := seal.SignToken(root, seal.Token{Role: seal.Worker, Uses: 1, Issued: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	offer := func(o *BackboneOptions, key seal.Key, hub string) error {
		p, err := seal.ProveToken(key, once, seal.Challenge{Hub: hub, Nonce: "bm9uY2U"}, "/worker")
		if err != nil {
			t.Fatal(err)
		}
		return o.refuse(p)
	}
	open := func() *BackboneOptions {
		store, err := openTokenStore(h, seal.Backbone)
		if err != nil {
			t.Fatal(err)
		}
		return &BackboneOptions{Home: h, tokens: store, court: h.OpenCourt(seal.Key{}, nil)}
	}
	friend, thief := seal.NewKey(), seal.NewKey()
	o := open()
	if err := offer(o, friend, "hub-1"); err != nil {
		t.Error(err)
	}
	if err := offer(o, thief, "hub-2"); !errors.Is(err, seal.ErrTokenUsed) {
		t.Errorf("a second key by another hub: %v", err)
	}
	o = open() // the next process
	if err := offer(o, friend, "hub-2"); err != nil {
		t.Error(err)
	}
	if err := offer(o, thief, "hub-1"); !errors.Is(err, seal.ErrTokenUsed) {
		t.Errorf("after a restart: %v", err)
	}
	list, err := h.Tokens()
	if err != nil || len(list) != 1 || len(list[0].Seen) != 2 {
		t.Errorf("the owner sees %+v, %v", list, err)
	}
	if _, err := h.Revoke(once.ID); err != nil {
		t.Fatal(err)
	}
	if err := offer(o, friend, "hub-1"); !errors.Is(err, seal.ErrTokenRevoked) {
		t.Errorf("revoked: %v", err)
	}
}
