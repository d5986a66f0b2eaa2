package model

import (
	"encoding/binary"
	"fmt"
	"math"

	"kvasir/kernels/quant"
)

// KVFormat is how keys and values are stored. It is part of what a model computes: attention reads them
// as they are stored.
type KVFormat uint8

// Formats of keys and values.
const (
	KVF16 KVFormat = iota // binary16, clamped to +-65504
	KVQ8                  // Q8_0: blocks of 32 with one scale
	KVF32
)

func (f KVFormat) String() string { return f.format().String() }

func (f KVFormat) format() quant.Format {
	switch f {
	case KVQ8:
		return quant.Q8_0
	case KVF32:
		return quant.F32
	}
	return quant.F16
}

// StateFormat is how the states of DeltaNet layers are stored.
type StateFormat uint8

// Formats of states.
const (
	StateF32  StateFormat = iota
	StateBF16             // rounded after every token: half the memory, and lossy
)

func (f StateFormat) String() string {
	if f == StateBF16 {
		return "BF16"
	}
	return "F32"
}

// bytes is the size of a value.
func (f StateFormat) bytes() int {
	if f == StateBF16 {
		return 2
	}
	return 4
}

// checkStore says whether keys and values can be stored in a format.
func (c *Config) checkStore(kv KVFormat) error {
	if n, _ := kv.format().Block(); c.HeadDim%n != 0 {
		return fmt.Errorf("%w: heads of %d values in %s, which has blocks of %d; keep keys and values in F16",
			ErrUnsupported, c.HeadDim, kv, n)
	}
	return nil
}

// layout tells where in a page and in a state block the parts of a layer are.
type layout struct {
	kv    KVFormat
	state StateFormat
	heads []int // for each layer with attention: where its heads begin in a page, in bytes
	head  int   // bytes of the keys, or of the values, of one head in a page
	conv  []int // for each recurrent layer: where the inputs of the convolution begin, in floats
	delta []int // and where its DeltaNet state does, in bytes

	pageBytes, stateBytes int
}

func newLayout(c *Config, kv KVFormat, state StateFormat) layout {
	values, bytes := kv.format().Block()
	l := layout{
		kv: kv, state: state, head: PagePositions * c.HeadDim / values * bytes,
		heads: make([]int, c.Layers), conv: make([]int, c.Layers), delta: make([]int, c.Layers),
	}
	for i, recurrent := range c.Recurrent {
		if !recurrent {
			l.heads[i] = l.pageBytes
			l.pageBytes += 2 * c.KVHeads * l.head
			continue
		}
		d := c.Delta
		l.conv[i] = l.stateBytes / 4
		l.stateBytes += 4 * (d.Conv - 1) * d.Channels()
		l.delta[i] = l.stateBytes
		l.stateBytes += (state.bytes()*d.ValHeads*d.State*d.State + 3) &^ 3
	}
	l.pageBytes = (l.pageBytes + 63) &^ 63
	l.stateBytes = (l.stateBytes + 63) &^ 63
	return l
}

// keys returns where in a page the keys of one head begin; values follow them.
func (l *layout) keys(layer, head int) int { return l.heads[layer] + 2*head*l.head }

// MemoryPerSequence is how many bytes a sequence holds: fixed ones, and those that each position adds.
// Memory is given out in pages of PagePositions positions.
func (c *Config) MemoryPerSequence(kv KVFormat, state StateFormat) (fixed, perToken int64) {
	l := newLayout(c, kv, state)
	return int64(l.stateBytes), int64(l.pageBytes / PagePositions)
}

// storeKV writes the keys and values of a run's rows, in w.k and w.v, into its sequence's pages.
func (w *work) storeKV(r run) {
	m := w.m
	l, d := &m.layout, m.HeadDim
	row := l.head / PagePositions
	for i := r.lo; i < r.hi; i++ {
		pos := w.rows[i].pos
		page := r.step.Seq.pages[pos/PagePositions].Bytes
		for h := range m.KVHeads {
			from := (i*m.KVHeads + h) * d
			at := l.keys(w.layer, h) + pos%PagePositions*row
			w.store(page[at:at+row], w.k[from:from+d])
			at += l.head
			w.store(page[at:at+row], w.v[from:from+d])
		}
	}
}

func (w *work) store(dst []byte, src []float32) {
	switch w.m.layout.kv {
	case KVQ8:
		w.ops.ToQ8(dst, src)
	case KVF32:
		for i, v := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
		}
	default:
		w.ops.ToF16(dst, src)
	}
}

// load reads n rows of keys or values of one head, which begin at a place in a page.
func (w *work) load(dst []float32, page []byte, at, n int) {
	l := &w.m.layout
	size := l.head / PagePositions * n
	w.ops.Dequantize(dst[:n*w.m.HeadDim], l.kv.format(), page[at:at+size])
}
