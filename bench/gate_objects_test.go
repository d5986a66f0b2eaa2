package bench

import "testing"

var (
	tinyObject  *uint64
	smallObject *[48]byte
	objectLists [][]byte
)

// What calls allocate is counted by place, whatever garbage there was before, and what few of them do is not.
func TestNewObjectsCountsWhatCallsAllocate(t *testing.T) {
	const calls = 61
	for _, c := range []struct {
		name string
		call func(i int)
		want allocated
	}{
		{"nothing", func(int) {}, allocated{}},
		{"one of 48 bytes", func(int) { smallObject = new([48]byte) }, allocated{1, 48}},
		{"one of 8 bytes", func(int) { tinyObject = new(uint64) }, allocated{1, 16}},
		{"two at one place", func(int) {
			for range 2 {
				smallObject = new([48]byte)
			}
		}, allocated{2, 96}},
		{"one in three", func(i int) {
			if i%3 == 0 {
				smallObject = new([48]byte)
			}
		}, allocated{}},
		{"one in two, of two sizes", func(i int) { objectLists = [][]byte{make([]byte, 64<<(i%2))} }, allocated{3, 24 + 64 + 128}},
	} {
		got, err := newObjects(calls, func() error {
			for i := range calls {
				c.call(i)
			}
			return nil
		})
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}
