package ref

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"testing"
)

// crc is the CRC-32/IEEE of the little-endian bits of f(at(0)), f(at(1)), … f(at(n-1)).
func crc(n int, at func(int) float32, f func(float32) float32) uint32 {
	var sum uint32
	buf := make([]byte, 0, 4<<12)
	for i := range n {
		buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(f(at(i))))
		if len(buf) == cap(buf) || i == n-1 {
			sum = crc32.Update(sum, crc32.IEEETable, buf)
			buf = buf[:0]
		}
	}
	return sum
}

func TestFunctionsGiveTheBitsOfTheDefinition(t *testing.T) {
	grid := func(from int) func(int) float32 {
		return func(i int) float32 { return float32(from+i) / 1024 }
	}
	for _, c := range []struct {
		name string
		n    int
		at   func(int) float32
		f    func(float32) float32
		want uint32
	}{
		{"recip of every mantissa", 1 << 23, func(i int) float32 { return math.Float32frombits(0x3F800000 + uint32(i)) }, Recip, 0xb318045d},
		{"exp from -87 to 88", 90112 + 89088 + 1, grid(-89088), Exp, 0x0cbe354c},
		{"silu from -44 to 88", 90112 + 45056 + 1, grid(-45056), Silu, 0xdf68c3cd},
	} {
		if got := crc(c.n, c.at, c.f); got != c.want {
			t.Errorf("%s: CRC %08x, want %08x", c.name, got, c.want)
		}
	}
}
