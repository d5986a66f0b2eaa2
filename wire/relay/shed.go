package relay

import (
	"cmp"
	"crypto/subtle"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Once a worker is paired, all that goes on is sealed by the inner session, and outer TLS between machines of
// one network seals it again for nothing: a hub opens and seals every byte that its kernel could splice. So
// such a leg sheds it:
//
//  1. Who dials, a gateway or a backbone, offers to: with its request goes shedHeader, a value that only the
//     two ends of this very TLS session can compute. Behind another TLS it does not fit, and nothing is shed.
//  2. When the session begins, the hub ends TLS in its direction with close_notify; bytes as they are follow.
//  3. Who dialled reads the end of TLS, and goes on reading without it. With the first such byte he knows
//     that it was no real end, and does the same in the other direction.
//
// A real end is the end of the TCP stream. Tokens, proofs and the lobby's words stay under TLS, as does all
// that goes to public addresses, where not every box on the way bears a stream that stops being TLS.
const (
	shedHeader = "Kvasir-Shed"
	shedLabel  = "EXPORTER-kvasir-shed" // RFC 8446, 7.5
)

// shedding is a connection under TLS that may go on without. One goroutine reads and one writes at a time.
type shedding struct {
	net.Conn // beneath TLS
	tls      *tls.Conn
	bareIn   bool        // the reader's: TLS has ended
	heard    atomic.Bool // bytes have come without TLS
	bareOut  atomic.Bool // set by the writer

	mu  sync.Mutex // held while TLS ends in the writing direction, and its deadline is moved
	due time.Time  // of writes
}

// shed ends TLS in the writing direction.
func (s *shedding) shed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.tls.CloseWrite()
	s.bareOut.Store(true)
	if err = cmp.Or(err, s.Conn.SetWriteDeadline(s.due)); err != nil { // CloseWrite has moved it
		_ = s.Conn.Close() // half a goodbye may be out
	}
	return err
}

// Read reads from TLS, and beneath it when that has ended.
func (s *shedding) Read(p []byte) (int, error) {
	if !s.bareIn {
		n, err := s.tls.Read(p)
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		s.bareIn = true
	}
	n, err := s.Conn.Read(p)
	if n > 0 && !s.heard.Load() {
		s.heard.Store(true)
	}
	return n, err
}

// Write writes as the far side is known to read.
func (s *shedding) Write(p []byte) (int, error) {
	if s.bareOut.Load() {
		return s.Conn.Write(p)
	}
	if !s.heard.Load() {
		return s.tls.Write(p)
	}
	if err := s.shed(); err != nil {
		return 0, err
	}
	return s.Conn.Write(p)
}

// CloseWrite ends the stream to the far side, and not TLS alone.
func (s *shedding) CloseWrite() error {
	var err error
	if !s.bareOut.Load() {
		err = s.shed()
	}
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		err = cmp.Or(err, half.CloseWrite())
	}
	return err
}

// Close closes the connection, with TLS's goodbye where that has not been said.
func (s *shedding) Close() error {
	if s.bareOut.Load() {
		return s.Conn.Close()
	}
	return s.tls.Close()
}

// SetWriteDeadline bounds writes.
func (s *shedding) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = t
	return s.Conn.SetWriteDeadline(t)
}

// SetDeadline bounds both directions.
func (s *shedding) SetDeadline(t time.Time) error {
	return errors.Join(s.Conn.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// NetConn returns what is beneath TLS, to be closed without a word.
func (s *shedding) NetConn() net.Conn { return s.Conn }

// records is what TLS reads from where it may be shed: it gives no byte from beyond the record that is being
// read, so that what follows the last one is still to be read.
type records struct {
	net.Conn
	open bool // nothing will be shed
	head [5]byte
	got  int // bytes of head
	left int // bytes of the record behind it
}

func (r *records) Read(p []byte) (int, error) {
	if r.open || len(p) == 0 {
		return r.Conn.Read(p)
	}
	if r.left > 0 {
		n, err := r.Conn.Read(p[:min(len(p), r.left)])
		r.left -= n
		return n, err
	}
	n, err := r.Conn.Read(p[:min(len(p), len(r.head)-r.got)])
	if r.got += copy(r.head[r.got:], p[:n]); r.got == len(r.head) {
		r.got, r.left = 0, int(binary.BigEndian.Uint16(r.head[3:]))
	}
	return n, err
}

// overRecords puts records beneath TLS that is to come.
func overRecords(nc net.Conn) net.Conn { return &records{Conn: nc} }

// mayShed returns the value that goes with an offer, where nc is TLS that can be shed.
func mayShed(nc net.Conn) (under *records, value string) {
	t, ok := nc.(*tls.Conn)
	if !ok {
		return nil, ""
	}
	if under, ok = t.NetConn().(*records); !ok || under.open {
		return nil, ""
	}
	state := t.ConnectionState()
	key, err := state.ExportKeyingMaterial(shedLabel, nil, 32)
	if err != nil { // TLS 1.2 without RFC 7627
		under.open = true
		return nil, ""
	}
	return under, base64.StdEncoding.EncodeToString(key)
}

// offerShed returns what goes with a request over nc, a connection that was dialled; empty: nothing.
func offerShed(nc net.Conn) string {
	under, value := mayShed(nc)
	if under == nil {
		return ""
	}
	at, err := netip.ParseAddrPort(under.RemoteAddr().String())
	if a := at.Addr().Unmap(); err == nil && (a.IsLoopback() || a.IsPrivate() || a.IsLinkLocalUnicast()) {
		return value
	}
	under.open = true
	return ""
}

// takesShed reports whether a request over nc, a connection that was accepted, comes with an offer that fits.
func takesShed(nc net.Conn, h http.Header) bool {
	under, value := mayShed(nc)
	if under == nil {
		return false
	}
	for _, offer := range h.Values(shedHeader) {
		if subtle.ConstantTimeCompare([]byte(offer), []byte(value)) == 1 {
			return true
		}
	}
	return false
}

// keepTLS says that the TLS of a connection is not shed: its records need no care.
func keepTLS(nc net.Conn) {
	if under, _ := mayShed(nc); under != nil {
		under.open = true
	}
}

// sheds returns the connection that nc goes on as, where an offer was made or taken over it.
func sheds(nc net.Conn) net.Conn {
	t, ok := nc.(*tls.Conn)
	if !ok {
		return nc
	}
	if under, ok := t.NetConn().(*records); ok && !under.open {
		return &shedding{Conn: under.Conn, tls: t}
	}
	return nc
}

// lead sheds TLS in the direction of who has offered it. An error stays with the connection.
func lead(nc net.Conn) net.Conn {
	nc = sheds(nc)
	if s, ok := nc.(*shedding); ok {
		_ = s.shed()
	}
	return nc
}

// socketOf returns what is beneath TLS.
func socketOf(nc net.Conn) net.Conn {
	if t, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = t.NetConn()
	}
	if r, ok := nc.(*records); ok {
		nc = r.Conn
	}
	return nc
}
