package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"kvasir/wire/seal"
	"kvasir/wire/ws"
)

const (
	// MaxStatement is the longest statement of a worker, in bytes; MaxAnswer the longest answer to it.
	MaxStatement = 40 << 10
	MaxAnswer    = 4 << 10

	// statementsMost is how many statements one connection may bring. Who has more comes again.
	statementsMost = 4096
	// statementTime is how long a worker may think between two of them, and the hub over one.
	statementTime = 10 * time.Second
)

// ErrStatement: the hub has not taken a statement.
var ErrStatement = errors.New("relay: statement not taken")

// statementAnswer is the hub's text frame after each binary frame of a worker.
type statementAnswer struct {
	Body  []byte `json:"body,omitempty"`
	Error string `json:"error,omitempty"`
}

// statements answers a worker that brings what it has to say of its work. That goes by a connection of its
// own, which no backbone sees, as a WebSocket, because that passes every gateway and CDN that a worker does.
func (h *Hub) statements(v *visitor, req *ws.Request) (take func(), err error) {
	if h.c.Statement == nil {
		return nil, &ws.Refusal{Status: 404, Reason: "this hub keeps no ledger"}
	}
	p, err := h.admit(v, req, ws.WebSocket, seal.Worker)
	if err != nil {
		return nil, err
	}
	if _, err := h.enterKey(v, p.Key); err != nil {
		return nil, err
	}
	if err := ws.Switch(v.nc, req, ws.WebSocket, nil); err != nil {
		return nil, err
	}
	return func() {
		v.settle()
		v.quiet = true
		conn := ws.New(v.nc, ws.Server, req.Rest, ws.Options{Message: MaxStatement, Idle: statementTime})
		if err := h.listenTo(conn, p); err != nil {
			h.f.tally.broke(err)
			conn.CloseNow()
			return
		}
		_ = conn.Close(ws.StatusPolicy, "more than one connection may bring; come again") // it is over
	}, nil
}

// listenTo takes the statements of one connection. It returns an error when the worker has left, as usual.
func (h *Hub) listenTo(conn *ws.Conn, p seal.Proof) error {
	slab := make([]byte, MaxStatement)
	for range statementsMost {
		_ = conn.SetReadDeadline(time.Now().Add(statementTime)) // should it fail, so does the read
		op, n, err := conn.ReadMessage(slab)
		if err != nil {
			return err
		}
		if op != ws.Binary {
			return fmt.Errorf("%w: text where a statement was to come", ErrProtocol)
		}
		ctx, cancel := context.WithTimeout(h.f.ctx, statementTime)
		body, err := h.c.Statement(ctx, p, slab[:n])
		cancel()
		a := statementAnswer{Body: body}
		switch {
		case err == nil:
			h.f.tally.add("statements", 1)
		case body == nil:
			a.Error = clip(err.Error(), 200)
			fallthrough
		default: // the answer says that it will never be taken
			h.f.tally.refuse("statement", p.Key.Short(), err)
		}
		text, err := json.Marshal(a)
		if err != nil {
			return err
		}
		if err := conn.WriteMessage(ws.Text, text); err != nil {
			return err
		}
	}
	return nil
}

// Statements is a worker's connection to a hub's ledger. It belongs to one goroutine.
type Statements struct {
	conn *ws.Conn
	slab []byte
}

// DialStatements proves the token as DialWorker does. Of c, Model and Waiting do not count. Close is to
// follow.
func DialStatements(ctx context.Context, c WorkerConfig) (*Statements, error) {
	if c.Address == "" {
		c.Address = "wss://" + c.Join.Host
	}
	if err := checkAddress(c.Address); err != nil {
		return nil, err
	}
	r, err := c.Dialer.run(ctx, errand{
		address: c.Address, hub: c.Join.Token.Hub, root: c.Join.Root, path: statementsPath, proto: ws.WebSocket,
		prove: func(ch seal.Challenge, path string) (seal.Proof, error) {
			return seal.ProveToken(c.Key, c.Join.Token, ch, path)
		},
	})
	if err != nil {
		return nil, err
	}
	const room = 2 * MaxAnswer // an answer in base64, and what is around it
	return &Statements{conn: ws.New(r.nc, ws.Client, r.rest, ws.Options{Message: MaxStatement}), slab: make([]byte, room)}, nil
}

// Say brings a statement, and returns the answer, which is valid until the next. It gives up when ctx ends;
// after any error the connection is of no use.
func (s *Statements) Say(ctx context.Context, body []byte) (answer []byte, err error) {
	if len(body) > MaxStatement {
		return nil, fmt.Errorf("%w: %d bytes, limit %d", ErrStatement, len(body), MaxStatement)
	}
	stop := context.AfterFunc(ctx, func() { s.conn.CloseNow() })
	defer stop()
	if err := s.conn.WriteMessage(ws.Binary, body); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotThere, err)
	}
	op, n, err := s.conn.ReadMessage(s.slab)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotThere, err)
	}
	var a statementAnswer
	if err := json.Unmarshal(s.slab[:n], &a); err != nil || op != ws.Text || len(a.Body) > MaxAnswer {
		return nil, fmt.Errorf("%w: the hub's answer to a statement is none", ErrProtocol)
	}
	if a.Error != "" {
		return nil, fmt.Errorf("%w: %s", ErrStatement, clip(a.Error, 200))
	}
	return a.Body, nil
}

// Close ends the connection.
func (s *Statements) Close() { s.conn.CloseNow() }
