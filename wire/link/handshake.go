package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"kvasir/wire"
)

// The handshake takes turns, so that it works on a connection without any buffer:
//
//	worker    Hello
//	backbone  Hello, then Ready(0), or Fault(refused) and the end
//	worker    Ready(0), or Fault(refused) and the end
//
// Both sides compare the same two Hellos, and the text of a refusal names sides, not "here" and "there".

// shake does one side's part of the handshake. It reads at most handshakeBytes and takes at most
// handshakeWait.
func (m *mux) shake(ctx context.Context) error {
	if err := m.conn.SetDeadline(time.Now().Add(handshakeWait)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = m.conn.SetDeadline(time.Unix(1, 0)) }) // ends reads and writes
	defer stop()
	err := m.turns()
	if !stop() {
		return ctx.Err()
	}
	return err // reader and writer set deadlines of their own
}

func (m *mux) turns() error {
	left := handshakeBytes
	if m.role == wire.RoleWorker {
		if err := m.say(wire.TypeHello, wire.AppendHello(nil, &m.o.Hello)); err != nil {
			return err
		}
	}
	if err := m.hear(&left, func(h wire.Header, p []byte) error {
		if h.Type != wire.TypeHello {
			return fmt.Errorf("%w: %s where Hello was due", ErrProtocol, h.Type)
		}
		return wire.ParseHello(&m.peer, append([]byte(nil), p...))
	}); err != nil {
		return err
	}
	worker, backbone := &m.o.Hello, &m.peer
	if m.role == wire.RoleBackbone {
		worker, backbone = backbone, worker
		if err := m.say(wire.TypeHello, wire.AppendHello(nil, &m.o.Hello)); err != nil {
			return err
		}
	}
	version, refusal := agree(worker, backbone)
	m.version = version
	if m.role == wire.RoleWorker {
		if err := m.verdict(&left); err != nil {
			return err
		}
		return m.judge(refusal)
	}
	if err := m.judge(refusal); err != nil {
		return err
	}
	return m.verdict(&left)
}

// say sends one control message.
func (m *mux) say(t wire.Type, payload []byte) error {
	chunk := wire.AppendHeader(nil, wire.NewHeader(t, len(payload), 0))
	n, err := m.conn.Write(append(chunk, payload...))
	m.out.Add(uint64(n))
	return err
}

// judge sends this side's verdict, and returns the refusal if it is one.
func (m *mux) judge(refusal error) error {
	if refusal == nil {
		return m.say(wire.TypeReady, wire.AppendReady(nil, 0))
	}
	f := wire.Fault{Code: wire.Refused, Text: []byte(refusal.Error())}
	return errors.Join(fmt.Errorf("%w: %w", ErrRefused, refusal), m.say(wire.TypeFault, wire.AppendFault(nil, f)))
}

// verdict reads the other side's.
func (m *mux) verdict(left *int) error {
	return m.hear(left, func(h wire.Header, p []byte) error {
		switch h.Type {
		case wire.TypeReady:
			epoch, err := wire.ParseReady(p)
			if err == nil && epoch != 0 {
				err = fmt.Errorf("%w: Ready of epoch %d before any Assign", ErrProtocol, epoch)
			}
			return err
		case wire.TypeFault:
			f, err := wire.ParseFault(p)
			if err == nil {
				err = faultError(f)
			}
			return err
		}
		return fmt.Errorf("%w: %s where Ready or Fault was due", ErrProtocol, h.Type)
	})
}

// hear reads the next message and hands it to take. What a newer version may say is skipped.
func (m *mux) hear(left *int, take func(wire.Header, []byte) error) error {
	for {
		if err := m.hearBytes(left, m.head[:]); err != nil {
			return err
		}
		h, err := wire.ParseHeader(m.head[:])
		if err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		p := m.room(h.Size)
		if err := m.hearBytes(left, p); err != nil {
			return err
		}
		if h.Flags&wire.Bulk != 0 {
			return fmt.Errorf("%w: %s within the handshake", ErrProtocol, h.Type)
		}
		if !h.Type.Known() {
			continue
		}
		err = take(h, p)
		if errors.Is(err, wire.ErrPayload) {
			err = fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		return err
	}
}

// hearBytes fills p within what is left of the handshake's bytes.
func (m *mux) hearBytes(left *int, p []byte) error {
	if *left -= len(p); *left < 0 {
		return fmt.Errorf("%w: more than %d bytes of handshake", ErrProtocol, handshakeBytes)
	}
	n, err := io.ReadFull(m.conn, p)
	m.in.Add(uint64(n))
	return err
}

// agree compares two Hellos. It returns the protocol version to speak, or in what they do not match.
func agree(worker, backbone *wire.Hello) (version uint16, refusal error) {
	w, b := worker, backbone
	fetch := w.Features&b.Features&wire.FeatureFetch != 0
	version = min(w.Max, b.Max)
	switch {
	case w.Role != wire.RoleWorker || b.Role != wire.RoleBackbone:
		return 0, fmt.Errorf("a %s and a %s: a session is between a worker and a backbone", w.Role, b.Role)
	case version < w.Min || version < b.Min:
		return 0, fmt.Errorf("the worker speaks protocol %d to %d, the backbone %d to %d: update the older side",
			w.Min, w.Max, b.Min, b.Max)
	case w.Arithmetic != b.Arithmetic:
		return 0, fmt.Errorf("the worker has arithmetic version %d, the backbone %d: update the older side",
			w.Arithmetic, b.Arithmetic)
	case w.Class != b.Class:
		return 0, fmt.Errorf("the worker is of class %s, the backbone of class %s: a swarm's arithmetic is of one class", w.Class, b.Class)
	case w.Calls < 1 || w.Window < 1:
		return 0, fmt.Errorf("the worker takes %d calls and %d bytes at once: it can serve nothing", w.Calls, w.Window)
	case b.Model.IsZero():
		return 0, errors.New("the backbone names no model")
	case w.Model.IsZero() && fetch:
		return version, nil
	case w.Model.IsZero():
		return 0, errors.New("the worker has no model, and one side does not fetch: give the worker the model file")
	case w.Profile != b.Profile:
		return 0, fmt.Errorf("the worker has arithmetic profile %s, the backbone %s: use the same profile file beside the model",
			w.Profile, b.Profile)
	case w.Model != b.Model:
		return 0, fmt.Errorf("the worker has model %s, the backbone %s: use the same model file", w.Model, b.Model)
	case w.Layers != b.Layers || w.Experts != b.Experts || w.Hidden != b.Hidden:
		return 0, fmt.Errorf("the worker has %d layers of %d experts and hidden size %d, the backbone %d, %d and %d",
			w.Layers, w.Experts, w.Hidden, b.Layers, b.Experts, b.Hidden)
	}
	return version, sameSlices(w.Slices, b.Slices)
}

// sameSlices compares what two sides of one model say of the same experts. A worker without a model may
// have slices of another: those it is not asked for.
func sameSlices(worker, backbone []wire.Slice) error {
	for _, w := range worker {
		for _, b := range backbone {
			if w.Layer == b.Layer && w.Lo == b.Lo && w.Hi == b.Hi && !w.Hash.IsZero() && !b.Hash.IsZero() && w.Hash != b.Hash {
				return fmt.Errorf("the worker has %s for experts %d to %d of layer %d, the backbone %s: remove the worker's copy",
					w.Hash, w.Lo, w.Hi-1, w.Layer, b.Hash)
			}
		}
	}
	return nil
}

// connect makes a session of a connection. It closes the connection if that does not come about.
func connect(ctx context.Context, conn net.Conn, o Options, role wire.Role) (*mux, error) {
	m := newMux(conn, o.withDefaults(role), role)
	err := m.shake(ctx)
	if err == nil {
		return m, nil
	}
	m.stop()
	switch {
	case errors.Is(err, ErrProtocol):
		f := wire.Fault{Code: wire.Broken, Text: []byte(err.Error())}
		_ = m.say(wire.TypeFault, wire.AppendFault(nil, f)) // the handshake has ended with another error
	case ctx.Err() == nil && errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("%w: the handshake took longer than %v", ErrSilent, handshakeWait)
	}
	_ = conn.Close() // as above
	switch {
	case errors.Is(err, ErrRefused):
		m.o.Log.Warn("session refused", "peer", m.o.Name, "agent", string(m.peer.Agent), "reason", err.Error())
	case ctx.Err() == nil:
		m.o.Log.Warn("handshake ended", "peer", m.o.Name, "reason", err.Error())
	}
	return nil, fmt.Errorf("handshake with %s: %w", m.o.Name, err)
}
