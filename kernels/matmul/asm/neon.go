package asm

import "fmt"

// Where things stand in the scratch memory of a tile for arm64.
const (
	aWeights = 0    // 64 lines of unpacked weights; for SMMLA two lines become one of 128 bytes
	aScale   = 4096 // up to 16 x 16 int32, for SMMLA each of them twice
	aMin     = 6144 // minimums: for SDOT and SMMLA 16 rows x 8 int8, else 8 x 16 int16
	aD       = 6400 // 16 float32
	aDMin    = 6464 // 16 float32
)

// The registers of a tile for arm64. R16, R17, R18, R27 and above have uses of their own.
const (
	nArgs, nPanel, nScratch = "R0", "R1", "R2"
	nCursor                 = "R9"  // pointer to the next row
	nLeft                   = "R10" // rows left
	nOut                    = "R11" // values of the next row
	nDst                    = "R12" // values of the first of the rows at hand
	nStride                 = "R13"
	nTemp                   = "R14"
	nBlocks                 = "R15" // blocks left
	nOffset                 = "R19" // where the values of this block begin in their rows
	nWeights                = "R20" // lines of weights
	nScale                  = "R21" // scales of the next step
	nPass                   = "R22" // bytes of a line before the ones of this pass
	nTurn                   = "R23" // turns left
	nD                      = "R24" // scratch, nPass further on
	nAway                   = "R25" // from the values behind those of this block to their scale
	nSecond                 = "R26" // fifth bits or bit pairs; in formats of 32 values, the block in its record
)

var nRows = []string{"R3", "R4", "R5", "R6", "R7", "R8"}

// set is an instruction set.
type set int

const (
	plain  set = iota // SMLAL
	dot               // SDOT
	matrix            // SMMLA; for few rows SDOT
)

// rows is how many rows a tile of s has: as many as there are registers for.
func (s set) rows() int {
	if s == plain {
		return 4
	}
	return 6
}

// few is the number of rows up to which weights are unpacked in registers and not put into scratch.
func (s set) few() int {
	if s == dot {
		return 4
	}
	return 3
}

// form is what tiles must know of a format.
type form struct {
	what       string // the comment
	bytes      int    // of a block
	steps      int    // sums of products in a block, each with a scale of its own, or one
	lines      int    // in a step
	d, scale   int    // offsets in a block
	dmin, min  int    // 0 where there are none
	scaleBytes bool   // the scales of a block are not binary16 but exponents
	narrow     bool   // two sums of 16 bits, each of a whole step, can be added in 16 bits
	full       bool   // 16 bits hold no more than two products
	file       source // weights as they are laid out
}

func (f *form) k() bool { return f.steps > 1 }

// source is a way to come by lines of weights: so many turns of a loop, of so many steps each.
type source struct {
	turns, steps int
	advance      int                            // bytes from turn to turn
	begin        func(g *arm)                   // prepares registers
	load         func(g *arm, step, at, to int) // 16 weights, whose byte at lies at nWeights, to a register
	next         func(g *arm, step int)         // goes on to the next step
}

// arm is a tile for arm64 that is being written.
type arm struct {
	*file
	name string
	set  set
	form *form
}

// neon writes the tiles of one instruction set.
func neon(s set, suffix, what string) string {
	f := newFile(what)
	mx := [16]byte{0, 1, 2, 3, 4, 6, 8, 12, 0, 0xff, 0xfe, 0xfd, 0xfc, 0xfa, 0xf8, 0xf4}
	f.bytes16("doubled", mx)
	if s != plain {
		f.bytes16("parts", [16]byte{255, 255, 255, 255, 255, 255, 255, 255, 63, 63, 63, 63, 63, 63, 63, 63})
	}
	for _, t := range []struct {
		name string
		form form
	}{
		{"tileQ4K", neonQ4K}, {"tileQ5K", neonQ5K}, {"tileQ6K", neonQ6K}, {"tileQ8", neonQ8}, {"tileMXFP4", neonMXFP4},
	} {
		(&arm{f, t.name + suffix, s, &t.form}).tile()
	}
	(&arm{file: f, name: "peak" + suffix, set: s}).peak()
	return f.String()
}

// bytes16 defines 16 bytes.
func (f *file) bytes16(name string, b [16]byte) {
	f.raw("")
	for i := 0; i < 16; i += 8 {
		v := uint64(0)
		for k := range 8 {
			v |= uint64(b[i+k]) << (8 * k)
		}
		f.raw("DATA %s<>+%d(SB)/8, $0x%016x", name, i, v)
	}
	f.raw("GLOBL %s<>(SB), RODATA|NOPTR, $16", name)
}

// constant16 loads what bytes16 has defined. It takes the register that points to scales.
func (g *arm) constant16(name string, d int) {
	g.op("MOVD", "$"+static(name), nScale)
	g.load(d, 0, nScale)
}

// tile writes the whole function.
func (g *arm) tile() {
	g.begin()
	g.prefetch()
	if g.form.k() {
		g.op("MOVD", imm(recScale-256), nAway)
	} else { // an eighth of a record: its scale is as many words behind the first as it has blocks before it
		g.op("MOVD", imm(recScale-32), nAway)
		g.op("SUB", nSecond+"<<5", nAway, nAway)
		g.op("ADD", nSecond+"<<2", nAway, nAway)
	}
	few := min(g.set, dot) // with SMMLA, few rows are left to SDOT
	if few == g.set {
		g.prepare(few, "_scales")
	}
	if few == g.set && g.form.full { // weights lie as they are used
		g.rows("rows", g.products(g.set, &g.form.file), g.set.rows())
	} else {
		g.op("MOVD", at(argN, nArgs), nTemp)
		g.op("CMP", imm(g.set.few()), nTemp)
		g.op("BLE", g.name+"_few")
		if few != g.set {
			g.prepare(g.set, "_scales")
		}
		g.unpack()
		unpacked := g.unpacked()
		g.rows("rows", g.products(g.set, &unpacked), g.set.rows())
		g.op("B", g.name+"_next")
		g.label(g.name + "_few")
		if few != g.set {
			g.prepare(few, "_fewScales")
		}
		g.rows("fewRows", g.products(few, &g.form.file), g.set.few())
		g.label(g.name + "_next")
	}
	g.end()
}

// begin writes the start of a tile: all sums become zero.
func (g *arm) begin() {
	g.text(g.name, g.form.what)
	g.op("MOVD", "a+0(FP)", nArgs)
	g.op("MOVD", at(argW, nArgs), nPanel)
	g.op("MOVD", at(argScratch, nArgs), nScratch)
	g.op("MOVD", at(argBlocks, nArgs), nBlocks)
	g.op("MOVD", at(argStride, nArgs), nStride)
	g.op("MOVD", at(argN, nArgs), nLeft)
	g.op("MOVD", at(argDst, nArgs), nOut)
	g.op("MOVD", "ZR", nOffset)
	if !g.form.k() {
		g.op("MOVD", "ZR", nSecond)
	}
	g.zero(0)
	g.label(g.name + "_zero")
	for q := range 4 {
		g.store(0, 16*q, nOut)
	}
	g.op("ADD", nStride, nOut, nOut)
	g.op("SUBS", imm(1), nLeft, nLeft)
	g.op("BNE", g.name+"_zero")
	g.label(g.name + "_block")
}

// prefetch asks for the lines of a later block.
func (g *arm) prefetch() {
	g.op("MOVD", at(argAhead, nArgs), nTemp)
	for i := 0; i < g.form.bytes; i += 64 {
		g.op("PRFM", at(i, nTemp), "PLDL1KEEP")
	}
	g.op("ADD", imm(g.form.bytes), nTemp, nTemp)
	g.op("MOVD", at(argTurn, nArgs), nTurn)
	g.op("SUBS", imm(1), nTurn, nTurn)
	g.op("MOVD", nTurn, at(argTurn, nArgs))
	g.op("BNE", g.name+"_ahead")
	g.op("MOVD", at(argNext, nArgs), nTemp)
	g.label(g.name + "_ahead")
	g.op("MOVD", nTemp, at(argAhead, nArgs))
}

// rows writes the loop over the rows: most at a time, then what is left.
func (g *arm) rows(label string, body func(label string, n int), most int) {
	label = g.name + "_" + label
	g.op("MOVD", at(argN, nArgs), nLeft)
	g.op("MOVD", at(argRows, nArgs), nCursor)
	g.op("MOVD", at(argDst, nArgs), nDst)
	for n := most; n >= 1; n-- {
		here := fmt.Sprintf("%s%d", label, n)
		g.label(here)
		g.op("CMP", imm(n), nLeft)
		next := fmt.Sprintf("%s%d", label, n-1)
		if n == 1 {
			next = label + "Done"
		}
		g.op("BLT", next)
		for t := range n {
			g.op("MOVD.P", at(8, nCursor), nRows[t])
			g.op("ADD", nOffset, nRows[t], nRows[t])
		}
		body(here, n)
		g.op("SUB", imm(n), nLeft, nLeft)
		if n == most {
			g.op("B", here)
		} else if n > 1 {
			g.op("B", label+"Done")
		}
	}
	g.label(label + "Done")
}

// end writes the step to the next block, and the return.
func (g *arm) end() {
	if g.form.k() {
		g.op("ADD", imm(recordBytes), nOffset, nOffset)
	} else {
		g.op("ADD", imm(32), nOffset, nOffset)
		g.op("ADD", imm(1), nSecond, nSecond)
		g.op("CMP", imm(8), nSecond)
		g.op("BLT", g.name+"_record")
		g.op("ADD", imm(recordBytes-256), nOffset, nOffset)
		g.op("MOVD", "ZR", nSecond)
		g.label(g.name + "_record")
	}
	g.op("ADD", imm(g.form.bytes), nPanel, nPanel)
	g.op("SUBS", imm(1), nBlocks, nBlocks)
	g.op("BNE", g.name+"_block")
	g.op("RET")
}

// peak writes the loop that the speed of tiles is compared with: 24 multiplications that do not wait for
// one another, as often as its argument says.
func (g *arm) peak() {
	g.raw("")
	g.raw("// func %s(turns int)", g.name)
	g.raw("TEXT ·%s(SB), NOSPLIT, $0-8", g.name)
	g.op("MOVD", "turns+0(FP)", nLeft)
	g.label(g.name + "_loop")
	for d := range 24 {
		switch g.set {
		case plain:
			g.do([]inst{smlal, smlal2}[d%2], d, 30, 31)
		case dot:
			g.element(sdot, d, 30, 31, d%4)
		default:
			g.do(smmla, d, 30, 31)
		}
	}
	g.op("SUBS", "$1", nLeft, nLeft)
	g.op("BNE", g.name+"_loop")
	g.op("RET")
}
