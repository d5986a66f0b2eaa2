package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"kvasir/wire/seal"
	"kvasir/wire/ws"
)

// WorkerConfig is for DialWorker.
type WorkerConfig struct {
	Join    seal.Join
	Address string   // ws://HOST:PORT or wss://…; empty: wss:// and the host of Join
	Key     seal.Key // this worker's
	Model   string   // hash of the model that the worker has; empty: it fetches what it is given
	Waiting func(reason string)
	Dialer  Dialer
}

// Paired is a worker's connection to a backbone.
type Paired struct {
	// Conn is the far side of what the backbone has got as Accepted.Conn: a stream over binary frames.
	// Nothing is secret on it until seal.Client has put the inner session over it.
	Conn    net.Conn
	Session string
	Grant   seal.Grant    // of the backbone, for seal.ClientConfig.Paired; not checked yet
	Skew    time.Duration // how far this machine's clock is ahead of the hub's
}

// DialWorker joins a swarm: it dials, proves the token, waits in the hub's lobby for as long as it takes,
// and returns when it is paired. See Keep for trying again.
func DialWorker(ctx context.Context, c WorkerConfig) (*Paired, error) {
	if c.Address == "" {
		c.Address = "wss://" + c.Join.Host
	}
	if err := checkAddress(c.Address); err != nil {
		return nil, err
	}
	e := errand{address: c.Address, hub: c.Join.Token.Hub, root: c.Join.Root, path: workerPath, proto: ws.WebSocket,
		prove: func(ch seal.Challenge, path string) (seal.Proof, error) {
			return seal.ProveToken(c.Key, c.Join.Token, ch, path)
		}}
	if c.Model != "" {
		e.header = http.Header{modelHeader: {c.Model}}
	}
	r, err := c.Dialer.run(ctx, e)
	if err != nil {
		return nil, err
	}
	conn := ws.New(r.nc, ws.Client, r.rest, ws.Options{})
	p, err := waitPaired(ctx, conn, c.Waiting)
	if err != nil {
		conn.CloseNow()
		return nil, withSkew(err, r.skew)
	}
	p.Skew = r.skew
	return p, nil
}

// waitPaired answers the hub until the worker is paired.
func waitPaired(ctx context.Context, conn *ws.Conn, waiting func(string)) (*Paired, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	slab := make([]byte, 4<<10)
	for {
		op, n, err := conn.ReadMessage(slab)
		if err != nil {
			return nil, lobbyError(ctx, err)
		}
		var f lobbyFrame
		if op != ws.Text {
			return nil, fmt.Errorf("%w: the hub sent data before it paired this worker", ErrProtocol)
		}
		if err := json.Unmarshal(slab[:n], &f); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		switch f.Type {
		case frameWait:
			if waiting != nil {
				waiting(clip(f.Reason, 200))
			}
			if err := sayText(conn, lobbyFrame{Type: frameHere}); err != nil {
				return nil, lobbyError(ctx, err)
			}
		case framePaired:
			if f.Session == "" || len(f.Session) > 64 || f.Grant == nil {
				return nil, fmt.Errorf("%w: the hub names no session or no backbone", ErrProtocol)
			}
			if !stop() {
				return nil, ctx.Err()
			}
			return &Paired{Conn: ws.NetConn(conn), Session: f.Session, Grant: *f.Grant}, nil
		}
	}
}

func lobbyError(ctx context.Context, err error) error {
	var closed *ws.CloseError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &closed) && closed.Code == ws.StatusPolicy:
		return fmt.Errorf("%w (%w)", ErrReplaced, err)
	case errors.As(err, &closed) && closed.Code == ws.StatusGoingAway:
		return fmt.Errorf("%w (%w)", ErrDraining, err)
	}
	return fmt.Errorf("hub left while this worker waited: %w", err)
}
