package batcher

import (
	"math"
	"math/bits"

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
//
// Members on trial (Member.Trial) get a small share of the rows where others hold the experts too, and all
// that only they hold.
type chooser struct {
	members  []candidate
	fallback *Member // last in the count of destinations; nil: none
	least    int     // rows that a member is given before another is asked, where there is a choice
	holder   []int32 // of each expert: see sole; empty: it is to be looked up
	a        assignment
	parts    []*job // of the batch that is being cut, by destination
	cuts     cuts

	trials int // members that are on trial
	spare  int // rows that those may be given still where others hold the experts
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
	trial bool    // see Member.Trial
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

// may is holds, and reports whether the member may be given what others may too.
func (c *chooser) may(k *candidate, expert, row int) bool {
	return k.holds(expert, row) && (!k.trial || c.spare > 0 || k.row == row+1)
}

// assign decides about all picks of b.
func (c *chooser) assign(b *moe.Batch) {
	n := len(c.members)
	if c.fallback != nil {
		n++
	}
	c.holder = c.holder[:0]
	if b.Rows >= fewRows && c.index() {
		c.a.look(b, n, c.holder, c.nobody())
		return
	}
	c.a.assign(b, n, c.choose)
}

// nobody is where a pick goes that no member holds.
func (c *chooser) nobody() int32 {
	if c.fallback != nil {
		return int32(len(c.members))
	}
	return Nobody
}

// fewRows is the rows below which it costs more to index experts than to look for those who hold them.
const fewRows = 8

// index finds out who holds what, once for all rows, unless that depends on the row. It reports whether there
// is no choice at all.
func (c *chooser) index() (plain bool) {
	experts := 0
	for i := range c.members {
		if c.members[i].quota != 0 {
			return false
		}
		experts = max(experts, 64*len(c.members[i].words))
	}
	nobody := c.nobody()
	for range experts {
		c.holder = append(c.holder, nobody)
	}
	plain = true
	for i := range c.members {
		for at, word := range c.members[i].words {
			for ; word != 0; word &= word - 1 {
				h := &c.holder[64*at+bits.TrailingZeros64(word)]
				if *h != nobody {
					*h, plain = open, false
					continue
				}
				*h = int32(i)
			}
		}
	}
	return plain
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
		to[i] = c.sole(int(e), row)
		switch d := to[i]; {
		case d == open:
			undecided = true
		case d != c.nobody():
			c.give(int(d), row)
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

// sole returns the member that alone holds an expert, open when several do, and nobody when none does.
func (c *chooser) sole(expert, row int) int32 {
	nobody := c.nobody()
	if len(c.holder) > 0 {
		if expert < len(c.holder) {
			return c.holder[expert]
		}
		return nobody
	}
	first := nobody
	for i := range c.members {
		if !c.members[i].holds(expert, row) {
			continue
		}
		if first != nobody {
			return open
		}
		first = int32(i)
	}
	return first
}

// best returns which of those who hold an expert computes it for a row.
func (c *chooser) best(expert, row int) int {
	best, proven := -1, c.trials == 0
	for i := range c.members {
		k := &c.members[i]
		if c.may(k, expert, row) && (best < 0 || c.better(k, &c.members[best], row)) {
			best = i
		}
		proven = proven || !k.trial && k.holds(expert, row)
	}
	switch {
	case !proven: // only those on trial hold it
		for i := range c.members {
			k := &c.members[i]
			if k.holds(expert, row) && (best < 0 || c.better(k, &c.members[best], row)) {
				best = i
			}
		}
	case c.members[best].trial && c.members[best].row != row+1:
		c.spare--
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
