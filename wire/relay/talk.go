package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"kvasir/wire/seal"
)

// Kinds of messages on a control connection. Unknown kinds are skipped.
const (
	msgHello    = "hello"    // hub, first: its id
	msgPing     = "ping"     // either, every Limits.Wait; any message is a sign of life
	msgWant     = "want"     // backbone: how many workers it wants, those it has included
	msgOffer    = "offer"    // hub: a session with a worker; dial for it with the nonce
	msgWithdraw = "withdraw" // hub: the offer does not stand any more
	msgDecline  = "decline"  // backbone: not this worker, because of the reason
	msgReport   = "report"   // backbone: number and body
	msgAck      = "ack"      // hub: the report of that number is taken, or not, because of the reason
	msgDrain    = "drain"    // hub: it will end; it takes nobody, and sessions have until back
)

// message is what hub and backbone say to each other on a control connection: JSON behind its length in
// 4 bytes, big-endian, at most maxTalk.
type message struct {
	Type    string      `json:"type"`
	Hub     string      `json:"hub,omitempty"`
	Want    Want        `json:"want,omitzero"`
	Session string      `json:"session,omitempty"`
	Worker  *seal.Proof `json:"worker,omitempty"`
	Model   string      `json:"model,omitempty"`
	Nonce   string      `json:"nonce,omitempty"`
	Reason  string      `json:"reason,omitempty"`
	Number  uint64      `json:"number,omitempty"`
	Body    []byte      `json:"body,omitempty"`
	Seconds int         `json:"seconds,omitempty"`
}

// Want is what a backbone asks of a hub.
type Want struct {
	Model   string `json:"model,omitempty"` // hash; workers that have another are not offered
	Workers int    `json:"workers"`         // sessions at this hub, those that stand included
}

const (
	maxTalk    = 256 << 10 // bytes of a message
	talkQueue  = 64        // messages that wait to be sent
	talkWrite  = 10 * time.Second
	maxWorkers = 1 << 16
	maxModel   = 128 // characters
)

// MaxReport is the longest body of a report, in bytes.
const MaxReport = 128 << 10

// A talk is one side of a control connection.
type talk struct {
	nc   net.Conn
	rest []byte // read before
	o    Limits
	out  chan message

	once sync.Once
	dead chan struct{}
	why  error // set in once
}

func newTalk(nc net.Conn, rest []byte, o Limits) *talk {
	return &talk{nc: nc, rest: rest, o: o, out: make(chan message, talkQueue), dead: make(chan struct{})}
}

// send leaves m to be sent. It reports false when the queue is full, and never waits.
func (t *talk) send(m message) bool {
	select {
	case t.out <- m:
		return true
	default:
		return false
	}
}

// end makes run return err, if it has not returned.
func (t *talk) end(err error) {
	t.once.Do(func() {
		t.why = err
		close(t.dead)
		sever(t.nc)
	})
}

// run reads messages and hands them to take until an error of either, end or ctx. It returns when its
// writer has ended too.
func (t *talk) run(ctx context.Context, take func(message) error) error {
	stop := context.AfterFunc(ctx, func() { t.end(ctx.Err()) })
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		t.end(t.write())
	}()
	t.end(t.read(take))
	<-done
	return t.why
}

func (t *talk) write() error {
	tick := time.NewTicker(t.o.Wait)
	defer tick.Stop()
	for {
		m := message{Type: msgPing}
		select {
		case <-t.dead:
			return nil
		case m = <-t.out:
		case <-tick.C:
		}
		body, err := json.Marshal(m)
		if err != nil {
			return err
		}
		if len(body) > maxTalk {
			return fmt.Errorf("%w: %s of %d bytes to send", ErrProtocol, m.Type, len(body))
		}
		if err := t.nc.SetWriteDeadline(time.Now().Add(talkWrite)); err != nil {
			return err
		}
		if _, err := t.nc.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)); err != nil {
			return err
		}
	}
}

func (t *talk) read(take func(message) error) error {
	r := io.MultiReader(bytes.NewReader(t.rest), t.nc)
	for {
		if err := t.nc.SetReadDeadline(time.Now().Add(t.o.Silent)); err != nil {
			return err
		}
		m, err := readMessage(r)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("control connection: no sign of life for %v", t.o.Silent)
		}
		if err != nil {
			return err
		}
		if err := take(m); err != nil {
			return err
		}
	}
}

func readMessage(r io.Reader) (m message, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return m, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxTalk {
		return m, fmt.Errorf("%w: message of %d bytes, limit %d", ErrProtocol, n, maxTalk)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return m, err
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return m, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return m, nil
}
