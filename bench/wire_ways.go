package bench

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/gobwas/ws/wsutil"

	"kvasir/wire/relay"
	"kvasir/wire/seal"
	"kvasir/wire/ws"
)

// readBytes is the slab that a way is read into.
const readBytes = 64 << 10

// newPipe returns a pipe whose writer may be whoever has write, and whose parts are closed with it.
func newPipe(write func([]byte) error, read io.Reader, closers ...io.Closer) *pipe {
	var once sync.Once
	return &pipe{write: write, read: read, into: make([]byte, readBytes), close: func() {
		once.Do(func() {
			for _, c := range closers {
				_ = c.Close() // what was moved has been counted
			}
		})
	}}
}

func writerOf(nc net.Conn) func([]byte) error {
	return func(p []byte) error {
		_, err := nc.Write(p)
		return err
	}
}

// tcpPair returns the two ends of a connection over loopback.
func tcpPair(ctx context.Context) (client, server net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = l.Close() }() // it has done its work
	client, err = (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	server, err = l.Accept()
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return client, server, nil
}

func openTCP(ctx context.Context) (*pipe, error) {
	c, s, err := tcpPair(ctx)
	if err != nil {
		return nil, err
	}
	return newPipe(writerOf(c), s, c, s), nil
}

// cutter closes a ws.Conn at once.
type cutter struct{ *ws.Conn }

// Close implements io.Closer.
func (c cutter) Close() error { c.CloseNow(); return nil }

// openFrames is a worker's end to a backbone's: masked frames of a chunk, written from a slab and read into
// one.
func openFrames(ctx context.Context) (*pipe, error) {
	c, s, err := tcpPair(ctx)
	if err != nil {
		return nil, err
	}
	client, server := ws.New(c, ws.Client, nil, ws.Options{}), ws.New(s, ws.Server, nil, ws.Options{})
	slab := make([]byte, ws.Headroom+chunkBytes)
	write := func(p []byte) error {
		for left := len(p); left > 0; left -= chunkBytes {
			if err := client.WriteSlab(ws.Binary, slab[:ws.Headroom+min(left, chunkBytes)]); err != nil {
				return err
			}
		}
		return nil
	}
	return newPipe(write, messages{server}, cutter{client}, cutter{server}), nil
}

// messages reads a Conn's messages one by one.
type messages struct{ c *ws.Conn }

// Read implements io.Reader; p has room for any message.
func (m messages) Read(p []byte) (int, error) {
	_, n, err := m.c.ReadMessage(p)
	return n, err
}

// openUtil is the same through the helpers of gobwas.
func openUtil(ctx context.Context) (*pipe, error) {
	c, s, err := tcpPair(ctx)
	if err != nil {
		return nil, err
	}
	write := func(p []byte) error { return wsutil.WriteClientBinary(c, p) }
	return newPipe(write, utilReader{s}, c, s), nil
}

type utilReader struct{ net.Conn }

// Read implements io.Reader.
func (u utilReader) Read([]byte) (int, error) {
	p, err := wsutil.ReadClientBinary(u.Conn)
	return len(p), err
}

// openSealed is the whole path of a session's bytes between worker and backbone, without a machine between.
func openSealed(ctx context.Context) (*pipe, error) {
	c, s, err := tcpPair(ctx)
	if err != nil {
		return nil, err
	}
	client, server, err := sealPair(ctx, c, s)
	if err != nil {
		return nil, err
	}
	return newPipe(writerOf(client), server, c, s), nil
}

// sealPair makes a worker's end of c, and a backbone's of s: TLS in frames. After an error both are closed.
func sealPair(ctx context.Context, c, s net.Conn) (client, server *tls.Conn, err error) {
	root, backbone, worker := seal.NewKey(), seal.NewKey(), seal.NewKey()
	now := time.Now()
	grant, err1 := seal.SignGrant(root, seal.Grant{Role: seal.Backbone, Key: backbone.Public(), Issued: now, Name: "bench"})
	token, err2 := seal.SignToken(root, seal.Token{Role: seal.Worker, Hub: "hub", Issued: now, Expires: now.Add(time.Hour), Uses: 1})
	proof, err3 := seal.ProveToken(worker, token, seal.Challenge{Hub: "hub", Nonce: "bm9uY2U"}, "/worker")
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, nil, errors.Join(err, c.Close(), s.Close())
	}
	type end struct {
		conn *tls.Conn
		err  error
	}
	ends := make(chan end, 1)
	go func() { // ends with its handshake
		nc := ws.NetConn(ws.New(c, ws.Client, nil, ws.Options{}))
		conn, err := seal.Client(ctx, nc, seal.ClientConfig{Self: worker, Root: root.Public(), Paired: grant, Now: time.Now})
		ends <- end{conn, err}
	}()
	nc := ws.NetConn(ws.New(s, ws.Server, nil, ws.Options{}))
	server, err = seal.Server(ctx, nc, seal.ServerConfig{Self: backbone, Root: root.Public(), Paired: proof})
	if err != nil {
		err = errors.Join(err, s.Close())
	}
	far := <-ends
	if err := errors.Join(err, far.err); err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return far.conn, server, nil
}

// benchProtocol is what a client asks for through the gateway; the far side is the scenario's own.
const benchProtocol = "kvasir-session/1"

// target is the far side of a relay: it takes one connection.
type target struct {
	l    net.Listener
	conn chan taken
}

type taken struct {
	nc  net.Conn
	err error
}

// newTarget listens. accept makes of the first connection what is read from.
func newTarget(accept func(net.Conn) error) (*target, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &target{l: l, conn: make(chan taken, 1)}
	go func() { // ends with the first connection, or the listener
		nc, err := l.Accept()
		if err == nil {
			err = accept(nc)
		}
		t.conn <- taken{nc, err}
	}()
	return t, nil
}

func (t *target) addr() string { return t.l.Addr().String() }

// upgraded answers an upgrade request. The client waits for the answer, so nothing comes glued to it.
func upgraded(nc net.Conn) error {
	req, err := ws.ReadRequest(nc, nil, 0)
	if err != nil {
		return err
	}
	return ws.Switch(nc, req, benchProtocol, nil)
}

func openGateway(ctx context.Context) (*pipe, error)    { return throughGateway(ctx, false) }
func openGatewayTLS(ctx context.Context) (*pipe, error) { return throughGateway(ctx, true) }

// throughGateway puts a gateway between the two ends.
func throughGateway(ctx context.Context, secure bool) (*pipe, error) {
	t, err := newTarget(upgraded)
	if err != nil {
		return nil, err
	}
	c := relay.GatewayConfig{Routes: []relay.Route{{Addr: t.addr()}}, Plain: !secure}
	scheme := "ws://"
	if secure {
		scheme, c.Key = "wss://", seal.NewKey()
	}
	g, err := relay.NewGateway(c)
	if err != nil {
		return nil, errors.Join(err, t.l.Close())
	}
	front, err := relay.Listen("127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, t.l.Close())
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(front) }() // ends with the gateway
	end := closer(func() error { g.Close(); return errors.Join(<-served, t.l.Close()) })
	nc, _, _, err := ws.DialProtocol(ctx, scheme+front.Addr().String()+"/session/bench", benchProtocol, ws.DialOptions{
		TLS: &tls.Config{InsecureSkipVerify: true}, // loopback, and the copying is what counts
	})
	if err != nil {
		return nil, errors.Join(err, end.Close())
	}
	far := <-t.conn
	if far.err != nil {
		return nil, errors.Join(far.err, nc.Close(), end.Close())
	}
	return newPipe(writerOf(nc), far.nc, nc, far.nc, end), nil
}

type closer func() error

// Close implements io.Closer.
func (c closer) Close() error { return c() }

func openCopy(ctx context.Context) (*pipe, error)    { return throughCopy(ctx, false) }
func openCopyTLS(ctx context.Context) (*pipe, error) { return throughCopy(ctx, true) }

// throughCopy puts io.Copy between the two ends, and nothing else.
func throughCopy(ctx context.Context, secure bool) (*pipe, error) {
	client, middle, err := tcpPair(ctx)
	if err != nil {
		return nil, err
	}
	out, far, err := tcpPair(ctx)
	if err != nil {
		return nil, errors.Join(err, client.Close(), middle.Close())
	}
	if secure {
		cert, err := seal.OuterCertificate(seal.NewKey(), seal.Grant{})
		if err != nil {
			return nil, errors.Join(err, client.Close(), middle.Close(), out.Close(), far.Close())
		}
		client = tls.Client(client, &tls.Config{InsecureSkipVerify: true}) // as above
		middle = tls.Server(middle, &tls.Config{Certificates: []tls.Certificate{cert}})
	}
	go func() { _, _ = io.Copy(out, middle) }() // ends with either
	return newPipe(writerOf(client), far, client, middle, out, far), nil
}
