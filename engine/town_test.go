package engine

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"kvasir/engine/ledger"
	"kvasir/engine/worker"
	"kvasir/internal/moe"
	"kvasir/wire/seal"
)

// townTime bounds what a town waits for.
const townTime = 3 * time.Minute

// townRhythm is how often its parties speak of work and pay.
var townRhythm = Rhythm{
	Report: 20 * time.Millisecond, Remind: 50 * time.Millisecond, Credit: 20 * time.Millisecond, Look: 5 * time.Millisecond,
	Retry: 20 * time.Millisecond,
}

// town is a hub, a gateway and a backbone of one home, each as its command makes it, in this process. The backbone
// can be stopped and started anew.
type town struct {
	t        *testing.T
	ctx      context.Context
	home     Home
	log      *said
	hub      *HubNode
	gateway  *GatewayNode
	backbone *Backbone
	audit    AuditOptions // of the backbone, from its next start on
}

func newTown(t *testing.T) *town { return newTownAt(t, t.TempDir()) }

// newTownAt is newTown in a folder.
func newTownAt(t *testing.T, folder string) *town {
	ctx, cancel := context.WithTimeout(context.Background(), townTime)
	v := &town{t: t, ctx: ctx, home: Home(folder), log: &said{}, audit: quickAudit}
	_, err := v.home.NewRoot()
	v.must(err)
	v.hub, err = NewHubNode(HubOptions{Home: v.home, Listen: "127.0.0.1:0", Log: v.logger()})
	v.must(err)
	v.gateway, err = NewGatewayNode(GatewayOptions{
		Home: v.home, Listen: "127.0.0.1:0", Hubs: []HubRef{v.hub.Ref}, Log: v.logger(), Rhythm: townRhythm,
	})
	v.must(err)
	run, end := context.WithCancel(ctx)
	var group sync.WaitGroup
	for _, f := range []func(context.Context) error{v.hub.Run, v.gateway.Run} {
		group.Go(func() {
			if err := f(run); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		v.stop()
		end()
		group.Wait()
		cancel()
	})
	v.start()
	return v
}

func (v *town) must(err error) {
	v.t.Helper()
	if err != nil {
		v.t.Fatalf("%v; said:\n%s", err, v.log)
	}
}

func (v *town) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(v.log, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// start starts the backbone.
func (v *town) start() {
	v.t.Helper()
	var err error
	v.backbone, err = NewBackbone(BackboneOptions{
		Home: v.home, Hubs: []HubRef{v.hub.Ref}, Gateway: v.gateway.Addr, Workers: 8, Log: v.logger(), Rhythm: townRhythm,
		Audit: v.audit,
	})
	v.must(err)
}

// quickAudit judges at once.
var quickAudit = AuditOptions{Share: 1, Hold: 5 * time.Millisecond}

// kill ends the backbone, as far as its disk and its hub see that, at once: nothing is signed any more.
func (v *town) kill() {
	v.must(v.backbone.outbox.Close())
	v.stop()
}

// stop stops it, in order.
func (v *town) stop() {
	if v.backbone != nil {
		v.backbone.Close()
		v.backbone = nil
	}
}

// friend is a worker of a town.
type friend struct {
	cancel context.CancelFunc
	ended  chan struct{} // closed when it has, and why holds
	why    error         // what Run returned
}

// stop ends it in order.
func (f *friend) stop() error {
	f.cancel()
	<-f.ended
	return f.why
}

// worker starts a worker, whose answers wrap may change. It ends with the town at last.
func (v *town) worker(key seal.Key, wrap func(moe.Experts) moe.Experts) *friend {
	v.t.Helper()
	return v.workerAs(worker.Config{Key: key, Wrap: wrap})
}

// workerAs starts a worker with more that is not as usual.
func (v *town) workerAs(c worker.Config) *friend {
	v.t.Helper()
	ctx, cancel := context.WithCancel(v.ctx)
	f := &friend{cancel: cancel, ended: make(chan struct{})}
	c.Join, c.Model, c.Backoff, c.Log = v.token(), v.backbone.local.Model(), townRhythm.backoff(), v.logger()
	go func() { // ends with ctx
		defer close(f.ended)
		f.why = worker.Run(ctx, c)
	}()
	v.t.Cleanup(func() { _ = f.stop() })
	return f
}

// token makes a token of one worker's own: all who have one are convicted together.
func (v *town) token() seal.Join {
	v.t.Helper()
	root, err := v.home.NewRoot()
	v.must(err)
	j, err := v.home.CreateToken(root, v.gateway.Addr, seal.Token{Role: seal.Worker, Hub: v.hub.ID()})
	v.must(err)
	return j
}

// until waits for something.
func (v *town) until(what string, f func() bool) {
	v.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-v.ctx.Done():
			v.t.Fatalf("not so within %v: %s; said:\n%s", townTime, what, v.log)
		}
	}
}

// find returns a worker that is here, or nil.
func (v *town) find(key seal.Key) *WorkerStats {
	for _, w := range v.backbone.Workers() {
		if w.Here && w.Key == key.Public() {
			return &w
		}
	}
	return nil
}

// arrives waits until a worker is here, and holds something.
func (v *town) arrives(key seal.Key) {
	v.t.Helper()
	v.until("a worker comes", func() bool { w := v.find(key); return w != nil && w.Holds != "" })
}

// generate has the workers work.
func (v *town) generate(tokens, choices int) {
	v.t.Helper()
	req := Request{Prompt: "There was once", Tokens: tokens, Choices: choices}
	_, err := v.backbone.Engine().Generate(v.ctx, req, func(Piece) error { return nil })
	v.must(err)
}

func (v *town) balance(key seal.Key) ledger.Balance {
	v.t.Helper()
	b, err := v.gateway.wallets.wallet.Balance(v.ctx, key.Public())
	v.must(err)
	return b
}

// picks is what the backbone has asked of a worker, and got.
func (v *town) picks(key seal.Key) (n int64) {
	for _, w := range v.backbone.Workers() {
		if w.Key == key.Public() {
			n += w.Picks
		}
	}
	return n
}

// verify checks all the books.
func (v *town) verify() {
	v.t.Helper()
	v.must(v.gateway.wallets.wallet.Verify(v.ctx))
}

// said is what was logged.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// count is in how many lines something was said.
func (s *said) count(text string) int { return strings.Count(s.String(), text) }

// wrong answers a row wrong in every batch.
func wrong(x moe.Experts) moe.Experts {
	return forward(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
		err := x.Forward(ctx, b, out)
		if err == nil {
			out.Row(0)[7] ^= 1
		}
		return err
	})
}

type forward func(ctx context.Context, b *moe.Batch, out *moe.Partials) error

func (f forward) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	return f(ctx, b, out)
}
