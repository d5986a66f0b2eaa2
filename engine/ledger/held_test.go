package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"kvasir/wire/seal"
)

// TestAWorkerIsToldWhatIsHeldBack has a backbone sign beyond its limit: the wallet tells the hub, over HTTP, and the hub
// the worker, until the limit allows it.
func TestAWorkerIsToldWhatIsHeldBack(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		key := seal.NewKey()
		s.workers[0] = key.Public()
		h, w := openHub(t, temp(t)), openWallet(t, temp(t), s)
		feed := serve(t, Handler(h))
		_, err := w.Grant(t.Context(), s.backbone.Public(), 5*perPick)
		must(t, err)
		r := s.reporter(1, 0)
		witness := NewWitness(key, SessionID{1}, s.backbone.Public())
		var told []Held
		work := func(picks int64, want NKVR) {
			t.Helper()
			report := next(t, r, picks)
			said, _, err := witness.State(report, []int64{0, 0, 0, 1 << 20}, epoch)
			must(t, err)
			item := Item{Grant: s.grant, Report: report, Statement: said}
			_, err = h.Receive(t.Context(), item)
			must(t, err)
			poll(t, w, feed)
			must(t, w.tellHeld(t.Context(), feed, &told))
			g, err := h.Receive(t.Context(), item)
			must(t, err)
			if g.Held != int64(want) {
				t.Errorf("after %d picks %d nKVR are held back, want %d", picks, g.Held, want)
			}
			item.Statement = nil
			if g, err = h.Receive(t.Context(), item); err != nil || g.Held != 0 {
				t.Errorf("the backbone is told %d nKVR, error %v", g.Held, err)
			}
		}
		work(4, 0)
		work(2, 2*perPick)
		work(3, 5*perPick)
		_, err = w.Grant(t.Context(), s.backbone.Public(), 6*perPick)
		must(t, err)
		work(7, 10*perPick)
		_, err = w.Grant(t.Context(), s.backbone.Public(), 100*perPick)
		must(t, err)
		work(1, 0)
	})
}

// TestWhatIsHeldBackIsReadAsWritten, and what a gateway would not write is refused.
func TestWhatIsHeldBackIsReadAsWritten(t *testing.T) {
	var list []Held
	for i := range MaxHeld {
		list = append(list, Held{seal.NewKey().Public(), MaxBalance - NKVR(i)})
	}
	for _, n := range []int{0, 1, MaxHeld} {
		text := formatHeld(list[:n])
		got, err := parseHeld(text)
		if must(t, err); !slices.Equal(got, list[:n]) || len(text) > 6<<10 {
			t.Errorf("%d workers are read as %v, of %d bytes", n, got, len(text))
		}
	}
	one := list[0].Worker.String()
	for _, text := range []string{
		"x", ",", one, one + ":", one + ":0", one + ":-1", one + ":9223372036854775807", one + ":1x", one + ":1,", one + ":1," + one + ":2",
		"nobody:1", formatHeld(list) + fmt.Sprintf(",%s:1", seal.NewKey().Public()), strings.Repeat(",", 1<<16),
	} {
		_, err := parseHeld(text)
		wantError(t, err, ErrBadHeld)
	}
}

func FuzzParseHeld(f *testing.F) {
	f.Add("")
	f.Add(formatHeld([]Held{{seal.PublicKey{1}, 7}, {seal.PublicKey{2}, 9}}))
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parseHeld(text)
		if err != nil {
			return
		}
		again, err := parseHeld(formatHeld(list))
		if err != nil || !slices.Equal(again, list) {
			t.Errorf("%q is read as %v, and that as %v, error %v", text, list, again, err)
		}
	})
}
