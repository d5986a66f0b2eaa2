package relay

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"kvasir/wire/seal"
	"kvasir/wire/ws"
)

func TestStatementsReachTheHubThroughTheGateway(t *testing.T) {
	r := newRig(t, rigConfig{limits: quick, hub: HubConfig{Statement: func(_ context.Context, p seal.Proof, b []byte) ([]byte, error) {
		if string(b) == "bad" {
			return nil, errors.New("signature does not hold")
		}
		if string(b) == "never" {
			return []byte("not ever"), errors.New("of another worker")
		}
		return append([]byte(p.Key.Short()+" "), b[:min(len(b), 5)]...), nil
	}}})
	for _, at := range []string{r.hubAt, r.gateAt} {
		c := r.worker(at)
		s, err := DialStatements(within(t), c)
		if err != nil {
			t.Fatal(err)
		}
		for _, body := range [][]byte{[]byte("first"), []byte("again"), bytes.Repeat([]byte("."), MaxStatement)} {
			answer, err := s.Say(within(t), body)
			if want := c.Key.Public().Short() + " " + string(body[:5]); err != nil || string(answer) != want {
				t.Fatalf("answer %q, %v, want %q", answer, err, want)
			}
		}
		_, err = s.Say(within(t), make([]byte, MaxStatement+1))
		oneLine(t, err, ErrStatement)
		_, err = s.Say(within(t), []byte("bad"))
		oneLine(t, err, ErrStatement, "signature does not hold")
		if answer, err := s.Say(within(t), []byte("never")); err != nil || string(answer) != "not ever" {
			t.Errorf("answer %q, %v", answer, err)
		}
		s.Close()
		_, err = s.Say(within(t), []byte("late"))
		oneLine(t, err, ErrNotThere)
	}
	if n := r.hub.Counts(); n["statements"] != 6 || n["refused_statement"] != 4 {
		t.Errorf("%d statements and %d refused, want 6 and 4", n["statements"], n["refused_statement"])
	}
	until(t, "all have left", func() bool { return r.hub.Status().Conns == 0 })
}

// A worker in the lobby or in a session brings statements all the same, and is not replaced by itself.
func TestStatementsReplaceNobody(t *testing.T) {
	r := newRig(t, rigConfig{limits: quick, hub: HubConfig{Statement: func(context.Context, seal.Proof, []byte) ([]byte, error) {
		return nil, nil
	}}})
	w := r.worker(r.gateAt)
	said, left, stop := r.wait(w)
	defer stop()
	until(t, "it waits", func() bool { return r.hub.Status().Waiting == 1 })
	s, err := DialStatements(within(t), w)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Say(within(t), []byte("x")); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-left:
		t.Fatalf("the worker has left the lobby: %v", err)
	default:
	}
	_ = said
}

func TestHubRefusesStatementsOfOthers(t *testing.T) {
	r := newRig(t, rigConfig{limits: quick})
	_, err := DialStatements(within(t), r.worker(r.gateAt))
	var answer *ws.StatusError
	if !errors.As(err, &answer) || answer.Status != 404 {
		t.Errorf("a hub without a ledger: %v", err)
	}
	r = newRig(t, rigConfig{limits: quick, hub: HubConfig{Statement: func(context.Context, seal.Proof, []byte) ([]byte, error) {
		t.Error("a statement was taken")
		return nil, nil
	}}})
	c := r.worker(r.gateAt)
	c.Join.Token = r.token(func(tok *seal.Token) { tok.Hub = "another" })
	if _, err := DialStatements(within(t), c); err == nil {
		t.Error("with a token for another hub")
	}
	c = r.worker(r.gateAt)
	s, err := DialStatements(within(t), c)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.conn.WriteMessage(ws.Text, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	until(t, "text is refused", func() bool { return r.hub.Counts()["refused_protocol"] == 1 })
}
