package kerneltest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// invarianceSteps cuts and turns one batch in every way: the bits stay.
func invarianceSteps(b Backend, short bool) []step {
	rows := crowd{rows: 37, topK: 3, kinds: []rowKind{activations, activations, outliers, hugeScales}}
	ways := []struct {
		name string
		run  func(t testing.TB, b Backend, i *instance) error
	}{{"splits", splits}, {"order of rows", rowOrders}, {"order of picks", pickOrders}, {"concurrent", concurrent},
		{"threads", threads}}
	var steps []step
	for i, tr := range fewTriples(b, 99, 2) {
		c := smallScene(tr, 96, 5)
		if short {
			if i >= 2 {
				break
			}
			rows.rows, rows.topK = 11, 2
		}
		for _, w := range ways {
			steps = append(steps, step{w.name + " " + tr.String(), func(t testing.TB, s *source) error {
				in, err := newInstance(c, rows, s)
				if err == nil {
					err = w.run(t, b, in)
				}
				if err != nil {
					return fmt.Errorf("%s, %d rows: %w", c, rows.rows, err)
				}
				return nil
			}})
		}
	}
	return steps
}

// instance is a batch with what it comes to.
type instance struct {
	layer *ref.Layer
	batch *moe.Batch
	want  *moe.Partials
	s     *source
}

func newInstance(c scene, rows crowd, s *source) (*instance, error) {
	l := c.layer(s)
	batch := rows.batch(l, s)
	w, err := want(l, batch)
	return &instance{l, batch, w, s}, err
}

// runPart runs some rows of the batch, in the order given.
func (in *instance) runPart(x moe.Experts, rows []int) error {
	return agreeWith(x, part(in.batch, rows), partOf(in.want, rows))
}

func splits(t testing.TB, b Backend, in *instance) error {
	x, n := b.Layer(t, in.layer), in.batch.Rows
	for _, at := range []int{0, 1, 7, 8, 16, n / 2, n - 1} {
		at = min(at, n)
		for _, rows := range [][]int{numbers(0, at), numbers(at, n)} {
			if len(rows) == 0 {
				continue
			}
			if err := in.runPart(x, rows); err != nil {
				return fmt.Errorf("rows %d to %d of the batch alone: %w", rows[0], rows[len(rows)-1], err)
			}
		}
	}
	for r := range n {
		if err := in.runPart(x, []int{r}); err != nil {
			return fmt.Errorf("row %d alone: %w", r, err)
		}
	}
	return nil
}

func rowOrders(t testing.TB, b Backend, in *instance) error {
	x := b.Layer(t, in.layer)
	for range 3 {
		order := in.s.permutation(in.batch.Rows)
		if err := in.runPart(x, order); err != nil {
			return fmt.Errorf("rows in the order %d: %w", order, err)
		}
	}
	for _, r := range []int{0, in.batch.Rows - 1} { // a row many times
		if err := in.runPart(x, slices.Repeat([]int{r}, 11)); err != nil {
			return fmt.Errorf("row %d eleven times: %w", r, err)
		}
	}
	return nil
}

func pickOrders(t testing.TB, b Backend, in *instance) error {
	x := b.Layer(t, in.layer)
	for range 3 {
		for r := range in.batch.Rows {
			expert, weight := in.batch.Picks(r) // views
			for i, j := range in.s.permutation(len(expert)) {
				expert[i], expert[j] = expert[j], expert[i]
				weight[i], weight[j] = weight[j], weight[i]
			}
		}
		if err := agreeWith(x, in.batch, in.want); err != nil {
			return fmt.Errorf("picks in another order: %w", err)
		}
	}
	return nil
}

// concurrent runs different batches at once on one executor.
func concurrent(t testing.TB, b Backend, in *instance) error {
	x, n := b.Layer(t, in.layer), in.batch.Rows
	const callers = 5
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		rows := numbers(i*n/callers, n)
		p, w := part(in.batch, rows), partOf(in.want, rows)
		wg.Go(func() {
			out := stale(p)
			for range 3 {
				if err := x.Forward(context.Background(), p, out); err != nil {
					errs[i] = err
					return
				}
				if err := samePartials(out, w); err != nil {
					errs[i] = fmt.Errorf("%d callers at once: %w", callers, err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// threads changes GOMAXPROCS, and the number of threads where the backend has such a choice.
func threads(t testing.TB, b Backend, in *instance) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for n := 1; n <= 4; n++ {
		runtime.GOMAXPROCS(n)
		with := b
		if b.Threads != nil {
			with = b.Threads(n)
		}
		x := with.Layer(t, in.layer)
		for range 2 {
			if err := agreeWith(x, in.batch, in.want); err != nil {
				return fmt.Errorf("%d threads: %w", n, err)
			}
		}
	}
	return nil
}
