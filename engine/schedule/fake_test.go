package schedule

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"kvasir/engine/model"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("kvasir/kernels/cpu.(*team).help"))
}

const (
	fakeVocab   = 16
	fakeContext = 200
)

// fake is a backend whose logits are a hash of the tokens, and whose memory is counted as testBytes
// does.
type fake struct {
	t       *testing.T
	rows    int
	before  func(ctx context.Context, steps []*step) error // of each forward; may be nil
	after   func() error                                   // of each forward, when all is computed; may be nil
	fault   func(tokens []int32) error                     // of a sequence that has taken these; may be nil
	parting func()                                         // of each fork; may be nil
	making  func()                                         // of each resume; may be nil
	known   int                                            // tokens that every resume finds
	wanted  func() int                                     // flights; may be nil
	mark    func(context.Context, Class) context.Context   // may be nil
	watch   Watcher                                        // may be nil

	mu       sync.Mutex
	budget   int64
	used     int64
	batches  [][]int // tokens of each step
	sequence int     // alive
}

func (f *fake) bytes(tokens int) int64 { return testBytes(tokens) }

func (f *fake) room() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.budget - f.used
}

// take makes the memory of a sequence grow.
func (f *fake) take(bytes int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.used+bytes > f.budget {
		return fmt.Errorf("%w: %d of %d", model.ErrMemory, f.used, f.budget)
	}
	f.used += bytes
	return nil
}

func (f *fake) resume(tokens []int32) (sequence, error) {
	if f.making != nil {
		f.making()
	}
	s := &fakeSequence{f: f, tokens: slices.Clone(tokens[:min(f.known, len(tokens)-1)])}
	if err := f.take(testBytes(len(s.tokens))); err != nil {
		return nil, err
	}
	s.count(1)
	return s, nil
}

func (f *fake) forward(ctx context.Context, steps []*step) error {
	var sizes []int
	rows := 0
	for _, st := range steps {
		s := st.seq.(*fakeSequence)
		if s.busy.Swap(true) || s.freed.Load() || s.spoiled {
			f.t.Error("a sequence is in use, or freed, or spoiled")
		}
		sizes = append(sizes, len(st.Tokens))
		rows += len(st.Tokens)
	}
	if rows > f.rows {
		f.t.Errorf("a micro-batch of %d rows, want at most %d", rows, f.rows)
	}
	f.mu.Lock()
	f.batches = append(f.batches, sizes)
	f.mu.Unlock()
	defer func() {
		for _, st := range steps {
			st.seq.(*fakeSequence).busy.Store(false)
		}
	}()
	if f.before != nil {
		if err := f.before(ctx, steps); err != nil {
			return err
		}
	}
	for _, st := range steps {
		s := st.seq.(*fakeSequence)
		st.Err = f.take(testBytes(len(s.tokens)+len(st.Tokens)) - testBytes(len(s.tokens)))
		if st.Err != nil {
			continue
		}
		s.tokens = append(s.tokens, st.Tokens...)
		if f.fault != nil {
			if st.Err = f.fault(s.tokens); st.Err != nil {
				continue
			}
		}
		if st.Want == model.Last {
			st.Sink(fakeLogits(s.tokens))
		}
	}
	if f.after == nil {
		return nil
	}
	err := f.after()
	if err != nil {
		for _, st := range steps {
			st.seq.(*fakeSequence).spoiled = true
		}
	}
	return err
}

func fakeLogits(tokens []int32) []float32 {
	h := crc32.NewIEEE()
	for _, t := range tokens {
		_, _ = h.Write([]byte{byte(t)})
	}
	logits := make([]float32, fakeVocab)
	for i := range logits {
		_, _ = h.Write([]byte{1})
		logits[i] = float32(h.Sum32())
	}
	return logits
}

type fakeSequence struct {
	f       *fake
	tokens  []int32
	spoiled bool
	busy    atomic.Bool
	freed   atomic.Bool
}

func (s *fakeSequence) Len() int { return len(s.tokens) }

func (s *fakeSequence) count(n int) {
	s.f.mu.Lock()
	s.f.sequence += n
	s.f.mu.Unlock()
}

func (s *fakeSequence) fork() (sequence, error) {
	if s.f.parting != nil {
		s.f.parting()
	}
	if s.spoiled {
		s.f.t.Error("a spoiled sequence was forked")
	}
	if err := s.f.take(testBytes(len(s.tokens))); err != nil {
		return nil, err
	}
	s.count(1)
	return &fakeSequence{f: s.f, tokens: slices.Clone(s.tokens)}, nil
}

func (s *fakeSequence) Free() {
	if s.busy.Load() || s.freed.Swap(true) {
		s.f.t.Error("a sequence was freed in use, or twice")
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.used -= testBytes(len(s.tokens))
	s.f.sequence--
}

// newFake returns a scheduler on a fake, which is closed with the test. Memory is ample unless
// budget says how many bytes there are.
func newFake(t *testing.T, f *fake, l limits, retries int) *Scheduler {
	t.Helper()
	if l.rows == 0 {
		l.rows = 64
	}
	if l.flights == 0 {
		l.flights = 1
	}
	if l.sequences == 0 {
		l.sequences = 100
	}
	if l.waiting == 0 {
		l.waiting = 100
	}
	l.grow = 8 // so that memory runs out now and then
	f.t, f.rows = t, l.rows
	sh := shape{vocab: fakeVocab, context: fakeContext, budget: f.budget}
	if f.budget == 0 {
		f.budget = 1 << 40
	}
	s := start(f, sh, l, &Config{Retries: retries, Wanted: f.wanted, Mark: f.mark, Watch: f.watch})
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if f.used != 0 || f.sequence != 0 {
			t.Errorf("%d bytes and %d sequences were not freed", f.used, f.sequence)
		}
	})
	return s
}

// dice is a chooser that hashes the logits into a token, and all that it has seen into sum.
type dice struct {
	vocab, choice int
	seed          uint32
	ends          bool          // now and then a token is the last
	failAt        int           // position of an error, or 0
	hook          func(pos int) // may be nil

	busy atomic.Bool
	pos  int // expected next, once there was one
	sum  uint32
}

var errDice = errors.New("the dice fell off the table")

func (d *dice) Next(logits []float32, pos int) (int32, bool, error) {
	if d.busy.Swap(true) {
		panic("BUG: two calls at once")
	}
	defer d.busy.Store(false)
	if d.hook != nil {
		d.hook(pos)
	}
	if d.pos != 0 && pos != d.pos {
		return 0, false, fmt.Errorf("asked for position %d, want %d", pos, d.pos)
	}
	d.pos = pos + 1
	if pos == d.failAt {
		return 0, false, errDice
	}
	b := binary.LittleEndian.AppendUint32(nil, d.sum^d.seed)
	b = binary.LittleEndian.AppendUint32(b, uint32(pos<<8+d.choice))
	for i, v := range logits {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		logits[i] = float32(math.NaN()) // they may be changed
	}
	d.sum = crc32.ChecksumIEEE(b)
	return int32(d.sum>>8) % int32(d.vocab), d.ends && d.sum%16 == 0, nil
}

// ask is a request of a test, of which two that are equal have equal answers.
type ask struct {
	kind           int // its number among those of a test
	tokens         []int32
	limit, choices int
	seed           uint32
	ends           bool
	class          Class
}

func (a ask) request(vocab int) (Request, []*dice) {
	r := Request{Prompt: a.tokens, Limit: a.limit, Class: a.class}
	var all []*dice
	for i := range a.choices {
		d := &dice{vocab: vocab, choice: i, seed: a.seed, ends: a.ends}
		all = append(all, d)
		r.Choices = append(r.Choices, d)
	}
	return r, all
}

// answer is what came of it: the tokens and the checksum of each choice.
type answer struct {
	tokens [][]int32
	sums   []uint32
}

func (a answer) equal(b answer) bool {
	return slices.Equal(a.sums, b.sums) && slices.EqualFunc(a.tokens, b.tokens, slices.Equal[[]int32])
}

// alone is the dumb version of a scheduler: one choice after another, one token after another.
// logits returns those after the given tokens, of which all but the last n were given before.
func (a ask) alone(vocab, context int, logits func(tokens []int32, n int) []float32) answer {
	var all answer
	_, dice := a.request(vocab)
	for _, d := range dice {
		tokens, n := slices.Clone(a.tokens), len(a.tokens)
		for len(tokens) < min(len(a.tokens)+a.limit, context) {
			token, end, err := d.Next(logits(tokens, n), len(tokens))
			if err != nil {
				panic(err)
			}
			tokens, n = append(tokens, token), 1
			if end {
				break
			}
		}
		all.tokens = append(all.tokens, tokens[len(a.tokens):])
		all.sums = append(all.sums, d.sum)
	}
	return all
}

func fakeAlone(a ask) answer {
	return a.alone(fakeVocab, fakeContext, func(tokens []int32, _ int) []float32 { return fakeLogits(tokens) })
}

// prompt returns n tokens.
func prompt(n int) []int32 {
	p := make([]int32, n)
	for i := range p {
		p[i] = int32(i*i+n) % fakeVocab
	}
	return p
}

func submit(t *testing.T, s *Scheduler, r Request) *Stream {
	t.Helper()
	st, err := s.Submit(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// collect reads a stream to its end and checks that its events follow each other.
func collect(st *Stream, r Request) ([][]int32, error) {
	tokens := make([][]int32, len(r.Choices))
	over := make([]bool, len(r.Choices))
	for {
		e, err := st.Next(context.Background())
		if errors.Is(err, io.EOF) {
			if i := slices.Index(over, false); i >= 0 {
				return tokens, fmt.Errorf("choice %d has no end", i)
			}
			return tokens, nil
		}
		if err != nil {
			return tokens, err
		}
		if over[e.Choice] || e.Pos != len(r.Prompt)+len(tokens[e.Choice]) {
			return tokens, fmt.Errorf("choice %d: position %d after %d tokens, over %v", e.Choice, e.Pos, len(tokens[e.Choice]), over[e.Choice])
		}
		tokens[e.Choice] = append(tokens[e.Choice], e.Token)
		over[e.Choice] = e.Final != More
	}
}

// run submits an ask and waits for its answer.
func (a ask) run(t *testing.T, s *Scheduler) (answer, error) {
	t.Helper()
	r, dice := a.request(s.shape.vocab)
	r.Prompt = slices.Clone(r.Prompt)
	st := submit(t, s, r)
	for i := range r.Prompt { // it was copied
		r.Prompt[i] = -1
	}
	tokens, err := collect(st, r)
	got := answer{tokens: tokens}
	for _, d := range dice {
		got.sums = append(got.sums, d.sum)
	}
	return got, err
}
