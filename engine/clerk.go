package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"kvasir/engine/ledger"
	"kvasir/wire"
	"kvasir/wire/relay"
	"kvasir/wire/seal"
)

const (
	// clerkCall is how long one item may take.
	clerkCall = 30 * time.Second
	// clerkLast is how long it may take at the end.
	clerkLast = 5 * time.Second
	// clerkQueue is how many receipts may wait for the disk.
	clerkQueue = 64
)

// brought is what a worker gives to a hub, as JSON; ledger.Given is the answer.
type brought struct {
	Grant     string `json:"grant"` // of the backbone
	Report    []byte `json:"report"`
	Statement []byte `json:"statement"`
}

// saying is a connection to a hub's ledger, such as relay.Statements.
type saying interface {
	Say(ctx context.Context, body []byte) ([]byte, error)
	Close()
}

// clerk answers what backbones sign for a worker: it agrees or disputes, keeps both on the disk, and brings
// them to the hub by a way that no backbone sees, until a gateway has read them.
type clerk struct {
	key    seal.Key
	hub    string // id, or "" where the token names none
	outbox *ledger.Outbox
	dial   func(context.Context) (saying, error)
	picks  func() []int64 // that the worker has answered since it was started, by layer
	now    func() time.Time
	log    *slog.Logger
	queue  chan ledger.Item
	every  time.Duration // between two ways to the hub
	kept   func()        // is told when all that has come is on the disk; may be nil
	unkept []ledger.Item // that the disk has refused, clerkQueue at most; of run

	mu       sync.Mutex
	session  string
	witness  *ledger.Witness // nil: no report of the session has come
	before   []int64         // picks when it began
	disputed int64
	trouble  string // what is wrong with the report that was disputed last
	waiting  int
	held     ledger.NKVR // that gateways hold back, when the hub was asked last
}

// begin says that a session begins.
func (c *clerk) begin(session string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session, c.witness, c.before = session, nil, c.picks()
}

// take makes a statement on a report. It does not wait for anything.
func (c *clerk) take(backbone seal.Grant, session string, r wire.Receipt) {
	item, err := c.state(backbone, session, r)
	if err != nil {
		c.log.Warn("a receipt is not what it should be", "session", session, "error", err)
		return
	}
	if item.Report == nil {
		return
	}
	select {
	case c.queue <- item:
	default:
		c.log.Warn("a receipt is not kept: the disk is too slow", "session", session)
	}
}

func (c *clerk) state(backbone seal.Grant, session string, r wire.Receipt) (item ledger.Item, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if session != c.session {
		return ledger.Item{}, nil // the session before
	}
	if c.witness == nil {
		id, err := ledger.ParseSessionID(session)
		if err != nil {
			return ledger.Item{}, err
		}
		c.witness = ledger.NewWitness(c.key, id, backbone.Key)
	}
	by := c.picks()
	for i, n := range c.before {
		by[i] -= n
	}
	statement, opinion, err := c.witness.State(r.Signed, by, c.now())
	if opinion != 0 && opinion != ledger.Agree {
		c.disputed++
		c.trouble = opinion.String()
		c.log.Warn("a receipt is disputed; the gateway is told", "session", session, "report", r.Sequence, "why", c.trouble)
	}
	if err != nil || statement == nil {
		return ledger.Item{}, err
	}
	return ledger.Item{Hub: c.hub, Grant: backbone, Report: append([]byte(nil), r.Signed...), Statement: statement}, nil
}

// run keeps and brings until ctx ends, and once more then.
func (c *clerk) run(ctx context.Context) {
	timer := time.NewTimer(rand.N(c.every)) //nolint:gosec // many workers that start at once are to come one by one
	defer timer.Stop()
	said := ""
	for ctx.Err() == nil {
		select {
		case i := <-c.queue:
			c.keep(ctx, i)
		case <-timer.C:
			c.keep(ctx)
			said = c.bring(ctx, said)
			timer.Reset(c.every)
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), clerkLast)
	defer cancel()
	for len(c.queue) > 0 {
		c.keep(last, <-c.queue)
	}
	c.keep(last)
	c.bring(last, said)
}

// keep puts items on the disk, after those that it has refused before. It is not given up when ctx ends
// meanwhile. What the disk refuses, of which the outbox tells, waits.
func (c *clerk) keep(ctx context.Context, items ...ledger.Item) {
	c.unkept = append(c.unkept, items...)
	stored := false
	for len(c.unkept) > 0 {
		err := c.outbox.Put(context.WithoutCancel(ctx), c.unkept[0])
		if errors.Is(err, ledger.ErrUnwritten) {
			if over := len(c.unkept) - clerkQueue; over > 0 {
				c.log.Warn("receipts are not kept: the disk refuses them for too long", "receipts", over)
				c.unkept = c.unkept[over:]
			}
			break
		}
		if err != nil {
			c.log.Error("a receipt cannot be kept", "error", err)
		}
		stored = stored || err == nil
		c.unkept = c.unkept[1:]
	}
	if stored && len(c.unkept) == 0 && c.kept != nil {
		c.kept()
	}
	c.count(ctx)
}

func (c *clerk) count(ctx context.Context) int {
	n, err := c.outbox.Waiting(context.WithoutCancel(ctx))
	if err != nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = n
	return n
}

// bring brings what there is to the hub. It returns what went wrong, which is said once.
func (c *clerk) bring(ctx context.Context, said string) string {
	if c.count(ctx) == 0 {
		return said
	}
	s, err := c.dial(ctx)
	if err == nil {
		err = c.outbox.Flush(ctx, c.hub, func(ctx context.Context, i ledger.Item) (ledger.Given, error) {
			g, err := giveItem(ctx, s, i)
			if err == nil && g.Refused == "" {
				c.mu.Lock()
				c.held = ledger.NKVR(max(0, g.Held))
				c.mu.Unlock()
			}
			return g, err
		})
		s.Close()
	}
	c.count(ctx)
	if err == nil || ctx.Err() != nil {
		return ""
	}
	if text := err.Error(); text != said {
		c.log.Info("the hub has not taken all that was said of receipts; they are kept, and brought again", "why", err)
		said = text
	}
	return said
}

func giveItem(ctx context.Context, s saying, i ledger.Item) (g ledger.Given, err error) {
	ctx, cancel := context.WithTimeout(ctx, clerkCall)
	defer cancel()
	body, err := json.Marshal(brought{i.Grant.String(), i.Report, i.Statement})
	if err != nil {
		return g, err
	}
	answer, err := s.Say(ctx, body)
	if err == nil {
		err = json.Unmarshal(answer, &g)
	}
	return g, err
}

// standing is what a clerk tells for the screen.
func (c *clerk) standing() (disputed int64, trouble string, waiting int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.disputed, c.trouble, c.waiting
}

// heldBack is what gateways hold back.
func (c *clerk) heldBack() ledger.NKVR {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

// dialStatements is clerk.dial for a real hub.
func dialStatements(w relay.WorkerConfig) func(context.Context) (saying, error) {
	return func(ctx context.Context) (saying, error) {
		ctx, cancel := context.WithTimeout(ctx, clerkCall)
		defer cancel()
		s, err := relay.DialStatements(ctx, w)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
}

// hear is a hub's side of giveItem, for the worker that has proved its key. An error beside an answer says that what
// was brought will never be taken.
func hear(ctx context.Context, books *ledger.Hub, root seal.PublicKey, p seal.Proof, body []byte) ([]byte, error) {
	var b brought
	if err := json.Unmarshal(body, &b); err != nil {
		return nil, fmt.Errorf("not a statement: %w", err)
	}
	r, err := ledger.Parse(b.Report)
	if err == nil && r.Worker != p.Key {
		err = fmt.Errorf("%w: the report is about another worker", ledger.ErrWrongSession)
	}
	var g seal.Grant
	if err == nil {
		g, err = seal.ParseGrant(b.Grant)
	}
	if err == nil {
		err = g.Verify(root)
	}
	if err == nil && (g.Role != seal.Backbone || g.Key != r.Backbone) {
		err = fmt.Errorf("%w: the grant is for another", ledger.ErrNotGranted)
	}
	if err != nil {
		return given(ledger.Given{Refused: err.Error()})
	}
	got, err := books.Receive(ctx, ledger.Item{Grant: g, Report: b.Report, Statement: b.Statement})
	if err != nil {
		return nil, err
	}
	return given(got)
}

// given is a hub's answer, and an error beside it where it says that something will never be taken.
func given(g ledger.Given) ([]byte, error) {
	answer, err := json.Marshal(g)
	if err == nil && g.Refused != "" {
		err = errors.New(g.Refused)
	}
	return answer, err
}
