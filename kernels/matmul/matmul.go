// Package matmul multiplies rows with matrices of integer formats: the bits of ref.Matrix.MatMul, at
// the speed of the processor's vector units.
//
// Weights are repacked once (Pack) into panels of 16 rows, of which a vector holds 4 values each. Rows are
// brought into records (Records), which hold beside their int8 values the sums that the tiles need. A tile
// is a function in assembly, one for each format and instruction set: it multiplies one panel with any
// number of rows. kernels/matmul/asm writes them and tells how they work.
package matmul

import (
	"fmt"
	"unsafe"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/variant"
)

// chunk is how many rows one call of a tile takes: so many records stay in the second-level cache while
// panel after panel runs over them.
const chunk = 64

// aheadBytes is how far before their use weights are asked for.
const aheadBytes = 10 << 10

// tile is the arguments of a tile. The assembly knows the offsets.
type tile struct {
	w       *byte    // the panel
	rows    **byte   // n pointers to records
	n       int      // at least 1
	dst     *float32 // 16 values a row
	stride  int      // bytes from row to row of dst
	blocks  int      // blocks of the panel
	scratch *byte    // scratchBytes, aligned to 64
	// What is read later is asked for in good time. These are addresses and no pointers: they are never
	// followed, and may lie behind the last weight.
	ahead uintptr // the block to ask for while the first one is used, and so on;
	turn  int     // but after so many blocks
	next  uintptr // go on here
}

// scratchBytes is the memory that a tile works in.
const scratchBytes = 8 << 10

// Kernel is the tiles of one variant. It does not change and is safe for concurrent use.
type Kernel struct {
	variant variant.Variant
	tiles   tiles
}

// tiles holds a function for each format that is repacked.
type tiles struct {
	q4k, q5k, q6k, q8, mxfp4 func(*tile)

	peak    func(turns int) // multiplications of int8 and nothing else
	perTurn int             // how many
}

// For returns the kernel of a variant, or nil where there is none: for Portable, and for what this build
// has no assembly for. The caller computes with kernels/ref then.
func For(v variant.Variant) *Kernel {
	t := tilesOf(v)
	if t.q4k == nil {
		return nil
	}
	return &Kernel{variant: v, tiles: t}
}

// Variant returns the variant that k is made for.
func (k *Kernel) Variant() variant.Variant { return k.variant }

func (k *Kernel) tile(f quant.Format) func(*tile) {
	switch f {
	case quant.Q4K:
		return k.tiles.q4k
	case quant.Q5K:
		return k.tiles.q5k
	case quant.Q6K:
		return k.tiles.q6k
	case quant.Q8_0:
		return k.tiles.q8
	}
	return k.tiles.mxfp4
}

// Peak multiplies int8 values, from registers, as fast as the variant can, about products of them, and
// returns how many: the limit that Mul is measured against.
func (k *Kernel) Peak(products int) int {
	turns := products/k.tiles.perTurn + 1
	k.tiles.peak(turns)
	return turns * k.tiles.perTurn
}

// Work is the memory that one goroutine multiplies in.
type Work struct {
	scratch []byte
	spill   [chunk * PanelRows]float32 // of a panel that is not full
	args    tile
}

// NewWork returns memory for one goroutine.
func NewWork() *Work { return &Work{scratch: moe.AlignedBytes(scratchBytes)} }

// Product is y = W x for some panels of W and some rows.
type Product struct {
	M      *Packed
	Lo, Hi int // panels
	X      Rows
	// Dst gets value o of row r at Dst[r*Stride + o - 16*Lo].
	Dst    []float32
	Stride int
	// After is what will be read after these panels: it is asked for in good time. It may be empty.
	After []byte
}

// check panics where p does not fit together: the assembly believes what it is told.
func (p *Product) check() {
	cols := min(p.Hi*PanelRows, p.M.Out) - p.Lo*PanelRows
	n := p.X.Len()
	switch {
	case p.Lo < 0 || p.Hi < p.Lo || p.Hi > p.M.Panels():
		panic(fmt.Sprintf("BUG: panels %d to %d of %d", p.Lo, p.Hi, p.M.Panels()))
	case n > 0 && (p.X.format != p.M.rowFormat() || p.X.values != p.M.In):
		panic(fmt.Sprintf("BUG: %s rows of %d for %s weights of %d", p.X.format, p.X.values, p.M.Format, p.M.In))
	case n > 0 && cols > 0 && (p.Stride < cols || len(p.Dst) < (n-1)*p.Stride+cols):
		panic(fmt.Sprintf("BUG: %d rows of %d, %d apart, into %d values", n, cols, p.Stride, len(p.Dst)))
	}
}

// Mul computes p. It allocates nothing.
func (k *Kernel) Mul(w *Work, p *Product) {
	p.check()
	f := k.tile(p.M.Format)
	for at := 0; at < p.X.Len(); at += chunk {
		n := min(chunk, p.X.Len()-at)
		for i := p.Lo; i < p.Hi; i++ {
			w.aim(p, i)
			w.args.rows, w.args.n = &p.X.first[at], n
			col := (i - p.Lo) * PanelRows
			if i*PanelRows+PanelRows <= p.M.Out {
				w.args.dst, w.args.stride = &p.Dst[at*p.Stride+col], 4*p.Stride
				f(&w.args)
				continue
			}
			w.args.dst, w.args.stride = &w.spill[0], 4*PanelRows
			f(&w.args)
			last := p.M.Out - i*PanelRows
			for r := range n {
				copy(p.Dst[(at+r)*p.Stride+col:][:last], w.spill[r*PanelRows:])
			}
		}
	}
	w.args = tile{} // keep nothing alive
}

// aim sets the arguments that depend on the panel alone.
func (w *Work) aim(p *Product, panel int) {
	size, blocks := p.M.layout.bytes, p.M.blocks
	data := p.M.panel(panel)
	w.args.w, w.args.blocks, w.args.scratch = &data[0], blocks, &w.scratch[0]

	distance, left := (aheadBytes+size-1)/size, (p.Hi-panel)*blocks
	next := data // no memory has to be read for what is here already
	if len(p.After) > 0 {
		next = p.After
	}
	w.args.next = address(next)
	if distance < left {
		w.args.ahead, w.args.turn = address(data)+uintptr(distance*size), left-distance
	} else {
		w.args.ahead, w.args.turn = address(next)+uintptr((distance-left)*size), -1
	}
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
