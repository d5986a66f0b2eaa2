package kerneltest

import (
	"fmt"
	"hash/fnv"
	"testing"

	"kvasir/kernels/ref"
)

// genes are bytes that decide what a random case is like. When they are used up, everything is its
// first choice.
type genes []byte

func (g *genes) intn(n int) int {
	v := 0
	for range 2 {
		if len(*g) > 0 {
			v = v<<8 | int((*g)[0])
			*g = (*g)[1:]
		}
	}
	return v % n
}

// geneBytes is how many bytes of genes are used.
const geneBytes = 64

// randomCase runs one batch and one product that data decides on.
func randomCase(t testing.TB, b Backend, data []byte) error {
	g := genes(data)
	h := fnv.New64a()
	_, _ = h.Write(data) // never fails
	s := source(h.Sum64())

	list := triplesOf(b, true)
	tr := list[g.intn(len(list))]
	c := scene{
		triple:   tr,
		hidden:   sizeFor(1+g.intn(300), tr.gate, tr.up),
		ffn:      sizeFor(1+g.intn(300), tr.down),
		experts:  1 + g.intn(6),
		exponent: ref.MinExponent + g.intn(ref.MaxExponent-ref.MinExponent+1),
	}
	for range c.experts {
		c.weights = append(c.weights, weights{digits(g.intn(int(digitKinds))), scales(g.intn(int(scaleKinds)))})
	}
	rows := crowd{rows: 1 + g.intn(40), topK: 1 + g.intn(c.experts), level: g.intn(3) > 0}
	for range 1 + g.intn(4) {
		rows.kinds = append(rows.kinds, rowKind(g.intn(int(rowKinds))))
	}
	l := c.layer(&s)
	batch := rows.batch(l, &s)
	for range g.intn(4) { // odd ones among them
		odd := oddValues(batch.Format)
		spoil(batch.Row(g.intn(batch.Rows)), odd[g.intn(len(odd))], &s)
	}
	if err := agree(b.Layer(t, l), l, batch, false); err != nil {
		return fmt.Errorf("%s, weights %v, exponent %d, rows %v: %w", c, c.weights, c.exponent, rows.kinds, err)
	}
	if b.MatMul == nil {
		return nil
	}
	f := b.formats()[g.intn(len(b.formats()))]
	w := weights{digits(g.intn(int(digitKinds))), scales(g.intn(int(scaleKinds)))}
	m := w.matrix(f, sizeFor(1+g.intn(600), f), 1+g.intn(40), &s)
	formats := b.rowFormats(f)
	x := rowsOf(formats[g.intn(len(formats))], 1+g.intn(40), m.In, &s, rows.kinds...)
	if err := agreeMatMul(b.MatMul(t, m), m, x, &s); err != nil {
		return fmt.Errorf("%s, rows %v: %w", w, rows.kinds, err)
	}
	return nil
}

// randomSteps runs a number of random cases.
func randomSteps(b Backend, short bool) []step {
	count := 100
	if short {
		count = 15
	}
	var steps []step
	for i := 0; i < count; i += count / 5 {
		steps = append(steps, step{fmt.Sprintf("cases %d", i), func(t testing.TB, s *source) error {
			for range count / 5 {
				if err := randomCase(t, b, s.bytes(geneBytes)); err != nil {
					return err
				}
			}
			return nil
		}})
	}
	return steps
}

func (s *source) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(s.next())
	}
	return b
}

// Fuzz derives formats, shapes, weights, rows and picks from the bytes that f makes, and compares.
// Run it by count: go test -fuzz=FuzzX -fuzztime=1000x.
func Fuzz(f *testing.F, b Backend) {
	s := source(1)
	f.Add([]byte(nil))
	for range 8 {
		f.Add(s.bytes(geneBytes))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4*geneBytes {
			t.Skip("more bytes than a case has use for")
		}
		if err := randomCase(t, b, data); err != nil {
			t.Fatalf("%s: %v", b.Name, err)
		}
	})
}
