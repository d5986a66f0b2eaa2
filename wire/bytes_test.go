package wire

import (
	"math/rand/v2"
	"testing"

	"kvasir/internal/moe"
)

// tinyWidths is how many of 6144 blocks of partials of kvasir-tiny, over all its layers and with its
// measured profile, need so many bits a value. TestBytesOfADispatch of package engine has the blocks
// themselves.
var tinyWidths = []struct{ bits, blocks int }{{11, 16}, {12, 1292}, {13, 3486}, {14, 1204}, {15, 133}, {16, 8}, {17, 5}}

// likeTiny returns partials whose blocks are as wide as those of kvasir-tiny.
func likeTiny(rng *rand.Rand, rows, hidden int) *moe.Partials {
	var p moe.Partials
	p.Reset(rows, hidden)
	for r := range rows {
		for at := 0; at < hidden; at += 256 {
			n, bits := rng.IntN(6144), 0
			for _, w := range tinyWidths {
				if n -= w.blocks; n < 0 {
					bits = w.bits
					break
				}
			}
			block, half := p.Row(r)[at:min(at+256, hidden)], int64(1)<<(bits-1)
			for i := range block {
				block[i] = rng.Int64N(2*half) - half
			}
			block[0] = -half // it needs all its bits
		}
	}
	return &p
}

// What stands around a chunk on the worker's leg: a TLS 1.3 record within, a frame, and a record of the TLS
// to the gateway.
const (
	record      = 5 + 1 + 16 // header, type, tag
	frameHeader = 4          // of 126 to 65,535 bytes
	shortHeader = 2
	frameMask   = 4 // of what a worker sends
)

// onTheWire returns the bytes that a message takes with all that stands around it.
func onTheWire(payload, mask int) (n int) {
	for left := payload; left > 0; left -= MaxPayload {
		sealed := HeaderLen + min(left, MaxPayload) + record
		header := frameHeader
		if sealed <= 125 {
			header = shortHeader
		}
		n += header + mask + sealed + record
	}
	return n
}

func TestADispatchTakesFewBytes(t *testing.T) {
	const seed, rows = 1, 512
	for _, tt := range []struct {
		name         string
		hidden, topK int
		out, back    float64 // bytes a row, at most
	}{
		{"a large model", 3072, 8, 3200, 5400},
		{"kvasir-tiny", 256, 4, 1.2 * 256, 1.8 * 256},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2))
			shape := moe.Shape{Hidden: tt.hidden, Format: moe.RowQ8K}
			b, err := moe.NewBatch(shape, rows, rows*tt.topK)
			if err != nil {
				t.Fatal(err)
			}
			expert, weight := make([]uint16, tt.topK), make([]float32, tt.topK)
			for range rows {
				row := b.Row(b.Grow(expert, weight))
				for i := range row.Q {
					row.Q[i] = int8(rng.IntN(255) - 127)
				}
			}
			p := likeTiny(rng, rows, tt.hidden)
			dispatch, answer := AppendDispatch(nil, 1, b), AppendPartials(nil, p)
			var got moe.Partials
			if err := ParsePartials(&got, answer, rows, tt.hidden); err != nil {
				t.Fatal(err)
			}
			out, back := float64(onTheWire(len(dispatch), 0))/rows, float64(onTheWire(len(answer), frameMask))/rows
			t.Logf("hidden %d, top-%d, seed %d: %.1f bytes a row out and %.1f back, %.3f and %.3f a value",
				tt.hidden, tt.topK, seed, out, back, out/float64(tt.hidden), back/float64(tt.hidden))
			if out > tt.out || back > tt.back {
				t.Errorf("want at most %.1f and %.1f", tt.out, tt.back)
			}
		})
	}
}
