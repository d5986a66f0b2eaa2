package relay

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"kvasir/wire/seal"
)

// said keeps the reasons that a worker is given.
type said struct {
	mu   sync.Mutex
	list []string
}

func (s *said) add(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, reason)
}

func (s *said) has(part string) func() bool {
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, r := range s.list {
			if strings.Contains(r, part) {
				return true
			}
		}
		return false
	}
}

// wait dials a worker and returns what it hears, and what comes of it.
func (r *rig) wait(w WorkerConfig) (*said, chan error, context.CancelFunc) {
	s := &said{}
	w.Waiting = s.add
	ctx, cancel := context.WithCancel(within(r.t))
	done, over := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(over)
		p, err := DialWorker(ctx, w)
		if err == nil {
			r.later(p.Conn)
		}
		done <- err
	}()
	r.t.Cleanup(func() {
		cancel()
		<-over
	})
	return s, done, cancel
}

func TestWorkersGoWhereTheyAreWanted(t *testing.T) {
	r := newRig(t, rigConfig{limits: quick})
	s, done, cancel := r.wait(r.worker(r.gateAt))
	until(t, "told that no backbone is there", s.has("no backbone is connected"))
	cancel()
	oneLine(t, <-done, context.Canceled)
	until(t, "the lobby is empty", func() bool { return r.hub.Status().Waiting == 0 })

	one := r.backbone(r.hubAt, func(c *BackboneConfig) { c.Want = Want{Model: "a", Workers: 2} })
	until(t, "the first is there", func() bool { return r.hub.Status().Backbones == 1 })
	r.pair(one, r.gateAt)
	p, _ := r.pair(one, r.gateAt)
	s, done, _ = r.wait(r.worker(r.gateAt))
	until(t, "told that there are enough", s.has("all the workers they want (2)"))

	// Another backbone takes who waits, but not whoever has another model.
	foreign := r.worker(r.gateAt)
	foreign.Model = "b"
	s2, done2, _ := r.wait(foreign)
	until(t, "told that its model is not served", s2.has("serves the model"))
	two := r.backbone(r.gateAt, func(c *BackboneConfig) { c.Want = Want{Model: "c", Workers: 5} })
	if _, err := two.Accept(within(t)); err != nil {
		t.Fatal(err)
	}
	oneLine(t, errors.Join(<-done), nil)
	one.SetWant(Want{Model: "b", Workers: 3})
	a, err := one.Accept(within(t))
	if err != nil || a.Model != "b" || a.Worker.Key != foreign.Key.Public() {
		t.Fatalf("accepted %+v, %v", a, err)
	}
	oneLine(t, <-done2, nil)

	// A place that becomes free is offered again.
	s, done, _ = r.wait(func() WorkerConfig { w := r.worker(r.gateAt); w.Model = "b"; return w }())
	until(t, "told that there are enough", s.has("all the workers they want (3)"))
	go func() { _ = p.Conn.Close() }()
	if _, err := one.Accept(within(t)); err != nil {
		t.Fatal(err)
	}
	oneLine(t, <-done, nil)
}

func TestOfferThatNobodyTakesGoesToAnother(t *testing.T) {
	r := newRig(t, rigConfig{limits: quick})
	var once sync.Once
	r.backbone(r.hubAt, func(c *BackboneConfig) { // connects, and can then dial no more
		c.Dialer.NetDial = func(ctx context.Context, network, addr string) (nc net.Conn, err error) {
			err = errors.New("no more")
			once.Do(func() { nc, err = (&net.Dialer{}).DialContext(ctx, network, addr) })
			return nc, err
		}
	})
	until(t, "the first wants workers", wanted(r.hub, 1000))
	two := r.backbone(r.hubAt, nil)
	until(t, "both want workers", wanted(r.hub, 1000, 1000))
	r.pair(two, r.gateAt)
	if n := r.hub.Counts()["refused_offer"]; n == 0 {
		t.Error("the offer was not counted as lost")
	}
}

func TestBackboneMayDecline(t *testing.T) {
	r := newRig(t, rigConfig{limits: quick})
	b := r.backbone(r.hubAt, func(c *BackboneConfig) {
		c.Refuse = func(seal.Proof) error { return errors.New("in quarantine") }
	})
	s, _, _ := r.wait(r.worker(r.gateAt))
	until(t, "told that it is not wanted", s.has("do not want this worker: in quarantine"))
	if got := r.hub.Counts()["paired"]; got != 0 {
		t.Errorf("%d pairings", got)
	}
	b.Close()
	until(t, "told that nobody is there", s.has("no backbone is connected"))
}

func TestNewestConnectionOfAKeyWins(t *testing.T) {
	r := newRig(t, rigConfig{limits: quick})
	w := r.worker(r.gateAt)
	s, done, _ := r.wait(w)
	until(t, "it waits", s.has("no backbone"))
	s2, done2, _ := r.wait(w)
	oneLine(t, <-done, ErrReplaced, "newer connection")
	until(t, "the other waits", s2.has("no backbone"))
	b := r.backbone(r.hubAt, nil)
	first, err := b.Accept(within(t))
	if err != nil {
		t.Fatal(err)
	}
	oneLine(t, <-done2, nil)
	r.join(b, w)
	if _, err := first.Conn.Read(make([]byte, 1)); err == nil {
		t.Error("the older session still stands")
	}
	until(t, "one session is left", func() bool { return r.hub.Status().Sessions == 1 })
}

func TestDrainSendsAllAway(t *testing.T) {
	r := newRig(t, rigConfig{limits: quick})
	told := make(chan time.Duration, 1)
	b := r.backbone(r.hubAt, func(c *BackboneConfig) {
		c.Want.Workers = 1
		c.Drain = func(_ string, n time.Duration) { told <- n }
	})
	p, a := r.pair(b, r.gateAt)
	s, done, _ := r.wait(r.worker(r.gateAt))
	until(t, "one waits", s.has("all the workers"))
	drained := make(chan error, 1)
	go func() { drained <- r.hub.Drain(within(t), "for an update") }()
	if n := <-told; n <= 0 || n > patience {
		t.Errorf("the backbone was given %v", n)
	}
	oneLine(t, <-done, ErrDraining)
	_, err := DialWorker(within(t), r.worker(r.gateAt))
	if err == nil || !strings.Contains(err.Error(), "draining") || retryAfter(err) != retrySeconds*time.Second {
		t.Errorf("a worker that comes during the drain: %v, again in %v", err, retryAfter(err))
	}
	go func() { _ = p.Conn.Close() }()
	_ = a.Conn.Close()
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

func TestReportsAreAcknowledged(t *testing.T) {
	type report struct {
		key  seal.PublicKey
		body string
	}
	got := make(chan report, 10)
	r := newRig(t, rigConfig{limits: quick, hub: HubConfig{Report: func(_ context.Context, g seal.Grant, b []byte) ([]byte, error) {
		if string(b) == "bad" {
			return nil, errors.New("signature does not hold")
		}
		got <- report{g.Key, string(b)}
		return []byte("answer"), nil
	}}})
	online := make(chan bool, 10)
	b := r.backbone(r.gateAt, func(c *BackboneConfig) { c.Online = func(_ string, up bool) { online <- up } })
	tell := func(hub string, body []byte) error {
		_, err := b.Report(within(t), hub, body)
		return err
	}
	oneLine(t, tell("nobody", nil), ErrNotThere)
	<-online
	if answer, err := b.Report(within(t), r.hub.ID(), []byte("work")); err != nil || string(answer) != "answer" {
		t.Fatalf("%q, %v", answer, err)
	}
	if g := <-got; g != (report{b.c.Key.Public(), "work"}) {
		t.Errorf("the hub got %+v", g)
	}
	big := make([]byte, MaxReport)
	if err := tell(r.hub.ID(), big); err != nil {
		t.Errorf("longest report: %v", err)
	}
	oneLine(t, tell(r.hub.ID(), append(big, 0)), ErrReport)
	oneLine(t, tell(r.hub.ID(), []byte("bad")), ErrReport, "signature does not hold")
	r.hub.Close()
	until(t, "the hub is gone", func() bool { return b.links[0].id() == "" })
	oneLine(t, tell(r.hub.ID(), nil), ErrNotThere)
}
