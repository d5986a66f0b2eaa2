package asm

import "fmt"

// z512 is a tile with 512-bit registers that is being written: a line of weights is one register. Eight
// rows at a time; their sums over a sub-block stand in Z8 to Z15, those over the block in Z16 to Z23.
type z512 struct {
	*file
	name string
}

const zRows = 8

// Besides those of x86 two more registers point to rows: the cursor and the count are kept in memory.
var rowRegs512 = []string{"R8", "R9", "R10", "R11", "CX", "DX", "R13", "R15"}

const (
	sCursor = 5920
	sLeft   = 5928

	zWeight, zHigh, zScale = 0, 1, 2 // a line of weights; its upper bits; the scales of a sub-block
	zNibbles, zBits        = 3, 4    // masks
	zTable                 = 4       // MXFP4
	zD, zDMin, zMin        = 24, 25, 26
)

func z(n int) string      { return fmt.Sprintf("Z%d", n) }
func zPart(t int) string  { return z(8 + t) }
func zTotal(t int) string { return z(16 + t) }

func avx512() string {
	f := newFile("AVX-512 VNNI: products of unsigned weights and signed values by VPDPBUSD, in 32-bit sums.")
	f.constant("nibbles", 0x0f0f0f0f)
	f.constant("bit4", 0x10101010)
	f.constant("pairs", 0x30303030)
	f.constant("offset", 0x80808080)
	f.bytes("mxfp4v", mxOffset, mxOffset)
	(&z512{f, "tileQ4KAVX512"}).q4k()
	(&z512{f, "tileQ5KAVX512"}).q5k()
	(&z512{f, "tileQ6KAVX512"}).q6k()
	(&z512{f, "tileQ8AVX512"}).q8()
	(&z512{f, "tileMXFP4AVX512"}).mxfp4()
	f.peak("peakAVX512", func() {
		for i := range 12 {
			f.op("VPDPBUSD", z(12), z(13), z(i))
		}
	}, func() { f.op("VZEROUPPER") })
	return f.String()
}

// begin writes the start of a tile: all results become zero.
func (g *z512) begin(comment string, masks map[int]string) {
	g.text(g.name, comment)
	g.op("MOVQ", "a+0(FP)", rArgs)
	g.op("MOVQ", at(argW, rArgs), rW)
	g.op("MOVQ", at(argScratch, rArgs), rScratch)
	g.op("MOVQ", at(argBlocks, rArgs), rTemp)
	g.op("MOVQ", rTemp, at(sCount, rScratch))
	g.op("XORQ", rTemp, rTemp)
	g.op("MOVQ", rTemp, at(sOffset, rScratch))
	g.op("MOVQ", rTemp, at(sIndex, rScratch))
	for _, r := range []int{zNibbles, zBits} {
		if name := masks[r]; name != "" {
			g.op("VBROADCASTI32X4", static(name), z(r))
		}
	}
	g.op("MOVQ", at(argN, rArgs), "R8")
	g.op("MOVQ", at(argDst, rArgs), rTemp)
	g.op("VPXORD", z(0), z(0), z(0))
	g.label(g.name + "_zero")
	g.op("VMOVUPS", z(0), at(0, rTemp))
	g.op("ADDQ", at(argStride, rArgs), rTemp)
	g.op("DECQ", "R8")
	g.op("JNZ", g.name+"_zero")
	g.label(g.name + "_block")
}

// rows writes the loop over the rows: eight at a time, then what is left.
func (g *z512) rows(body func(n int)) {
	g.op("MOVQ", at(argN, rArgs), rTemp)
	g.op("MOVQ", rTemp, at(sLeft, rScratch))
	g.op("MOVQ", at(argDst, rArgs), rTemp)
	g.op("MOVQ", rTemp, at(sDst, rScratch))
	g.op("MOVQ", at(argRows, rArgs), rTemp)
	g.op("MOVQ", rTemp, at(sCursor, rScratch))
	for n := zRows; n >= 1; n-- {
		g.label(fmt.Sprintf("%s_rows%d", g.name, n))
		g.op("CMPQ", at(sLeft, rScratch), imm(n))
		next := fmt.Sprintf("%s_rows%d", g.name, n-1)
		if n == 1 {
			next = g.name + "_done"
		}
		g.op("JLT", next)
		g.op("MOVQ", at(sCursor, rScratch), rTemp)
		for t := range n {
			g.op("MOVQ", at(8*t, rTemp), rowRegs512[t])
			g.op("ADDQ", at(sOffset, rScratch), rowRegs512[t])
		}
		g.op("ADDQ", imm(8*n), at(sCursor, rScratch))
		g.op("SUBQ", imm(n), at(sLeft, rScratch))
		g.op("MOVQ", at(sAhead, rScratch), rTemp)
		body(n)
		if n == zRows {
			g.op("JMP", fmt.Sprintf("%s_rows%d", g.name, n))
		} else {
			g.op("JMP", g.name+"_done")
		}
	}
	g.label(g.name + "_done")
}

func (g *z512) frame() *x86 { return &x86{file: g.file, name: g.name, vnni: true, unit: 4} }

// clear makes n registers from first on zero.
func (g *z512) clear(first, n int) {
	for t := range n {
		g.op("VPXORD", z(first+t), z(first+t), z(first+t))
	}
}

// products adds the products of the line in zWeight with four values of n rows, from disp on, to their
// sums. unit is that of rIndex.
func (g *z512) products(n, disp, unit int) {
	for t := range n {
		g.op("VPDPBUSD.BCST", indexed(disp, rowRegs512[t], rIndex, unit), z(zWeight), zPart(t))
	}
}

// scaled adds the sums, times the scales in zScale, to those of the block.
func (g *z512) scaled(n int) {
	for t := range n {
		g.op("VPMULLD", z(zScale), zPart(t), zPart(t))
		g.op("VPADDD", zPart(t), zTotal(t), zTotal(t))
	}
}

// nibbles loads a line of weights: its low or its high halves.
func (g *z512) nibbles(disp, part int) {
	if part == 0 {
		g.op("VPANDD", at(disp, rLines), z(zNibbles), z(zWeight))
		return
	}
	g.op("VPSRLW", imm(4), at(disp, rLines), z(zWeight))
	g.op("VPANDD", z(zNibbles), z(zWeight), z(zWeight))
}

// upper adds the upper bits of a line, which stand at disp, to the weights: shifted left, and masked.
func (g *z512) upper(disp int, base string, left int) {
	switch {
	case left > 0:
		g.op("VPSLLW", imm(left), at(disp, base), z(zHigh))
	case left < 0:
		g.op("VPSRLW", imm(-left), at(disp, base), z(zHigh))
	default:
		g.op("VPTERNLOGD", "$0xf8", at(disp, base), z(zBits), z(zWeight))
		return
	}
	g.op("VPTERNLOGD", "$0xf8", z(zHigh), z(zBits), z(zWeight)) // weights | upper & mask
}

// minimums computes the sums of values times minimums of n rows, in the place of their parts.
func (g *z512) minimums(n, from int) {
	for p := range 4 {
		g.op("VPMOVZXBW", at(from+32*p, rW), z(zMin+p))
	}
	g.clear(8, n)
	for p := range 4 {
		for t := range n {
			g.op("VPDPWSSD.BCST", at(recSums+4*p, rowRegs512[t]), z(zMin+p), zPart(t))
		}
	}
}

// floats adds what the block's sums stand for to the results of n rows.
func (g *z512) floats(n, d, dMin int) {
	g.op("VCVTPH2PS", at(d, rW), z(zD))
	if dMin > 0 {
		g.op("VCVTPH2PS", at(dMin, rW), z(zDMin))
	}
	g.op("MOVQ", at(sDst, rScratch), rTemp)
	for t := range n {
		row := rowRegs512[t]
		g.op("VMULPS.BCST", at(recScale, row), z(zD), z(0))
		g.op("VCVTDQ2PS", zTotal(t), z(1))
		g.op("VMULPS", z(1), z(0), z(0))
		if dMin > 0 {
			g.op("VMULPS.BCST", at(recScale, row), z(zDMin), z(1))
			g.op("VCVTDQ2PS", zPart(t), z(2))
			g.op("VMULPS", z(2), z(1), z(1))
			g.op("VSUBPS", z(1), z(0), z(0))
		}
		g.op("VADDPS", at(0, rTemp), z(0), z(0))
		g.op("VMOVUPS", z(0), at(0, rTemp))
		g.op("ADDQ", at(argStride, rArgs), rTemp)
	}
	g.op("MOVQ", rTemp, at(sDst, rScratch))
}

func (g *z512) q4k() {
	g.begin("Q4_K.", map[int]string{zNibbles: "nibbles"})
	g.frame().later(q4Bytes)
	g.rows(func(n int) {
		g.clear(16, n)
		g.op("MOVQ", rW, rLines)
		g.frame().loop(fmt.Sprintf("%s_loop%d", g.name, n), 64, q4Bytes, func(bytes int) {
			for part := range 2 {
				g.clear(8, n)
				for v := range 8 {
					g.ask(8*part+v, 16, bytes)
					g.nibbles(64*v, part)
					g.products(n, 32*part+4*v, 4)
				}
				g.op("VPMOVZXBD", indexed(q4Scale+16*part, rW, rIndex, 2), z(zScale))
				g.scaled(n)
			}
		})
		g.minimums(n, q4Min)
		g.floats(n, q4D, q4DMin)
	})
	g.frame().end(q4Bytes)
}

// q5k is written out for all sub-blocks: each takes its fifth bits from another place.
func (g *z512) q5k() {
	g.begin("Q5_K.", map[int]string{zNibbles: "nibbles", zBits: "bit4"})
	g.frame().later(q5Bytes)
	g.rows(func(n int) {
		g.clear(16, n)
		g.op("XORQ", rIndex, rIndex)
		g.op("MOVQ", rW, rLines)
		for j := range 8 {
			g.clear(8, n)
			for v := range 8 {
				g.ask(8*j+v, 64, q5Bytes)
				g.nibbles(512*(j/2)+64*v, j%2)
				g.upper(q5High+64*v, rW, 4-j)
				g.products(n, 32*j+4*v, 1)
			}
			g.op("VPMOVZXBD", at(q5Scale+16*j, rW), z(zScale))
			g.scaled(n)
		}
		g.minimums(n, q5Min)
		g.floats(n, q5D, q5DMin)
	})
	g.frame().end(q5Bytes)
}

// q6k is written out for the four sub-blocks of a half, which share their upper bits.
func (g *z512) q6k() {
	g.begin("Q6_K: weights with 32 added.", map[int]string{zNibbles: "nibbles", zBits: "pairs"})
	g.frame().later(q6Bytes)
	g.rows(func(n int) {
		g.clear(16, n)
		g.op("XORQ", rIndex, rIndex)
		for half := range 2 {
			g.op("LEAQ", at(1024*half, rW), rLines)
			for j := range 4 {
				sub := 4*half + j
				for part := range 2 {
					for t := range n {
						g.op("VPBROADCASTD", at(recSum16+4*(2*sub+part), rowRegs512[t]), zPart(t))
					}
					for v := 4 * part; v < 4*part+4; v++ {
						g.ask(8*sub+v, 64, q6Bytes)
						g.nibbles(512*(j%2)+64*v, j/2)
						g.upper(q6High+512*half+64*v, rW, 4-2*j)
						g.products(n, 32*sub+4*v, 1)
					}
					g.op("VPMOVSXBD", at(q6Scale+16*(2*sub+part), rW), z(zScale))
					g.scaled(n)
				}
			}
		}
		g.floats(n, q6D, 0)
	})
	g.frame().end(q6Bytes)
}

// floats32 adds the sums times the scales to the results.
func (g *z512) floats32(n int) {
	g.op("MOVQ", at(sDst, rScratch), rTemp)
	for t := range n {
		g.op("VMULPS.BCST", indexed(recScale, rowRegs512[t], rLines, 1), z(zD), z(0))
		g.op("VCVTDQ2PS", zPart(t), z(1))
		g.op("VMULPS", z(1), z(0), z(0))
		g.op("VADDPS", at(0, rTemp), z(0), z(0))
		g.op("VMOVUPS", z(0), at(0, rTemp))
		g.op("ADDQ", at(argStride, rArgs), rTemp)
	}
	g.op("MOVQ", rTemp, at(sDst, rScratch))
}

// begin32 writes the start of a tile of blocks of 32 values, and of a block.
func (g *z512) begin32(comment string, bytes int, masks map[int]string) {
	g.begin(comment, masks)
	g.frame().later(bytes)
	g.op("MOVQ", at(sIndex, rScratch), rIndex)
	g.op("MOVQ", rIndex, rLines)
	g.op("SHRQ", imm(3), rLines) // four bytes for each block before this one in the record
}

func (g *z512) starts(n int) {
	for t := range n {
		g.op("VPBROADCASTD", indexed(recSum32, rowRegs512[t], rLines, 1), zPart(t))
	}
}

func (g *z512) q8() {
	g.begin32("Q8_0: weights with 128 added.", q8Bytes, map[int]string{zBits: "offset"})
	g.op("VCVTPH2PS", at(q8D, rW), z(zD))
	g.rows(func(n int) {
		g.starts(n)
		for v := range 8 {
			g.ask(v, 8, q8Bytes)
			g.op("VPXORD", at(64*v, rW), z(zBits), z(zWeight))
			g.products(n, 4*v, 1)
		}
		g.floats32(n)
	})
	g.frame().end32(q8Bytes)
}

func (g *z512) mxfp4() {
	g.begin32("MXFP4: doubled values with 128 added.", mxBytes, map[int]string{zNibbles: "nibbles", zTable: "mxfp4v"})
	g.op("VPMOVZXBD", at(mxScale, rW), z(zD))
	g.op("VPSLLD", imm(23), z(zD), z(zD))
	g.rows(func(n int) {
		g.starts(n)
		for part := range 2 {
			for v := range 4 {
				g.ask(4*part+v, 8, mxBytes)
				if part == 0 {
					g.op("VPANDD", at(64*v, rW), z(zNibbles), z(zWeight))
				} else {
					g.op("VPSRLW", imm(4), at(64*v, rW), z(zWeight))
					g.op("VPANDD", z(zNibbles), z(zWeight), z(zWeight))
				}
				g.op("VPSHUFB", z(zWeight), z(zTable), z(zWeight))
				g.products(n, 16*part+4*v, 1)
			}
		}
		g.floats32(n)
	})
	g.frame().end32(mxBytes)
}
