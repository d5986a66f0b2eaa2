package relay

import (
	"strings"
	"sync"
	"time"

	"kvasir/wire/seal"
)

// Session is a worker and a backbone that a hub has paired.
type Session struct {
	ID       string
	Worker   seal.PublicKey
	Token    seal.TokenID // that the worker has shown
	Backbone seal.Grant   // its key, and that the root has granted it
	Model    string       // that the backbone serves
	Began    time.Time
}

// Meter is told what goes through a hub. Calls for one session come one after the other, those for
// different sessions at once. They hold up the session, so they are to be short.
type Meter interface {
	// Begin is called before the first byte.
	Begin(s Session)
	// Count is told the totals so far, of bytes as they are on the wire within outer TLS. A total is at
	// most a second old while bytes flow.
	Count(s Session, toBackbone, toWorker uint64)
	// End is told the totals at the end. err is nil when both sides ended in order.
	End(s Session, toBackbone, toWorker uint64, err error)
}

type noMeter struct{}

func (noMeter) Begin(Session)                      {}
func (noMeter) Count(Session, uint64, uint64)      {}
func (noMeter) End(Session, uint64, uint64, error) {}

// metered keeps the counts of one session in their order.
type metered struct {
	m Meter
	s Session

	mu       sync.Mutex // held while m is told
	up, down uint64     // that it was told
}

func (m *metered) count(up, down uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	up, down = max(up, m.up), max(down, m.down) // the other direction may have looked later
	if up != m.up || down != m.down {
		m.up, m.down = up, down
		m.m.Count(m.s, up, down)
	}
}

// clip makes s fit into n bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
