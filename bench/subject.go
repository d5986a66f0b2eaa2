package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"kvasir/internal/moe"
	"kvasir/kernels/cpu"
	"kvasir/kernels/matmul"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
)

// distinct is how many experts are made. The others are repacked from the same bytes to places of their
// own, which saves time and shows in no figure.
const distinct = 8

// readLeast is the fewest bytes of a layer that are worth reading again and again: less stays in a cache.
const readLeast = 256 << 20

// subject is a layer that is measured. It has a backend of its own, so that nothing keeps its memory when
// it is closed.
type subject struct {
	format quant.Format
	kernel variant.Variant
	dense  bool

	backend *cpu.Backend
	arena   *cpu.Arena
	layer   *cpu.Layer
	expert  int // bytes of one, as they are read
	read    bool

	uniform, hot *pool // hot: nil where there is none
	answer       moe.Partials
	seen         []bool // of every expert
}

// pool is rows with their answers. A point of fewer rows takes the next ones every time, so that it reads
// other experts every time.
type pool struct {
	all  *moe.Batch
	want moe.Partials
	part *moe.Batch // the rows whose turn it is: all, or as many as the point has
	at   int        // the first of them
	rows int        // of the point
}

// newSubject makes the layer of a point and has it compute the answers that all others must equal, after
// comparing some with the definition.
func (k Kernels) newSubject(ctx context.Context, p *point, threads int) (*subject, error) {
	dense := p.picks == picksDense
	if dense {
		k.Experts, k.TopK, k.Batch = 1, 1, p.rows
	}
	s, reference, err := k.newBare(p.format, p.kernel, threads)
	if err != nil {
		return nil, err
	}
	s.dense, s.read = dense, !dense && k.Experts*s.expert >= readLeast
	if s.uniform, err = k.newPool(ctx, s, reference, uniform(k.Experts, k.TopK)); err == nil && k.hot(p) {
		s.hot, err = k.newPool(ctx, s, reference, oneHot(k.Experts, k.TopK, hotRows(k.Batch)))
	}
	if err != nil {
		s.close()
		return nil, err
	}
	runtime.GC() // what the weights were made of
	return s, nil
}

// newBare makes a layer without rows, and returns the definition of it too.
func (k Kernels) newBare(f quant.Format, v variant.Variant, threads int) (*subject, *ref.Layer, error) {
	reference, err := k.reference(f)
	if err != nil {
		return nil, nil, err
	}
	s := &subject{format: f, kernel: v, backend: cpu.New(v, threads), arena: cpu.NewArena()}
	if s.layer, err = s.backend.NewLayer(s.arena, cpu.From(reference)); err != nil {
		s.close()
		return nil, nil, err
	}
	s.seen = make([]bool, k.Experts)
	s.expert = expertBytes(reference.Experts[0], v)
	return s, reference, nil
}

// hot reports whether the layer of a point is measured with one hot expert too.
func (k Kernels) hot(p *point) bool {
	return p.format == quant.Q4K && k.Experts > k.TopK && k.Batch > 1
}

// hotRows is how many rows pick the hot expert: 400 of 512.
func hotRows(rows int) int { return max(1, rows*25/32) }

// close gives the layer up.
func (s *subject) close() {
	if s == nil {
		return
	}
	s.backend.Close()
	*s = subject{}
	runtime.GC() // the arena goes back to the system
}

// reference returns the layer in the form in which the definition computes it.
func (k Kernels) reference(f quant.Format) (*ref.Layer, error) {
	l := &ref.Layer{Exponent: ref.DefaultExponent}
	for i := range k.Experts {
		if i >= distinct {
			l.Experts = append(l.Experts, l.Experts[i%distinct])
			continue
		}
		e := &ref.Expert{}
		for j, m := range []struct {
			to      *ref.Matrix
			in, out int
		}{{&e.Gate, k.Hidden, k.FFN}, {&e.Up, k.Hidden, k.FFN}, {&e.Down, k.FFN, k.Hidden}} {
			n, err := f.RowBytes(m.in)
			if err != nil {
				return nil, err
			}
			data := make([]byte, n*m.out)
			quant.Synthetic(data, f, k.Seed+uint64(3*i+j))
			if *m.to, err = ref.NewMatrix(f, m.in, m.out, data); err != nil {
				return nil, err
			}
		}
		l.Experts = append(l.Experts, e)
	}
	return l, nil
}

// expertBytes is what computing with an expert reads of it.
func expertBytes(e *ref.Expert, v variant.Variant) int {
	sum := 0
	for _, m := range []*ref.Matrix{&e.Gate, &e.Up, &e.Down} {
		n, err := matmul.PackedBytes(m.Format, m.In, m.Out)
		if err != nil || matmul.For(v) == nil {
			n = len(m.Data) // not repacked
		}
		sum += n
	}
	return sum
}

// newPool makes rows and computes their answers.
func (k Kernels) newPool(ctx context.Context, s *subject, reference *ref.Layer, pick picker) (*pool, error) {
	all, err := makeRows(moe.Shape{Hidden: k.Hidden, Format: s.layer.Format()}, k.Batch, k.Seed, pick)
	if err != nil {
		return nil, err
	}
	q := &pool{all: all}
	if err := s.layer.Forward(ctx, all, &q.want); err != nil {
		return nil, err
	}
	return q, q.check(ctx, reference)
}

// checked lists rows whose answers are compared with the definition's, of so many.
func checked(rows int) []int { return slices.Compact([]int{0, rows / 2, rows - 1}) }

// check compares some answers with the definition, bit for bit.
func (q *pool) check(ctx context.Context, reference *ref.Layer) error {
	one, err := q.empty(1)
	if err != nil {
		return err
	}
	var want moe.Partials
	for _, r := range checked(q.all.Rows) {
		copyRows(one, q.all, r, r+1)
		if err := reference.Forward(ctx, one, &want); err != nil {
			return err
		}
		if want.Status[0] != moe.OK {
			return fmt.Errorf("row %d, %s: %w", r, want.Status[0], errFaulted)
		}
		if !q.same(&want, r) {
			return fmt.Errorf("%w: row %d is not what the definition makes of it", ErrBits, r)
		}
	}
	return sound(&q.want)
}

// same reports whether got are the answers of the rows from lo on.
func (q *pool) same(got *moe.Partials, lo int) bool {
	hi := lo + got.Rows
	return got.Hidden == q.want.Hidden && hi <= q.want.Rows &&
		slices.Equal(got.Status, q.want.Status[lo:hi]) &&
		slices.Equal(got.Sum, q.want.Sum[lo*got.Hidden:hi*got.Hidden])
}

func (q *pool) empty(rows int) (*moe.Batch, error) {
	return moe.NewBatch(q.all.Shape, rows, rows*len(q.all.Expert)/q.all.Rows)
}

// use has the pool give so many rows at a time.
func (q *pool) use(rows int) (err error) {
	q.at, q.rows, q.part = 0, rows, q.all
	if rows < q.all.Rows {
		q.part, err = q.empty(rows)
	}
	return err
}

// turn goes on to the next rows.
func (q *pool) turn() {
	if q.part == q.all {
		return
	}
	if q.at += q.rows; q.at+q.rows > q.all.Rows {
		q.at = 0
	}
	copyRows(q.part, q.all, q.at, q.at+q.rows)
}

// touched counts the experts that a batch picks.
func (s *subject) touched(b *moe.Batch) int {
	clear(s.seen)
	n := 0
	for _, e := range b.Expert {
		if !s.seen[e] {
			s.seen[e] = true
			n++
		}
	}
	return n
}

// once computes the next rows of a pool and returns how long it took.
func (s *subject) once(ctx context.Context, q *pool) (time.Duration, error) {
	q.turn()
	start := time.Now()
	err := s.layer.Forward(ctx, q.part, &s.answer)
	return time.Since(start), err
}
