package relay

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"time"

	"kvasir/wire/seal"
	"kvasir/wire/ws"
)

// keepEarly is how many bytes of binary frames a worker may send before it is paired.
const keepEarly = 16 << 10

// Types of text frames in the lobby.
const (
	frameWait   = "wait"   // hub: why the worker waits, at once, when that changes, and every Limits.Wait
	frameHere   = "here"   // worker: the answer
	framePaired = "paired" // hub: what follows is the backbone's
)

// lobbyFrame is a text frame between hub and worker.
type lobbyFrame struct {
	Type    string      `json:"type"`
	Reason  string      `json:"reason,omitempty"`
	Session string      `json:"session,omitempty"`
	Grant   *seal.Grant `json:"grant,omitempty"` // of the backbone: its certificate
}

// modelHeader is what model a worker has; a worker that fetches its slice does not say.
const modelHeader = "Kvasir-Model"

// A guest is a worker in the lobby. Its goroutine, that of the visitor, owns the connection until the
// session's goroutine takes over.
type guest struct {
	proof seal.Proof
	model string
	v     *visitor
	tolls []*toll

	claim chan *session // of one: a backbone has come for it
	poke  chan struct{} // of one: the reason has changed
	evict chan error    // of one: it is to go

	// Under Hub.mu.
	reason   string
	session  *session                  // offered or claimed or live
	declined map[seal.PublicKey]string // backbones that do not want it, and why
	gone     bool
}

// leave makes a guest go because of err.
func (g *guest) leave(err error) {
	select {
	case g.evict <- err:
	default:
	}
}

// say changes the reason why a guest waits. Hub.mu is held.
func (g *guest) say(reason string) {
	if g.reason == reason {
		return
	}
	g.reason = reason
	select {
	case g.poke <- struct{}{}:
	default:
	}
}

// worker answers a worker's upgrade request, and returns its time in the lobby.
func (h *Hub) worker(v *visitor, req *ws.Request) (stay func(), err error) {
	if err := h.busy(); err != nil {
		return nil, err
	}
	p, err := h.admit(v, req, ws.WebSocket, seal.Worker)
	if err != nil {
		return nil, err
	}
	model := req.Header.Get(modelHeader)
	if len(model) > maxModel {
		return nil, &ws.Refusal{Status: 400, Reason: "the model's hash is too long"}
	}
	account, err := h.enterKey(v, p.Key)
	if err != nil {
		return nil, err
	}
	if err := h.queue(v); err != nil {
		return nil, err
	}
	if err := ws.Switch(v.nc, req, ws.WebSocket, nil); err != nil {
		return nil, err
	}
	h.f.tally.add("workers", 1)
	g := &guest{proof: p, model: model, v: v, tolls: tollsOf(v.account, account), claim: make(chan *session, 1),
		poke: make(chan struct{}, 1), evict: make(chan error, 1), declined: map[seal.PublicKey]string{}}
	return func() { h.stay(g, req.Rest) }, nil
}

// stay is a worker's time in the lobby.
func (h *Hub) stay(g *guest, rest []byte) {
	g.v.settle()
	conn := ws.New(g.v.nc, ws.Server, rest, ws.Options{Message: 4 << 10, Idle: h.f.o.Silent})
	h.f.log.Info("worker came", "worker", g.proof.Key.Short(), "token", g.proof.Token.ID.String(), "from", host(g.v.raw))
	h.enter(g)
	err := h.host(g, conn)
	h.exit(g, err)
	if err != nil {
		// The line comes first: who reads the counter finds the line as well.
		h.f.log.Info("worker left", "worker", g.proof.Key.Short(), "why", err)
		h.f.tally.add("left_"+kindOfLeaving(err), 1)
		h.f.tally.broke(err)
		g.v.quiet = true
	}
}

// kindOfLeaving is what a guest is counted under who leaves because of err.
func kindOfLeaving(err error) string {
	var closed *ws.CloseError
	switch {
	case errors.Is(err, ErrReplaced):
		return "replaced"
	case errors.Is(err, ErrDraining):
		return "drained"
	case errors.Is(err, ws.ErrTooBig):
		return "size"
	case errors.Is(err, ws.ErrProtocol), errors.Is(err, ws.ErrUTF8), errors.Is(err, ws.ErrUnsupported):
		return "protocol"
	case errors.Is(err, ws.ErrSilent):
		return "silent"
	case errors.As(err, &closed):
		return "closed"
	}
	return "cut"
}

// host keeps a worker company until a session has taken over its connection, and returns nil then, or
// until it ends.
func (h *Hub) host(g *guest, conn *ws.Conn) error {
	lobby := ws.NewLobby(conn, keepEarly)
	over := make(chan struct{})
	var end error // of listen
	go func() {   // ends with the connection, or by Interrupt
		defer close(over)
		end = listen(lobby)
	}()
	tick := time.NewTicker(h.f.o.Wait)
	defer tick.Stop()
	said := ""
	for {
		select {
		case <-over:
			conn.CloseNow()
			return end
		case err := <-g.evict:
			code := ws.StatusPolicy
			if errors.Is(err, ErrDraining) {
				code = ws.StatusGoingAway
			}
			_ = conn.Close(code, err.Error()) // it has gone or not, the worker has been told
			<-over
			return err
		case s := <-g.claim:
			l, err := pair(conn, lobby, s, func() error {
				<-over
				return end
			})
			if err != nil {
				conn.CloseNow()
				s.worker <- leg{}
				return err
			}
			l.tolls = g.tolls
			g.v.quiet, g.v.given = true, true // from here on all is the session's
			s.worker <- l
			return nil
		case <-g.poke:
		case <-tick.C:
		}
		h.mu.Lock()
		f := lobbyFrame{Type: frameWait, Reason: g.reason}
		h.mu.Unlock()
		if f.Reason != said {
			said = f.Reason
			h.f.log.Info("worker waits", "worker", g.proof.Key.Short(), "why", said)
		}
		if err := sayText(conn, f); err != nil {
			conn.CloseNow()
			<-over
			if errors.Is(err, ws.ErrClosed) {
				err = end // the worker said Close or broke a rule, and has had our Close: listen knows which
			}
			return err
		}
	}
}

// listen reads what a worker says in the lobby, which is a sign of life and nothing else.
func listen(lobby *ws.Lobby) error {
	for {
		if _, err := lobby.Read(); err != nil {
			return err
		}
	}
}

// pair says "paired", the hub's last frame, and takes the connection off the lobby. end waits for what
// ended listen.
func pair(conn *ws.Conn, lobby *ws.Lobby, s *session, end func() error) (leg, error) {
	if err := lobby.Interrupt(); err != nil {
		return leg{}, err
	}
	if err := end(); !errors.Is(err, os.ErrDeadlineExceeded) {
		return leg{}, err
	}
	if err := sayText(conn, lobbyFrame{Type: framePaired, Session: s.ID, Grant: &s.Backbone}); err != nil {
		return leg{}, err
	}
	nc, rest, err := lobby.Detach()
	return leg{nc: nc, rest: rest}, err
}

func sayText(conn *ws.Conn, f lobbyFrame) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return conn.WriteMessage(ws.Text, b)
}

var _ net.Conn = (*tape)(nil)
