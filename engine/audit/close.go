package audit

import "math"

// Class is how a worker's answers are compared with those of a judge.
type Class uint8

// The classes.
const (
	Exact Class = iota // bit for bit
	Close              // within a tolerance: its arithmetic is another, such as that of a GPU in half precision
)

// String returns the word for people.
func (c Class) String() string {
	if c == Close {
		return "close"
	}
	return "exact"
}

// MarshalText implements encoding.TextMarshaler: evidence says by which class it was judged.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. What is no class is exact, as evidence was that named none.
func (c *Class) UnmarshalText(text []byte) error {
	*c = Exact
	if string(text) == Close.String() {
		*c = Close
	}
	return nil
}

// closeShare is how far an answer of class Close may be from the right one, as a share of its length. Half precision
// with rows that are not made int8 is 1.2 to 1.7 % away on average, nearly all of it because the right one has int8
// rows; of short rows, which differ most, the worst were 4 % (TestHonestCloseWorkersAreNeverAccused). Weights of
// three bits in place of four are three times that and more.
const closeShare = 0.06

// agrees reports whether an answer is that of a judge, as far as a class can tell. picks is how many are in the row:
// each is rounded to the grid of the layer's profile by both sides, which may differ by one there.
func (c Class) agrees(a, judge Answer, picks int) bool {
	if c == Exact || a.Status != judge.Status || len(a.Sum) != len(judge.Sum) {
		return a.equal(judge)
	}
	var off, length float64
	for i, v := range judge.Sum {
		d, w := float64(a.Sum[i]-v), float64(v)
		off += float64(d * d)
		length += float64(w * w)
	}
	grid := float64(float64(picks) * math.Sqrt(float64(len(a.Sum))))
	return math.Sqrt(off) <= float64(closeShare*math.Sqrt(length))+grid
}
