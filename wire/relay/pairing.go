package relay

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"kvasir/wire/seal"
	"kvasir/wire/ws"
)

// A desk is a backbone's control connection.
type desk struct {
	grant seal.Grant
	talk  *talk

	// Under Hub.mu.
	want  Want
	asked bool // want has come
}

// A session is a pairing: offered to a backbone, then claimed by it, then live.
type session struct {
	Session
	guest  *guest
	desk   *desk
	timer  *time.Timer // takes the offer back
	worker chan leg    // of one: the worker's connection; no connection when it has gone

	// Under Hub.mu.
	claimed, live, dead bool
	kill                func() // when live
}

// enter puts a worker into the lobby. The newest connection of a key wins.
func (h *Hub) enter(g *guest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := h.guests[g.proof.Key]; old != nil {
		old.leave(ErrReplaced)
		if s := old.session; s != nil && s.claimed {
			s.dead = true
			if s.live {
				s.kill()
			}
		}
	}
	h.guests[g.proof.Key] = g
	h.waiting = append(h.waiting, g)
	if h.draining != "" {
		g.leave(ErrDraining)
		return
	}
	h.match()
}

// exit takes a worker out of the lobby: it is in a session, or gone because of err.
func (h *Hub) exit(g *guest, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting = slices.DeleteFunc(h.waiting, func(x *guest) bool { return x == g })
	if err == nil {
		return
	}
	g.gone = true
	if h.guests[g.proof.Key] == g {
		delete(h.guests, g.proof.Key)
	}
	if s := g.session; s != nil && !s.claimed {
		h.withdraw(s, "the worker has left")
	}
	select {
	case s := <-g.claim: // it came too late
		s.worker <- leg{}
	default:
	}
	h.match()
}

// withdraw takes back an offer that has not been claimed. mu is held.
func (h *Hub) withdraw(s *session, reason string) {
	s.timer.Stop()
	delete(h.sessions, s.ID)
	s.guest.session = nil
	s.desk.talk.send(message{Type: msgWithdraw, Session: s.ID, Reason: reason})
	h.checkEmpty()
}

// match offers each worker that waits to the first backbone that wants it, and tells the others why they
// wait. mu is held.
func (h *Hub) match() {
	if h.draining != "" {
		return
	}
	used := map[seal.PublicKey]int{}
	for _, s := range h.sessions {
		used[s.Backbone.Key]++
	}
	for _, g := range h.waiting {
		if g.session != nil || g.gone {
			continue
		}
		d, reason := h.choose(g, used)
		if d == nil {
			g.say(reason)
			continue
		}
		h.offer(g, d)
		used[d.grant.Key]++
		g.say("the backbone has been asked, and has not answered yet")
	}
}

// OtherModel is the reason of a worker that waits because all backbones that are there serve another
// model than it has.
const OtherModel = "no backbone serves the model that this worker has"

// choose returns a desk for a worker, or why there is none.
func (h *Hub) choose(g *guest, used map[seal.PublicKey]int) (*desk, string) {
	var full, other, full0 int
	var declined string
	for _, d := range h.desks {
		switch {
		case !d.asked:
		case g.model != "" && d.want.Model != "" && g.model != d.want.Model:
			other++
		case g.declined[d.grant.Key] != "":
			declined = g.declined[d.grant.Key]
		case used[d.grant.Key] >= h.most(d):
			full++
			full0 += h.most(d)
		case len(d.talk.out) < cap(d.talk.out)/2:
			return d, ""
		}
	}
	switch {
	case len(h.desks) == 0:
		return nil, "no backbone is connected to the hub"
	case full > 0:
		return nil, fmt.Sprintf("the backbones have all the workers they want (%d)", full0)
	case other > 0:
		return nil, OtherModel
	case declined != "":
		return nil, "the backbones do not want this worker: " + declined
	}
	return nil, "the backbones are busy"
}

// most is how many workers a backbone gets.
func (h *Hub) most(d *desk) int {
	if n := h.f.o.Key.Sessions; n > 0 {
		return min(n, d.want.Workers)
	}
	return d.want.Workers
}

func (h *Hub) offer(g *guest, d *desk) {
	s := &session{Session: Session{ID: newID(), Worker: g.proof.Key, Token: g.proof.Token.ID, Backbone: d.grant,
		Model: d.want.Model}, guest: g, desk: d, worker: make(chan leg, 1)}
	g.session = s
	h.sessions[s.ID] = s
	d.talk.send(message{Type: msgOffer, Session: s.ID, Worker: &g.proof, Model: g.model, Nonce: h.door.Nonces.New()})
	s.timer = time.AfterFunc(h.f.o.Offer, func() { h.late(s) })
}

// late takes back an offer that a backbone has left lying, and puts that backbone behind the others.
func (h *Hub) late(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.claimed || h.sessions[s.ID] != s {
		return
	}
	h.f.tally.refuse("offer", s.Backbone.Key.Short(), errors.New("the backbone has not taken an offer in time"))
	h.withdraw(s, "too late")
	if i := slices.Index(h.desks, s.desk); i >= 0 {
		h.desks = append(slices.Delete(h.desks, i, i+1), s.desk)
	}
	h.match()
}

// backbone answers the upgrade request of a control connection, and returns its service.
func (h *Hub) backbone(v *visitor, req *ws.Request) (serve func(), err error) {
	if err := h.busy(); err != nil {
		return nil, err
	}
	p, err := h.admit(v, req, controlProtocol, seal.Backbone)
	if err != nil {
		return nil, err
	}
	if p.Grant.IsZero() {
		return nil, &ws.Refusal{Status: http.StatusForbidden, Reason: "a backbone shows a grant, not a token"}
	}
	if _, err := h.enterKey(v, p.Key); err != nil {
		return nil, err
	}
	if err := ws.Switch(v.nc, req, controlProtocol, nil); err != nil {
		return nil, err
	}
	v.quiet = true
	h.f.tally.add("backbones", 1)
	return func() { h.control(v, p, req.Rest) }, nil
}

// control serves a control connection to its end.
func (h *Hub) control(v *visitor, p seal.Proof, rest []byte) {
	v.settle()
	d := &desk{grant: p.Grant, talk: newTalk(v.nc, rest, h.f.o)}
	d.talk.send(message{Type: msgHello, Hub: h.id})
	h.f.log.Info("backbone came", "backbone", p.Key.Short(), "name", p.Grant.Name, "from", host(v.raw))
	h.open(d)
	err := d.talk.run(h.f.ctx, func(m message) error { return h.hear(d, m) })
	h.shut(d)
	h.f.tally.broke(err)
	h.f.log.Info("backbone left", "backbone", p.Key.Short(), "why", why(err))
}

// open adds a desk in the place of an older one of the same key.
func (h *Hub) open(d *desk) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, old := range h.desks {
		if old.grant.Key == d.grant.Key {
			h.forget(old)
			old.talk.end(ErrReplaced)
			break
		}
	}
	h.desks = append(h.desks, d)
}

func (h *Hub) shut(d *desk) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(d)
	h.match()
}

// forget takes a desk away, and back what was offered to it. mu is held.
func (h *Hub) forget(d *desk) {
	h.desks = slices.DeleteFunc(h.desks, func(x *desk) bool { return x == d })
	for _, s := range h.sessions {
		if s.desk == d && !s.claimed {
			h.withdraw(s, "")
		}
	}
}

// hear does what a backbone says.
func (h *Hub) hear(d *desk, m message) error {
	switch m.Type {
	case msgWant:
		if m.Want.Workers < 0 || m.Want.Workers > maxWorkers || len(m.Want.Model) > maxModel {
			return fmt.Errorf("%w: want of %d workers", ErrProtocol, m.Want.Workers)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		d.want, d.asked = m.Want, true
		h.match()
	case msgDecline:
		h.mu.Lock()
		defer h.mu.Unlock()
		if s := h.sessions[m.Session]; s != nil && s.desk == d && !s.claimed {
			why := clip(strings.TrimPrefix(m.Reason, "seal: "), 200)
			if why == "" {
				why = "no reason was given"
			}
			s.guest.declined[d.grant.Key] = why
			h.withdraw(s, m.Reason)
			h.match()
		}
	case msgReport:
		return h.report(d, m)
	}
	return nil
}

func (h *Hub) report(d *desk, m message) error {
	ack := message{Type: msgAck, Number: m.Number}
	switch {
	case len(m.Body) > MaxReport:
		return fmt.Errorf("%w: report of %d bytes, limit %d", ErrProtocol, len(m.Body), MaxReport)
	case h.c.Report == nil:
		ack.Reason = "this hub keeps no ledger"
	default:
		answer, err := h.c.Report(h.f.ctx, d.grant, m.Body)
		ack.Body = answer
		if err != nil {
			h.f.tally.refuse("report", d.grant.Key.Short(), err)
			ack.Reason = clip(err.Error(), 200)
		}
	}
	if !d.talk.send(ack) {
		return errors.New("the backbone does not read its acknowledgements")
	}
	return nil
}

// session answers the connection that a backbone has dialled for an offer, and returns the session. From
// claim on it has the worker's connection too, and ends both.
func (h *Hub) session(v *visitor, req *ws.Request, id string) (run func(), err error) {
	p, err := h.admit(v, req, sessionProtocol, seal.Backbone)
	if err != nil {
		return nil, err
	}
	s, err := h.claim(id, p.Key)
	if err != nil {
		return nil, err
	}
	worker := <-s.worker // pair takes as long as one write at most
	if worker.nc == nil {
		h.ended(s)
		return nil, gone("the worker has left")
	}
	v.quiet = true
	over := func() {
		s.guest.v.leave()
		h.ended(s)
	}
	if err := ws.Switch(v.nc, req, sessionProtocol, nil); err != nil {
		over()
		return nil, nil //nolint:nilerr // it has been told, and there is nothing to refuse
	}
	return func() {
		defer over()
		v.settle()
		h.begin(s, v)
		worker.nc = lead(worker.nc)
		h.run(s, worker, leg{nc: lead(v.nc), rest: req.Rest, tolls: tollsOf(v.account)})
	}, nil
}

// begin makes a session live, or dead where its worker has come again meanwhile.
func (h *Hub) begin(s *session, v *visitor) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.kill = func() {
		sever(s.guest.v.raw)
		sever(v.raw)
	}
	s.live = true
	if s.dead {
		s.kill()
	}
	s.Began = h.c.Now()
}

func gone(reason string) error {
	return &ws.Refusal{Status: http.StatusGone, Reason: reason}
}

// claim takes an offer for the backbone that it was made to.
func (h *Hub) claim(id string, key seal.PublicKey) (*session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[id]
	if s == nil || s.claimed || s.Backbone.Key != key {
		return nil, gone("the offer does not stand any more")
	}
	s.timer.Stop()
	s.claimed = true
	s.guest.claim <- s
	return s, nil
}

// run copies and meters.
func (h *Hub) run(s *session, worker, backbone leg) {
	h.f.tally.add("paired", 1)
	h.f.log.Info("paired", "session", s.ID, "worker", s.Worker.Short(), "backbone", s.Backbone.Key.Short())
	m := &metered{m: h.c.Meter, s: s.Session}
	m.m.Begin(s.Session)
	up, down, err := splice(worker, backbone, h.f.o, m.count)
	m.m.End(s.Session, up, down, err)
	h.f.tally.add("bytes_to_backbones", up)
	h.f.tally.add("bytes_to_workers", down)
	h.f.tally.cut(err)
	h.f.log.Info("session ended", "session", s.ID, "up", up, "down", down, "why", why(err))
}

// ended forgets a session that was claimed.
func (h *Hub) ended(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.sessions, s.ID)
	if h.guests[s.Worker] == s.guest {
		delete(h.guests, s.Worker)
	}
	h.checkEmpty()
	h.match()
}
