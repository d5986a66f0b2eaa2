package wan

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

const (
	dialMax   = 10 * time.Second       // for a proxy's target to answer
	acceptGap = 100 * time.Millisecond // after an accept that found no room
)

// Proxy is a TCP listener whose connections reach their target over a link.
type Proxy struct {
	link *Link
	ln   net.Listener
	done <-chan struct{} // closed when it accepts no more
}

// Proxy listens on the address listen and connects what comes to target, over the link. A
// connection opens one round trip after it was made, as one does over a real path.
func (l *Link) Proxy(listen, target string) (*Proxy, error) {
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("wan: listen for %s: %w", target, err)
	}
	var d net.Dialer
	done, err := l.serve(ln, func(ctx context.Context) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", target)
	})
	if err != nil {
		return nil, err
	}
	return &Proxy{link: l, ln: ln, done: done}, nil
}

// Addr returns the address that the proxy listens on.
func (p *Proxy) Addr() net.Addr { return p.ln.Addr() }

// Close stops listening. Connections go on; the Link's Close or Cut ends them.
func (p *Proxy) Close() error {
	err := p.ln.Close()
	<-p.done
	return err
}

// Serve joins each connection that ln accepts to one that dial makes, over the link, and returns at
// once. The link owns ln from then on, also when it returns an error.
func (l *Link) Serve(ln net.Listener, dial func(context.Context) (net.Conn, error)) error {
	_, err := l.serve(ln, dial)
	return err
}

func (l *Link) serve(ln net.Listener, dial func(context.Context) (net.Conn, error)) (<-chan struct{}, error) {
	l.mu.Lock()
	l.listeners[ln] = struct{}{}
	l.mu.Unlock()
	done := make(chan struct{})
	ok := l.start(func() {
		defer close(done)
		l.accept(ln, dial)
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.listeners, ln)
	})
	if !ok {
		return nil, errors.Join(ErrClosed, ln.Close())
	}
	return done, nil
}

func (l *Link) accept(ln net.Listener, dial func(context.Context) (net.Conn, error)) {
	for {
		near, err := ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || l.rest() != nil {
				return
			}
			continue
		}
		p, err := l.newPair()
		if err != nil {
			abort(near)
			continue
		}
		if !p.attach(near) || !l.start(func() { l.open(p, near, dial) }) {
			p.drop(near)
		}
	}
}

// rest waits a moment, or returns why not.
func (l *Link) rest() error {
	t := time.NewTimer(acceptGap)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-l.ctx.Done():
		return ErrClosed
	}
}

// open makes the far half of a proxied connection. Its near half is open already, since the kernel
// accepts by itself; what the client writes before a round trip is over waits in the socket.
func (l *Link) open(p *pair, near net.Conn, dial func(context.Context) (net.Conn, error)) {
	ack := func() error { return l.travel(l.ctx, l.up) }
	if l.up.holed() || l.down.holed() {
		p.plug(near, p.down, p.up, nil)
		return
	}
	if err := ack(); err != nil {
		p.drop(near)
		return
	}
	ctx, cancel := context.WithTimeout(l.ctx, dialMax)
	defer cancel()
	far, dialErr := dial(ctx)
	err := l.travel(l.ctx, l.down)
	if dialErr != nil || err != nil {
		if far != nil {
			abort(far)
		}
		p.drop(near)
		return
	}
	p.plug(far, p.up, p.down, ack)
	p.plug(near, p.down, p.up, nil)
}

// drop ends a connection that has no far half.
func (p *pair) drop(near net.Conn) {
	abort(near)
	p.release()
	p.release()
}
