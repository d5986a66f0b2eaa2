package batcher

import (
	"math"

	"kvasir/internal/moe"
)

// chooser gives the picks of a batch to the members that hold them. It is the Choose of a Dispatcher.
//
// A pick that one member holds goes there. A pick that several hold goes to one that gets a row of this
// token anyway, so that the row travels once; else to one that has begun to fill a dispatch, so that
// small batches are not divided; else to the one who is likely to be done first: the one
// with the least picks under way, counting those that this batch has given it, each times what a pick
// costs it. Ties go to the first in the list, which the dispatcher turns by
// one each time. A pick that no member holds goes to the fallback if there is one.
type chooser struct {
	members  []candidate
	fallback *Member // last in the count of destinations; nil: none
	least    int     // rows that a member is given before another is asked, where there is a choice
	a        assignment
	parts    []*job // of the batch that is being cut, by destination
}

// candidate is a member that holds something of the layer at hand.
type candidate struct {
	m     *Member
	set   *Set     // what it holds
	words []uint64 // of the layer
	load  int
	pace  float64 // what a pick costs it, compared with the others: 1 or more; before level, in seconds
	quota int     // rows that it may be given; 0: any number
	given int     // rows that it was
	row   int     // the last row of which it was given a pick, plus 1
}

// level makes the paces comparable: powers of two, 1 for the quickest and for those of whom nothing is
// known. So small differences, which are noise, do not count.
func (c *chooser) level() {
	best := math.Inf(1)
	for i := range c.members {
		if p := c.members[i].pace; p > 0 {
			best = min(best, p)
		}
	}
	for i := range c.members {
		k := &c.members[i]
		times := k.pace / best
		k.pace = 1
		for k.pace*math.Sqrt2 < times && k.pace < 1<<20 {
			k.pace *= 2
		}
	}
}

// holds reports whether the member may be given a pick of a row.
func (k *candidate) holds(expert, row int) bool {
	return has(k.words, expert) && (k.quota == 0 || k.given < k.quota || k.row == row+1)
}

// assign decides about all picks of b.
func (c *chooser) assign(b *moe.Batch) {
	n := len(c.members)
	if c.fallback != nil {
		n++
	}
	c.a.assign(b, n, c.choose)
}

// member returns the member that a destination stands for, and the set by which it was chosen; nil is
// Nobody.
func (c *chooser) member(dest int) (*Member, *Set) {
	switch {
	case dest == Nobody:
		return nil, nil
	case dest == len(c.members):
		return c.fallback, c.fallback.set // which does not change
	}
	return c.members[dest].m, c.members[dest].set
}

// open marks a pick that several members hold and that is not decided yet.
const open = -2

func (c *chooser) choose(row int, expert []uint16, to []int32) {
	undecided := false
	for i, e := range expert {
		switch holder, n := c.holders(int(e), row); n {
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
func (c *chooser) holders(expert, row int) (first, n int) {
	for i := range c.members {
		if !c.members[i].holds(expert, row) {
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
		if k.holds(expert, row) && (best < 0 || c.better(k, &c.members[best], row)) {
			best = i
		}
	}
	return best
}

// better reports whether k is to be preferred to an earlier o for a pick of a row.
func (c *chooser) better(k, o *candidate, row int) bool {
	if mine, others := k.row == row+1, o.row == row+1; mine != others {
		return mine
	}
	if mine, others := c.begun(k), c.begun(o); mine != others {
		return mine
	}
	return float64(k.load+1)*max(1, k.pace) < float64(o.load+1)*max(1, o.pace)
}

// begun reports whether k has rows of the batch, and fewer than a dispatch is worth.
func (c *chooser) begun(k *candidate) bool { return 0 < k.given && k.given < c.least }

func (c *chooser) give(i, row int) int32 {
	k := &c.members[i]
	k.load++
	if k.row != row+1 {
		k.row = row + 1
		k.given++
	}
	return int32(i)
}
