package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"kvasir/wire/seal"
	"kvasir/wire/ws"
)

// Target is a hub as a backbone reaches it.
type Target struct {
	Address string // ws://HOST:PORT or wss://HOST:PORT of the hub, or of a gateway before it
	Hub     string // id; may be empty where the address leads to one hub only and TLS needs no id
}

// BackboneConfig is for NewBackbone.
type BackboneConfig struct {
	Key    seal.Key
	Grant  seal.Grant // that makes Key a backbone's
	Root   seal.PublicKey
	Hubs   []Target
	Want   Want                                // at each hub; SetWant changes it
	Drain  func(hub string, n time.Duration)   // a hub will end after n; may be nil
	Online func(hub string, connected bool)    // a control connection has come or gone; may be nil
	Refuse func(worker seal.Proof) (why error) // a worker that is not wanted; may be nil

	Backoff Backoff
	Limits  Limits
	Log     *slog.Logger // nil: none
	Dialer  Dialer
}

// Accepted is a worker that has come to a backbone.
type Accepted struct {
	// Conn is a stream over binary frames. Nothing is secret on it, and the worker is not known, until
	// seal.Server has put the inner session over it.
	Conn    net.Conn
	Worker  seal.Proof // for seal.ServerConfig.Paired; its signatures hold
	Session string
	Hub     string
	Model   string // that the worker has; empty: it fetches

	tally *tally // of the backbone
}

// Ended counts why this worker's session is over, or has not come about, and returns the word that it is
// counted under. err is the error with which it ended, nil when it ended in order. inner is the word of
// whoever speaks within the inner session, see link.Kind; it counts where neither the WebSocket nor the
// inner TLS has failed. Whoever calls it logs one line with err.
func (a *Accepted) Ended(err error, inner string) (reason string) {
	reason = kindOfEnd(err, inner)
	a.tally.add("ended_"+reason, 1)
	return reason
}

// kindOfEnd is what a session is counted under that ended because of err.
func kindOfEnd(err error, inner string) string {
	var closed *ws.CloseError
	switch {
	case err == nil:
		return "order"
	case errors.Is(err, ws.ErrTooBig):
		return "size"
	case errors.Is(err, ws.ErrProtocol), errors.Is(err, ws.ErrUTF8), errors.Is(err, ws.ErrUnsupported):
		return "protocol"
	case errors.Is(err, seal.ErrWrongKey), errors.Is(err, seal.ErrNotRoot), errors.Is(err, seal.ErrWrongRole),
		errors.Is(err, seal.ErrBadProof):
		return "key"
	case errors.Is(err, seal.ErrHandshake):
		return "handshake"
	case inner != "":
		return inner
	case errors.Is(err, ws.ErrSilent):
		return "silent"
	case errors.As(err, &closed):
		return "closed"
	}
	return "cut"
}

// offersAtOnce is how many offers of one hub a backbone dials for at a time. The hub makes others again.
const offersAtOnce = 64

// A Backbone keeps a control connection to each of its hubs and dials a session for each worker that it
// is offered.
type Backbone struct {
	c      BackboneConfig
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // of links and offers
	come   chan *Accepted
	failed chan struct{} // closed when no link is left
	tally  *tally

	links []*hubLink

	mu   sync.Mutex
	want Want
	errs []error // of links that have given up
}

// NewBackbone starts to keep connections to the hubs, until Close.
func NewBackbone(c BackboneConfig) (*Backbone, error) {
	if c.Grant.Key != c.Key.Public() {
		return nil, fmt.Errorf("%w: the grant is for another key than this backbone's", seal.ErrWrongKey)
	}
	if err := c.Grant.Verify(c.Root); err != nil {
		return nil, err
	}
	if len(c.Hubs) == 0 {
		return nil, errors.New("backbone without a hub")
	}
	for _, t := range c.Hubs {
		if err := checkAddress(t.Address); err != nil {
			return nil, err
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Limits = c.Limits.withDefaults()
	b := &Backbone{c: c, want: c.Want, come: make(chan *Accepted), failed: make(chan struct{}), tally: newTally(c.Log)}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	for _, t := range c.Hubs {
		l := &hubLink{b: b, t: t, places: make(chan struct{}, offersAtOnce), acks: map[uint64]chan ack{}}
		b.links = append(b.links, l)
		b.wg.Add(1)
		go l.keep()
	}
	return b, nil
}

// Accept returns the next worker. It fails when every hub has refused this backbone for good.
func (b *Backbone) Accept(ctx context.Context) (*Accepted, error) {
	select {
	case a := <-b.come:
		return a, nil
	case <-b.failed:
		b.mu.Lock()
		defer b.mu.Unlock()
		return nil, errors.Join(b.errs...)
	case <-b.ctx.Done():
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Counts returns what has been counted, by name: connected and lost (control connections), offers, accepted
// (workers that have come), declined, missed (offers that came to nothing), and ended_REASON of sessions, as
// Accepted.Ended was told: order, closed, cut, handshake, key, protocol, size, silent, and link.Kind's.
func (b *Backbone) Counts() map[string]uint64 { return b.tally.counts() }

// SetWant tells the hubs how many workers this backbone wants.
func (b *Backbone) SetWant(w Want) {
	b.mu.Lock()
	b.want = w
	b.mu.Unlock()
	for _, l := range b.links {
		l.say(message{Type: msgWant, Want: w})
	}
}

// Report hands a report to the ledger of a hub, and returns its answer when that has it. After any error the
// caller sends it again later.
func (b *Backbone) Report(ctx context.Context, hub string, body []byte) (answer []byte, err error) {
	if len(body) > MaxReport {
		return nil, fmt.Errorf("%w: %d bytes, limit %d", ErrReport, len(body), MaxReport)
	}
	for _, l := range b.links {
		if l.id() == hub {
			return l.report(ctx, body)
		}
	}
	return nil, fmt.Errorf("%w: hub %s is not connected", ErrNotThere, hub)
}

// Close ends the control connections, and the sessions that nobody has accepted. Others go on. It returns
// when no goroutine is left.
func (b *Backbone) Close() {
	b.cancel()
	b.wg.Wait()
}

func (b *Backbone) giveUp(t Target, err error) {
	b.c.Log.Error("hub refuses this backbone", "hub", t.Address, "err", err)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.errs = append(b.errs, fmt.Errorf("hub %s: %w", t.Address, err))
	if len(b.errs) == len(b.links) {
		close(b.failed)
	}
}

// A hubLink is a backbone's relation to one hub.
type hubLink struct {
	b      *Backbone
	t      Target
	places chan struct{} // one an offer that is dialled for

	mu     sync.Mutex // before Backbone.mu
	hub    string     // id, when connected
	talk   *talk      // nil: not connected
	number uint64     // of the last report
	acks   map[uint64]chan ack
}

func (l *hubLink) id() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hub
}

// say leaves a message for the hub, if that is there. A hub that does not read is cut: what it has not
// been told, the next connection begins with.
func (l *hubLink) say(m message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.talk != nil && !l.talk.send(m) {
		l.talk.end(fmt.Errorf("%w: the hub does not read what it is told", ErrProtocol))
	}
}

func (l *hubLink) keep() {
	defer l.b.wg.Done()
	log := l.b.c.Log.With("hub", l.t.Address)
	err := Keep(l.b.ctx, l.b.c.Backoff, l.connect, func(err error, wait time.Duration) {
		log.Warn("hub lost, trying again", "wait", wait.Round(time.Millisecond), "err", err)
		l.b.tally.add("lost", 1)
	})
	if Final(err) {
		l.b.giveUp(l.t, err)
	}
}

func (l *hubLink) prove(c seal.Challenge, path string) (seal.Proof, error) {
	return seal.ProveGrant(l.b.c.Key, l.b.c.Grant, c, path)
}

// connect keeps one control connection to its end.
func (l *hubLink) connect(ctx context.Context) error {
	r, err := l.b.c.Dialer.run(ctx, errand{address: l.t.Address, hub: l.t.Hub, root: l.b.c.Root, path: backbonePath,
		proto: controlProtocol, prove: l.prove})
	if err != nil {
		return err
	}
	t := newTalk(r.nc, r.rest, l.b.c.Limits)
	defer l.lost()
	return t.run(ctx, func(m message) error { return l.hear(t, m) })
}

// lost forgets the connection, and fails the reports under way.
func (l *hubLink) lost() {
	l.mu.Lock()
	hub := l.hub
	l.hub, l.talk = "", nil
	gone := ack{err: fmt.Errorf("%w: the hub has left", ErrReport)}
	for n, ack := range l.acks {
		ack <- gone
		delete(l.acks, n)
	}
	l.mu.Unlock()
	if hub != "" && l.b.c.Online != nil {
		l.b.c.Online(hub, false)
	}
}

func (l *hubLink) hear(t *talk, m message) error {
	switch m.Type {
	case msgHello:
		return l.hello(t, m)
	case msgOffer:
		l.offer(m)
	case msgAck:
		l.mu.Lock()
		defer l.mu.Unlock()
		if to := l.acks[m.Number]; to != nil {
			delete(l.acks, m.Number)
			a := ack{answer: m.Body[:min(len(m.Body), MaxAnswer)]}
			if m.Reason != "" {
				a.err = fmt.Errorf("%w: %s", ErrReport, clip(m.Reason, 200))
			}
			to <- a
		}
	case msgDrain:
		l.b.c.Log.Info("hub drains", "hub", l.t.Address, "why", clip(m.Reason, 200))
		if l.b.c.Drain != nil {
			l.b.c.Drain(l.id(), time.Duration(min(max(m.Seconds, 0), 1<<20))*time.Second)
		}
	}
	return nil
}

func (l *hubLink) hello(t *talk, m message) error {
	if m.Hub == "" || len(m.Hub) > seal.MaxName || l.t.Hub != "" && m.Hub != l.t.Hub {
		return fmt.Errorf("%w: hub names itself %.64q", ErrProtocol, m.Hub)
	}
	l.mu.Lock()
	l.hub, l.talk = m.Hub, t
	l.b.mu.Lock() // under l.mu, so that SetWant is heard before or after this, and not between
	t.send(message{Type: msgWant, Want: l.b.want})
	l.b.mu.Unlock()
	l.mu.Unlock()
	l.b.tally.add("connected", 1)
	l.b.c.Log.Info("connected to hub", "hub", l.t.Address, "id", m.Hub)
	if l.b.c.Online != nil {
		l.b.c.Online(m.Hub, true)
	}
	return nil
}

// offer answers an offer: it declines, or dials for it on a goroutine that ends when the worker is
// accepted, at a failure, or with Close.
func (l *hubLink) offer(m message) {
	if m.Worker == nil || m.Session == "" || len(m.Session) > 64 {
		return
	}
	l.b.tally.add("offers", 1)
	p := *m.Worker
	err := p.Verify(l.b.c.Root)
	if err == nil && p.Role() != seal.Worker {
		err = seal.ErrWrongRole
	}
	if err == nil && l.b.c.Refuse != nil {
		err = l.b.c.Refuse(p)
	}
	if err != nil {
		l.b.c.Log.Warn("worker declined", "worker", p.Key.Short(), "err", err)
		l.b.tally.add("declined", 1)
		l.say(message{Type: msgDecline, Session: m.Session, Reason: clip(err.Error(), 200)})
		return
	}
	select {
	case l.places <- struct{}{}:
	default:
		l.b.tally.add("missed", 1)
		return // the hub offers again
	}
	l.b.wg.Add(1)
	go func() {
		defer l.b.wg.Done()
		defer func() { <-l.places }()
		if err := l.take(p, m); err != nil && l.b.ctx.Err() == nil {
			l.b.c.Log.Info("offer came to nothing", "worker", p.Key.Short(), "err", err)
			l.b.tally.add("missed", 1)
		}
	}()
}

func (l *hubLink) take(p seal.Proof, m message) error {
	hub := l.id()
	if hub == "" {
		return ErrNotThere
	}
	r, err := l.b.c.Dialer.run(l.b.ctx, errand{address: l.t.Address, hub: l.t.Hub, root: l.b.c.Root,
		path: sessionPath + "/" + m.Session, proto: sessionProtocol, nonce: m.Nonce, shed: true,
		prove: func(c seal.Challenge, path string) (seal.Proof, error) {
			c.Hub = hub
			return l.prove(c, path)
		}})
	if err != nil {
		return err
	}
	// A worker's last answer to the hub may have been on its way when that let go.
	conn := ws.New(r.nc, ws.Server, r.rest, ws.Options{DropText: true})
	a := &Accepted{Conn: ws.NetConn(conn), Worker: p, Session: m.Session, Hub: hub, Model: clip(m.Model, maxModel),
		tally: l.b.tally}
	select {
	case l.b.come <- a:
		l.b.tally.add("accepted", 1)
		return nil
	case <-l.b.ctx.Done():
		conn.CloseNow()
		return ErrClosed
	}
}

// ack is a hub's answer to a report.
type ack struct {
	answer []byte
	err    error
}

func (l *hubLink) report(ctx context.Context, body []byte) ([]byte, error) {
	come := make(chan ack, 1)
	l.mu.Lock()
	if l.talk == nil || !l.talk.send(message{Type: msgReport, Number: l.number + 1, Body: body}) {
		l.mu.Unlock()
		return nil, fmt.Errorf("%w: the hub is away, or has too many of them under way", ErrReport)
	}
	l.number++
	n := l.number
	l.acks[n] = come
	l.mu.Unlock()
	select {
	case a := <-come:
		return a.answer, a.err
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.acks, n)
		return nil, ctx.Err()
	}
}
