package asm

import "fmt"

// Where things stand in the scratch memory of an AVX2 tile.
const (
	sWeights = 0    // 16 rows x 256 unpacked weights, as lines of 16 rows x 4
	sScale   = 4096 // up to 16 x 16 pairs of int16: a scale, twice
	sMin     = 5120 // 4 x 16 pairs of int16: two minimums
	sD       = 5376 // 16 float32
	sDMin    = 5440 // 16 float32
	sSum     = 5504 // up to 6 rows x 16 int32, the sums of the block
	sOffset  = 5888 // where the records of this block begin in their rows
	sIndex   = 5896 // where this block begins in its record
	sCount   = 5904 // blocks left
	sDst     = 5912 // values of the next row
	sAhead   = 5936 // the block to ask for
)

// The registers of an AVX2 tile. Six rows at a time leave none free: twelve sums, two vectors of
// weights, four values of a row, and a product; the sums of the block are in memory then. R14 is free in
// assembly.
var rowRegs = []string{"R8", "R9", "R10", "R11", "CX", "DX"}

const (
	rArgs, rW, rScratch = "DI", "SI", "BX"
	rIndex              = "R12" // where the sub-block begins in its record, in units of x86.unit bytes
	rCursor             = "R13" // pointer to the next row
	rLines              = "R14" // lines of weights
	rLeft               = "R15" // rows left
	rTemp               = "AX"
)

// acc is the register with the sum of row t, half h of the panel.
func acc(t, h int) string { return y(4 + 2*t + h) }

// keeps reports whether the sums of a block for n rows stay in registers. They do for up to three rows,
// where products have their sums in 16 bits. (With VPDPBUSD each sum waits for the one before it, and six
// of them are too few to hide that.)
func (g *x86) keeps(n int) bool { return n <= 3 && !g.vnni }

// most is how many rows share the weights that were unpacked to memory.
func (g *x86) most() int {
	if g.vnni {
		return 6
	}
	return 3
}

// sum is where the sum of a block for row t of n is kept.
func (g *x86) sum(n, t, h int) string {
	if g.keeps(n) {
		return y(10 + 2*t + h)
	}
	return at(sSum+64*t+32*h, rScratch)
}

// x86 is a tile with 256-bit registers that is being written.
type x86 struct {
	*file
	name string
	vnni bool // multiplies by VPDPBUSD, which adds up four products in 32 bits
	unit int  // of rIndex: 4 where addresses that grow by 8 a sub-block are made of it too, else 1
}

func avx2() string {
	f := newFile("AVX2: products of unsigned weights and signed values by VPMADDUBSW, in 16-bit sums that cannot overflow.")
	f.constant("nibbles", 0x0f0f0f0f)
	f.constant("bit4", 0x10101010)
	f.constant("pairs", 0x30303030)
	f.constant("ones", 0x00010001)
	f.bytes("lowRows", pairMask(0, false), pairMask(4, false))
	f.bytes("highRows", pairMask(8, false), pairMask(12, false))
	f.bytes("lowSigned", pairMask(0, true), pairMask(4, true))
	f.bytes("highSigned", pairMask(8, true), pairMask(12, true))
	mx := [16]byte{12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}
	f.bytes("mxfp4", mx, mx)
	tile := func(name string) *x86 { return &x86{file: f, name: name, unit: 4} }
	tile("tileQ4KAVX2").q4k()
	tile("tileQ5KAVX2").q5k()
	tile("tileQ6KAVX2").q6k()
	tile("tileQ8AVX2").q8()
	tile("tileMXFP4AVX2").mxfp4()
	f.peak("peakAVX2", func() {
		for i := range 12 {
			f.op("VPMADDUBSW", y(12), y(13), y(i))
		}
	}, func() { f.op("VZEROUPPER") })
	return f.String()
}

// pairMask shuffles the bytes of four rows into the low bytes of two int16 each, or into the upper bytes
// where they are signed and shifted down after that.
func pairMask(row byte, signed bool) (m [16]byte) {
	for i := range m {
		m[i] = 0x80
		if i%2 == 1 == signed {
			m[i] = row + byte(i/4)
		}
	}
	return m
}

// constant defines 32 bytes of one repeated word.
func (f *file) constant(name string, word uint32) {
	f.raw("")
	for i := 0; i < 32; i += 8 {
		f.raw("DATA %s<>+%d(SB)/8, $0x%08x%08x", name, i, word, word)
	}
	f.raw("GLOBL %s<>(SB), RODATA|NOPTR, $32", name)
}

// bytes defines 32 bytes.
func (f *file) bytes(name string, low, high [16]byte) {
	f.raw("")
	all := append(low[:], high[:]...)
	for i := 0; i < 32; i += 8 {
		v := uint64(0)
		for k := range 8 {
			v |= uint64(all[i+k]) << (8 * k)
		}
		f.raw("DATA %s<>+%d(SB)/8, $0x%016x", name, i, v)
	}
	f.raw("GLOBL %s<>(SB), RODATA|NOPTR, $32", name)
}

func static(name string) string { return name + "<>(SB)" }

// begin writes the start of a tile: all sums become zero.
func (g *x86) begin(comment string) {
	g.text(g.name, comment)
	g.op("MOVQ", "a+0(FP)", rArgs)
	g.op("MOVQ", at(argW, rArgs), rW)
	g.op("MOVQ", at(argScratch, rArgs), rScratch)
	g.op("MOVQ", at(argBlocks, rArgs), rTemp)
	g.op("MOVQ", rTemp, at(sCount, rScratch))
	g.op("XORQ", rTemp, rTemp)
	g.op("MOVQ", rTemp, at(sOffset, rScratch))
	g.op("MOVQ", rTemp, at(sIndex, rScratch))
	g.op("MOVQ", at(argN, rArgs), rLeft)
	g.op("MOVQ", at(argDst, rArgs), rTemp)
	g.op("VPXOR", y(0), y(0), y(0))
	g.label(g.name + "_zero")
	g.op("VMOVUPS", y(0), at(0, rTemp))
	g.op("VMOVUPS", y(0), at(32, rTemp))
	g.op("ADDQ", at(argStride, rArgs), rTemp)
	g.op("DECQ", rLeft)
	g.op("JNZ", g.name+"_zero")
	g.label(g.name + "_block")
}

// later moves on to the block that is to be asked for while this one is used.
func (g *x86) later(bytes int) {
	g.op("MOVQ", at(argAhead, rArgs), rTemp)
	g.op("MOVQ", rTemp, at(sAhead, rScratch))
	g.op("ADDQ", imm(bytes), rTemp)
	g.op("DECQ", at(argTurn, rArgs))
	g.op("JNZ", g.name+"_ahead")
	g.op("MOVQ", at(argNext, rArgs), rTemp)
	g.label(g.name + "_ahead")
	g.op("MOVQ", rTemp, at(argAhead, rArgs))
}

// ask asks for the lines that are due at a step out of steps, of bytes from rTemp on. Asked for all at once
// they take all the buffers for misses, and what is needed now waits; a few rows later asking again costs
// little, since they are there.
func (f *file) ask(step, steps, bytes int) {
	lines := (bytes + 63) / 64
	for i := step * lines / steps; i < (step+1)*lines/steps; i++ {
		f.op("PREFETCHT0", at(64*i, rTemp))
	}
}

// rows writes the loop over the rows: most at a time, then what is left.
func (g *x86) rows(most int, body func(n int)) {
	g.firstRow()
	g.moreRows("rows", most, body)
	g.label(g.name + "_done")
}

// firstRow begins with the rows.
func (g *x86) firstRow() {
	g.op("MOVQ", at(argN, rArgs), rLeft)
	g.op("MOVQ", at(argRows, rArgs), rCursor)
	g.op("MOVQ", at(argDst, rArgs), rTemp)
	g.op("MOVQ", rTemp, at(sDst, rScratch))
}

// moreRows writes the loop over the rows that are left, and goes on at the end of the rows.
func (g *x86) moreRows(name string, most int, body func(n int)) {
	label := func(n int) string { return fmt.Sprintf("%s_%s%d", g.name, name, n) }
	for n := most; n >= 1; n-- {
		g.label(label(n))
		g.op("CMPQ", rLeft, imm(n))
		if n == 1 {
			g.op("JLT", g.name+"_done")
		} else {
			g.op("JLT", label(n-1))
		}
		g.group(n, body)
		if n == most {
			g.op("JMP", label(n))
		} else {
			g.op("JMP", g.name+"_done")
		}
	}
}

// group writes what is done for the next n rows.
func (g *x86) group(n int, body func(n int)) {
	for t := range n {
		g.op("MOVQ", at(8*t, rCursor), rowRegs[t])
		g.op("ADDQ", at(sOffset, rScratch), rowRegs[t])
	}
	g.op("MOVQ", at(sAhead, rScratch), rTemp)
	body(n)
	g.op("ADDQ", imm(8*n), rCursor)
	g.op("SUBQ", imm(n), rLeft)
}

// end writes the step to the next block of 256 values, and the return.
func (g *x86) end(bytes int) {
	g.op("ADDQ", imm(recordBytes), at(sOffset, rScratch))
	g.again(bytes)
}

func (g *x86) again(bytes int) {
	g.op("ADDQ", imm(bytes), rW)
	g.op("DECQ", at(sCount, rScratch))
	g.op("JNZ", g.name+"_block")
	g.op("VZEROUPPER")
	g.op("RET")
}

// products adds the products of one line of weights, which stand in Y0 and Y1, with four values of each of
// n rows, from value 4*v of the sub-block on, to the sums; first ones replace the sums.
func (g *x86) products(n, v int, first bool) {
	for t := range n {
		g.op("VPBROADCASTD", indexed(4*v, rowRegs[t], rIndex, g.unit), y(2))
		for h := range 2 {
			switch {
			case g.vnni && first:
				g.op("VPXOR", acc(t, h), acc(t, h), acc(t, h))
				fallthrough
			case g.vnni:
				g.vpdpbusd(2, h, 4+2*t+h)
			case first:
				g.op("VPMADDUBSW", y(2), y(h), acc(t, h))
			default:
				g.op("VPMADDUBSW", y(2), y(h), y(3))
				g.op("VPADDW", y(3), acc(t, h), acc(t, h))
			}
		}
	}
}

// scaled multiplies the sums with the scales that stand at disp and adds them to the block's sums.
func (g *x86) scaled(n, disp int) {
	multiply := "VPMADDWD"
	if g.vnni {
		multiply = "VPMULLD"
	}
	for t := range n {
		for h := range 2 {
			sum := g.sum(n, t, h)
			g.op(multiply, indexed(disp+32*h, rScratch, rIndex, 8), acc(t, h), acc(t, h))
			if g.keeps(n) {
				g.op("VPADDD", acc(t, h), sum, sum)
				continue
			}
			g.op("VPADDD", sum, acc(t, h), acc(t, h))
			g.op("VMOVDQU", acc(t, h), sum)
		}
	}
}

// clearSums makes the block's sums zero.
func (g *x86) clearSums(n int) {
	g.op("VPXOR", y(0), y(0), y(0))
	for t := range n {
		for h := range 2 {
			g.op("VMOVDQU", y(0), g.sum(n, t, h))
		}
	}
}

// loop writes a loop over the sub-blocks of a block of bytes bytes: step values a turn.
func (g *x86) loop(name string, step, bytes int, body func(bytes int)) {
	g.op("XORQ", rIndex, rIndex)
	g.label(name)
	bytes = (bytes*step/256 + 63) &^ 63
	body(bytes)
	g.op("ADDQ", imm(8*64), rLines)
	if bytes > 0 {
		g.op("ADDQ", imm(bytes), rTemp)
	}
	g.op("ADDQ", imm(step/4), rIndex)
	g.op("CMPQ", rIndex, imm(64))
	g.op("JLT", name)
}

// scales unpacks scales of 8 bits to pairs of int16, or to int32 where sums are that.
func (g *x86) scales(from, count int, signed bool) {
	if g.vnni {
		widen := "VPMOVZXBD"
		if signed {
			widen = "VPMOVSXBD"
		}
		for i := range 2 * count {
			g.op(widen, at(from+8*i, rW), y(0))
			g.op("VMOVDQU", y(0), at(scaleAt(i/2, count)+32*(i%2), rScratch))
		}
		return
	}
	masks := [2]string{"lowRows", "highRows"}
	if signed {
		masks = [2]string{"lowSigned", "highSigned"}
	}
	for j := range count {
		g.op("VBROADCASTI128", at(from+16*j, rW), y(0))
		for h := range 2 {
			g.op("VPSHUFB", static(masks[h]), y(0), y(1))
			if signed {
				g.op("VPSRAW", imm(8), y(1), y(1))
			}
			g.op("VMOVDQU", y(1), at(scaleAt(j, count)+32*h, rScratch))
		}
	}
}

// scaleAt is where scale j of count stands: of two a sub-block, all first ones and then all second ones.
func scaleAt(j, count int) int {
	if count == 8 {
		return sScale + 64*j
	}
	return sScale + 64*(j/2) + 512*(j%2)
}

// minimums unpacks four pairs of minimums to pairs of int16.
func (g *x86) minimums(from int) {
	for i := range 8 {
		g.op("VPMOVZXBW", at(from+16*i, rW), y(0))
		g.op("VMOVDQU", y(0), at(sMin+32*i, rScratch))
	}
}

// halves turns 16 binary16 into float32.
func (g *x86) halves(from, to int) {
	for h := range 2 {
		g.op("VCVTPH2PS", at(from+16*h, rW), y(0))
		g.op("VMOVUPS", y(0), at(to+32*h, rScratch))
	}
}

// floats adds what the block's sums stand for to the results of n rows.
func (g *x86) floats(n int, minimums bool) {
	g.op("MOVQ", at(sDst, rScratch), rTemp)
	for t := range n {
		row := rowRegs[t]
		if minimums {
			for p := range 4 {
				g.op("VPBROADCASTD", at(recSums+4*p, row), y(p))
			}
			for h := range 2 {
				g.op("VPMADDWD", at(sMin+32*h, rScratch), y(0), y(6+h))
				for p := 1; p < 4; p++ {
					g.op("VPMADDWD", at(sMin+64*p+32*h, rScratch), y(p), y(4))
					g.op("VPADDD", y(4), y(6+h), y(6+h))
				}
			}
		}
		g.op("VBROADCASTSS", at(recScale, row), y(0))
		for h := range 2 {
			g.op("VMULPS", at(sD+32*h, rScratch), y(0), y(1))
			g.op("VCVTDQ2PS", g.sum(n, t, h), y(2))
			g.op("VMULPS", y(2), y(1), y(1))
			if minimums {
				g.op("VMULPS", at(sDMin+32*h, rScratch), y(0), y(2))
				g.op("VCVTDQ2PS", y(6+h), y(3))
				g.op("VMULPS", y(3), y(2), y(2))
				g.op("VSUBPS", y(2), y(1), y(1))
			}
			g.op("VADDPS", at(32*h, rTemp), y(1), y(1))
			g.op("VMOVUPS", y(1), at(32*h, rTemp))
		}
		g.op("ADDQ", at(argStride, rArgs), rTemp)
	}
	g.op("MOVQ", rTemp, at(sDst, rScratch))
}

// keepFrom is how many rows make it worth while to keep the weights of a block of Q4_K unpacked.
const keepFrom = 13

// q4k: eight products of a nibble and a value, two by two, add up to at most 30,480. For few rows nibbles
// are unpacked again for each six, since keeping them costs more in stores. For more, the first three rows
// leave them in memory for the others, three by three.
func (g *x86) q4k() {
	g.begin("Q4_K: sums over a whole sub-block.")
	g.later(q4Bytes)
	g.scales(q4Scale, 8, false)
	g.minimums(q4Min)
	g.halves(q4D, sD)
	g.halves(q4DMin, sDMin)
	if !g.vnni {
		g.op("CMPQ", at(argN, rArgs), imm(keepFrom))
		g.op("JLT", g.name+"_few")
		g.firstRow()
		g.group(g.most(), func(n int) { g.nibbles(n, "_first", true) })
		g.moreRows("kept", g.most(), func(n int) {
			g.unpacked(n, 0, func(int) {
				for v := range 8 {
					g.line(v, 0)
					g.products(n, v, v == 0)
				}
				g.scaled(n, sScale)
			})
			g.floats(n, true)
		})
		g.label(g.name + "_few")
	}
	g.rows(6, func(n int) { g.nibbles(n, "_loop", false) })
	g.end(q4Bytes)
}

// nibbles writes what is done for n rows and a block of Q4_K. If keep is set, unpacked weights stay in
// memory.
func (g *x86) nibbles(n int, label string, keep bool) {
	const kept = "DX" // a pointer; not with more than five rows
	g.clearSums(n)
	g.op("MOVQ", rW, rLines)
	if keep {
		g.op("LEAQ", at(sWeights, rScratch), kept)
	}
	g.loop(fmt.Sprintf("%s%s%d", g.name, label, n), 64, q4Bytes, func(bytes int) {
		for part := range 2 { // low nibbles, high nibbles
			for v := range 8 {
				g.ask(8*part+v, 16, bytes)
				for h := range 2 {
					g.op("VMOVDQU", at(64*v+32*h, rLines), y(h))
					if part == 1 {
						g.op("VPSRLW", imm(4), y(h), y(h))
					}
					g.op("VPAND", static("nibbles"), y(h), y(h))
					if keep {
						g.op("VMOVDQU", y(h), at(512*part+64*v+32*h, kept))
					}
				}
				g.products(n, 8*part+v, v == 0)
			}
			g.scaled(n, sScale+64*part)
		}
		if keep {
			g.op("ADDQ", imm(1024), kept)
		}
	})
	g.floats(n, true)
}

// unpacked writes the loop over weights that have been unpacked to scratch. bytes is 0 where others ask for
// what is needed later.
func (g *x86) unpacked(n, bytes int, body func(bytes int)) {
	g.clearSums(n)
	g.op("LEAQ", at(sWeights, rScratch), rLines)
	g.loop(fmt.Sprintf("%s_unpacked%d", g.name, n), 32, bytes, body)
}

// line loads line v of unpacked weights, and asks for what is due of bytes.
func (g *x86) line(v, bytes int) {
	g.ask(v, 8, bytes)
	for h := range 2 {
		g.op("VMOVDQU", at(64*v+32*h, rLines), y(h))
	}
}

// q5k: four products of a value of 5 bits add up to at most 31,496.
func (g *x86) q5k() {
	g.begin("Q5_K: weights unpacked once a block; 16-bit sums over half a sub-block, or 32-bit sums over all of it.")
	g.later(q5Bytes)
	g.scales(q5Scale, 8, false)
	g.minimums(q5Min)
	g.halves(q5D, sD)
	g.halves(q5DMin, sDMin)
	g.op("VMOVDQU", static("nibbles"), y(14))
	g.op("VMOVDQU", static("bit4"), y(15))
	for v := range 16 { // half lines
		g.op("VMOVDQU", at(q5High+32*v, rW), y(0))
		for r := range 4 {
			g.op("VMOVDQU", at(512*r+32*v, rW), y(1))
			for part := range 2 {
				j := 2*r + part
				g.op("VPSRLW", imm(4*part), y(1), y(2))
				g.op("VPAND", y(14), y(2), y(2))
				if j < 4 {
					g.op("VPSLLW", imm(4-j), y(0), y(3))
				} else {
					g.op("VPSRLW", imm(j-4), y(0), y(3))
				}
				g.op("VPAND", y(15), y(3), y(3))
				g.op("VPOR", y(3), y(2), y(2))
				g.op("VMOVDQU", y(2), at(sWeights+512*j+32*v, rScratch))
			}
		}
	}
	g.rows(g.most(), func(n int) {
		g.unpacked(n, q5Bytes, func(bytes int) {
			length := 4
			if g.vnni {
				length = 8
			}
			for v := range 8 {
				g.line(v, bytes)
				g.products(n, v, v%length == 0)
				if v%length == length-1 {
					g.scaled(n, sScale)
				}
			}
		})
		g.floats(n, true)
	})
	g.end(q5Bytes)
}

// q6k: with 32 added to the weights two products add up to at most 16,002, which VPMADDUBSW can hold. The
// sum over the 16 values of a scale, with the 32 taken off again, is at most 32,512: it is exact modulo
// 2^16, whatever its parts are.
func (g *x86) q6k() {
	g.begin("Q6_K: weights unpacked once a block, with 32 added; sums over the 16 values of a scale.")
	g.later(q6Bytes)
	g.scales(q6Scale, 16, true)
	g.halves(q6D, sD)
	g.op("VMOVDQU", static("nibbles"), y(14))
	g.op("VMOVDQU", static("pairs"), y(15))
	for half := range 2 {
		for v := range 16 {
			g.op("VMOVDQU", at(q6High+512*half+32*v, rW), y(0))
			for j := range 4 {
				g.op("VMOVDQU", at(1024*half+512*(j%2)+32*v, rW), y(1))
				if j >= 2 {
					g.op("VPSRLW", imm(4), y(1), y(1))
				}
				g.op("VPAND", y(14), y(1), y(1))
				if j < 2 {
					g.op("VPSLLW", imm(4-2*j), y(0), y(2))
				} else {
					g.op("VPSRLW", imm(2*j-4), y(0), y(2))
				}
				g.op("VPAND", y(15), y(2), y(2))
				g.op("VPOR", y(2), y(1), y(1))
				g.op("VMOVDQU", y(1), at(sWeights+512*(4*half+j)+32*v, rScratch))
			}
		}
	}
	start := recLane16
	if g.vnni {
		start = recSum16
	}
	g.rows(g.most(), func(n int) {
		g.unpacked(n, q6Bytes, func(bytes int) {
			for half := range 2 {
				for t := range n {
					g.op("VPBROADCASTD", indexed(start+4*half, rowRegs[t], rIndex, 1), acc(t, 0))
					g.op("VMOVDQU", acc(t, 0), acc(t, 1))
				}
				for v := 4 * half; v < 4*half+4; v++ {
					g.line(v, bytes)
					g.products(n, v, false)
				}
				g.scaled(n, sScale+512*half)
			}
		})
		g.floats(n, false)
	})
	g.end(q6Bytes)
}
