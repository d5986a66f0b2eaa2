package asm

// Tiles for formats with a scale every 32 values. A block of the panel is 32 values, an eighth of a record.

// begin32 writes the start of a tile, and of a block.
func (g *x86) begin32(comment string, bytes int) {
	g.unit = 1
	g.begin(comment)
	g.later(bytes)
	g.op("MOVQ", at(sIndex, rScratch), rIndex)
	g.op("MOVQ", rIndex, rLines)
	g.op("SHRQ", imm(3), rLines) // four bytes for each block before this one in the record
}

// end32 writes the step to the next block, and the return.
func (g *x86) end32(bytes int) {
	g.op("ADDQ", imm(32), rIndex)
	g.op("CMPQ", rIndex, imm(256))
	g.op("JLT", g.name+"_record")
	g.op("ADDQ", imm(recordBytes), at(sOffset, rScratch))
	g.op("XORQ", rIndex, rIndex)
	g.label(g.name + "_record")
	g.op("MOVQ", rIndex, at(sIndex, rScratch))
	g.again(bytes)
}

// floats32 adds sums, which are whole in the registers, times scales to the results.
func (g *x86) floats32(n int) {
	g.op("MOVQ", at(sDst, rScratch), rTemp)
	for t := range n {
		g.op("VBROADCASTSS", indexed(recScale, rowRegs[t], rLines, 1), y(0))
		for h := range 2 {
			g.op("VMULPS", at(sD+32*h, rScratch), y(0), y(1))
			g.op("VCVTDQ2PS", acc(t, h), y(2))
			g.op("VMULPS", y(2), y(1), y(1))
			g.op("VADDPS", at(32*h, rTemp), y(1), y(1))
			g.op("VMOVUPS", y(1), at(32*h, rTemp))
		}
		g.op("ADDQ", at(argStride, rArgs), rTemp)
	}
	g.op("MOVQ", rTemp, at(sDst, rScratch))
}

// q8: two products of full bytes add up to at most 32,512 when the sign of the weight is moved to the
// value; nothing can be added to that in 16 bits.
func (g *x86) q8() {
	g.begin32("Q8_0: |w| x sign(value, w), widened at once.", q8Bytes)
	g.halves(q8D, sD)
	const ones, value, product = 15, 12, 13
	g.op("VMOVDQU", static("ones"), y(ones))
	sum := func(t, h int) string { return y(4 + 2*t + h) } // four rows: Y4 to Y11
	g.rows(4, func(n int) {
		for v := range 8 {
			g.ask(v, 8, q8Bytes)
			for h := range 2 {
				g.op("VMOVDQU", at(64*v+32*h, rW), y(h))
				g.op("VPABSB", y(h), y(2+h))
			}
			for t := range n {
				g.op("VPBROADCASTD", indexed(4*v, rowRegs[t], rIndex, 1), y(value))
				for h := range 2 {
					g.op("VPSIGNB", y(h), y(value), y(product))
					g.op("VPMADDUBSW", y(product), y(2+h), y(product))
					if v == 0 {
						g.op("VPMADDWD", y(ones), y(product), sum(t, h))
						continue
					}
					g.op("VPMADDWD", y(ones), y(product), y(product))
					g.op("VPADDD", y(product), sum(t, h), sum(t, h))
				}
			}
		}
		g.floats32(n)
	})
	g.end32(q8Bytes)
}

// mxfp4: doubled values are -12 to 12; with 12 added they are unsigned. The sum over the block with the
// 12 taken off again is at most 24,384: it is exact modulo 2^16, whatever its parts are.
func (g *x86) mxfp4() {
	table, start := "mxfp4", recLane32
	if g.vnni {
		table, start = "mxfp4v", recSum32
	}
	g.begin32("MXFP4: doubled values with an offset; sums over a whole block.", mxBytes)
	for h := range 2 {
		g.op("VPMOVZXBD", at(mxScale+8*h, rW), y(0))
		g.op("VPSLLD", imm(23), y(0), y(0))
		g.op("VMOVUPS", y(0), at(sD+32*h, rScratch))
	}
	g.rows(6, func(n int) {
		for t := range n {
			g.op("VPBROADCASTD", indexed(start, rowRegs[t], rLines, 1), acc(t, 0))
			g.op("VMOVDQU", acc(t, 0), acc(t, 1))
		}
		for part := range 2 {
			for v := range 4 {
				g.ask(4*part+v, 8, mxBytes)
				for h := range 2 {
					g.op("VMOVDQU", at(64*v+32*h, rW), y(h))
					if part == 1 {
						g.op("VPSRLW", imm(4), y(h), y(h))
					}
					g.op("VPAND", static("nibbles"), y(h), y(h))
					g.op("VMOVDQU", static(table), y(3))
					g.op("VPSHUFB", y(h), y(3), y(h))
				}
				g.products(n, 4*part+v, false)
			}
		}
		for t := range n {
			for h := 0; h < 2 && !g.vnni; h++ {
				g.op("VPMADDWD", static("ones"), acc(t, h), acc(t, h))
			}
		}
		g.floats32(n)
	})
	g.end32(mxBytes)
}
