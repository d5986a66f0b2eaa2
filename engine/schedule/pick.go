package schedule

import (
	"cmp"
	"slices"
)

// next makes up the next micro-batch: it appends its pieces to dst, at most one a task.
//
// First come those who decode, one row each, those served longest ago first, then prompts in
// chunks, until the rows are used up. Where several micro-batches may be under way at once, each
// takes its share of both only, so that there is work for the others.
func (c *core) next(dst []piece) []piece {
	c.decodes, c.prompts = c.decodes[:0], c.prompts[:0]
	decodes, prompts, wanted := 0, 0, 0
	for _, t := range c.running {
		if t.state == resuming {
			continue
		}
		ready := t.state == idle && !t.stalled
		if t.decodes() {
			if decodes++; ready {
				c.decodes = append(c.decodes, t)
			}
		} else if prompts++; ready {
			c.prompts = append(c.prompts, t)
			wanted += t.have - t.done
		}
	}
	rows := c.rows
	if n := min(c.share(decodes), len(c.decodes), rows-min(wanted, rows/promptShare)); n > 0 {
		slices.SortFunc(c.decodes, longestAgo)
		for _, t := range c.decodes[:n] {
			dst = append(dst, piece{t, 1})
		}
		rows -= n
	}
	if n := min(c.share(prompts), len(c.prompts)); n > 0 && rows > 0 {
		first := Interactive
		if c.counts.batches%batchShare == batchShare-1 {
			first = Batch
		}
		slices.SortFunc(c.prompts, func(a, b *task) int {
			if a.class != b.class {
				if a.class == first {
					return -1
				}
				return 1
			}
			return longestAgo(a, b)
		})
		dst = deal(dst, c.prompts[:n], rows)
	}
	if len(dst) == 0 {
		return dst
	}
	c.counts.batches++
	for _, p := range dst {
		p.t.state, p.t.served, p.t.frees = busy, c.counts.batches, c.frees
	}
	return dst
}

// share is how many of n tasks one micro-batch takes.
func (c *core) share(n int) int { return (n + c.flights - 1) / c.flights }

func longestAgo(a, b *task) int {
	if a.served != b.served {
		return cmp.Compare(a.served, b.served)
	}
	return cmp.Compare(a.order, b.order)
}

// deal divides rows among prompts, one class after the other: equal chunks, though none smaller
// than quantum, and what short prompts leave goes to the first of the longer ones.
func deal(dst []piece, prompts []*task, rows int) []piece {
	for len(prompts) > 0 && rows > 0 {
		n := 1
		for n < len(prompts) && prompts[n].class == prompts[0].class {
			n++
		}
		equal, from := max(rows/n, quantum), len(dst)
		for _, t := range prompts[:n] {
			if k := min(t.have-t.done, equal, rows); k > 0 {
				dst = append(dst, piece{t, k})
				rows -= k
			}
		}
		for i := from; i < len(dst); i++ {
			more := min(dst[i].t.have-dst[i].t.done-dst[i].n, rows)
			dst[i].n += more
			rows -= more
		}
		prompts = prompts[n:]
	}
	return dst
}
