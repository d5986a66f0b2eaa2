package batcher

import (
	"kvasir/internal/moe"
)

// chooser gives the picks of a batch to the members that hold them. It is the Choose of a Dispatcher.
//
// A pick that one member holds goes there. A pick that several hold goes to one that gets a row of this
// token anyway, so that the row travels once; else to the one with the least picks under way, counting
// those that this batch has given it. Ties go to the first in the list, which the dispatcher turns by
// one each time. A pick that no member holds goes to the fallback if there is one.
type chooser struct {
	members  []candidate
	fallback *Member // last in the count of destinations; nil: none
	a        assignment
}

// candidate is a member that holds something of the layer at hand.
type candidate struct {
	m     *Member
	words []uint64 // its experts of the layer
	load  int
	row   int // the last row of which it was given a pick, plus 1
}

// assign decides about all picks of b.
func (c *chooser) assign(b *moe.Batch) {
	n := len(c.members)
	if c.fallback != nil {
		n++
	}
	c.a.assign(b, n, c.choose)
}

// member returns the member that a destination stands for; nil is Nobody.
func (c *chooser) member(dest int) *Member {
	switch {
	case dest == Nobody:
		return nil
	case dest == len(c.members):
		return c.fallback
	}
	return c.members[dest].m
}

// open marks a pick that several members hold and that is not decided yet.
const open = -2

func (c *chooser) choose(row int, expert []uint16, to []int32) {
	undecided := false
	for i, e := range expert {
		switch holder, n := c.holders(int(e)); n {
		case 0:
			to[i] = Nobody
			if c.fallback != nil {
				to[i] = int32(len(c.members))
			}
		case 1:
			to[i] = c.give(holder, row)
		default:
			to[i], undecided = open, true
		}
	}
	if !undecided {
		return
	}
	for i, e := range expert {
		if to[i] == open {
			to[i] = c.give(c.best(int(e), row), row)
		}
	}
}

// holders returns how many members hold an expert, counted to 2, and the first.
func (c *chooser) holders(expert int) (first, n int) {
	for i := range c.members {
		if !has(c.members[i].words, expert) {
			continue
		}
		if n++; n == 2 {
			return first, n
		}
		first = i
	}
	return first, n
}

// best returns which of those who hold an expert computes it for a row.
func (c *chooser) best(expert, row int) int {
	best := -1
	for i := range c.members {
		k := &c.members[i]
		if has(k.words, expert) && (best < 0 || k.better(&c.members[best], row)) {
			best = i
		}
	}
	return best
}

// better reports whether k is to be preferred to an earlier o for a pick of a row.
func (k *candidate) better(o *candidate, row int) bool {
	if mine, others := k.row == row+1, o.row == row+1; mine != others {
		return mine
	}
	return k.load < o.load
}

func (c *chooser) give(i, row int) int32 {
	c.members[i].load++
	c.members[i].row = row + 1
	return int32(i)
}
