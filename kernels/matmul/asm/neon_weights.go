package asm

// Registers that stay as they are while weights of one pass are unpacked, and one for what is at hand.
const (
	vMask, vTable, vOne = 22, 23, 28
	vBits               = 29
)

var neonQ4K = form{
	what:  "Q4_K",
	bytes: q4Bytes, steps: 8, lines: 8, d: q4D, scale: q4Scale, dmin: q4DMin, min: q4Min,
	narrow: true, // 16 x 15 x 127 is 30,480
	file: source{
		turns: 4, steps: 2, advance: 8 * line,
		begin: func(g *arm) { g.op("VMOVI", imm(15), vec(vMask, "B16")) },
		load:  func(g *arm, step, at, to int) { g.nibbles(step == 1, at, to) },
	},
}

// nibbles loads the low or the high halves of 16 bytes.
func (g *arm) nibbles(high bool, at, to int) {
	g.load(to, at, nWeights)
	if high {
		g.shift("VUSHR", "B16", 4, to, to)
		return
	}
	g.do(and, to, to, vMask)
}

// Q5_K: which of the fifth bits is at hand is a number in a register, so that there can be a loop.
var neonQ5K = form{
	what:  "Q5_K",
	bytes: q5Bytes, steps: 8, lines: 8, d: q5D, scale: q5Scale, dmin: q5DMin, min: q5Min,
	file: source{
		turns: 4, steps: 2, advance: 8 * line,
		begin: func(g *arm) {
			g.op("ADD", nPass, nPanel, nSecond)
			g.op("VMOVI", imm(31), vec(vMask, "B16"))
			g.op("VMOVI", imm(1), vec(vOne, "B16"))
			g.zero(vTable)
		},
		load: func(g *arm, step, at, to int) {
			g.load(to, at, nWeights)
			g.load(vBits, q5High+at, nSecond)
			if step == 1 {
				g.shift("VUSHR", "B16", 4, to, to)
			}
			g.do(ushl, vBits, vBits, vTable)
			g.shift("VSLI", "B16", 4, vBits, to)
			g.do(and, to, to, vMask)
		},
		next: func(g *arm, _ int) { g.do(sub, vTable, vTable, vOne) }, // one bit further down
	},
}

// Q6_K: a step is half a sub-block, a turn is four sub-blocks.
var neonQ6K = form{
	what:  "Q6_K",
	bytes: q6Bytes, steps: 16, lines: 4, d: q6D, scale: q6Scale,
	narrow: true, // 8 x 32 x 127 is 32,512
	file: source{
		turns: 2, steps: 8, advance: 16 * line,
		begin: func(g *arm) {
			g.op("ADD", nPass, nPanel, nSecond)
			g.op("VMOVI", imm(63), vec(vMask, "B16"))
			g.op("VMOVI", imm(32), vec(vTable, "B16"))
		},
		load: func(g *arm, step, at, to int) {
			j := step / 2
			at += step % 2 * 4 * line
			g.load(to, j%2*8*line+at, nWeights)
			g.load(vBits, q6High+at, nSecond)
			if j >= 2 {
				g.shift("VUSHR", "B16", 4, to, to)
			}
			if j > 0 {
				g.shift("VUSHR", "B16", 2*j, vBits, vBits)
			}
			g.shift("VSLI", "B16", 4, vBits, to)
			g.do(and, to, to, vMask)
			g.do(sub, to, to, vTable)
		},
		next: func(g *arm, step int) {
			if step == 7 {
				g.op("ADD", imm(8*line), nSecond, nSecond)
			}
		},
	},
}

var neonQ8 = form{
	what:  "Q8_0",
	bytes: q8Bytes, steps: 1, lines: 8, d: q8D,
	full: true,
	file: source{
		turns: 1, steps: 1,
		load: func(g *arm, _, at, to int) { g.load(to, at, nWeights) },
	},
}

var neonMXFP4 = form{
	what:  "MXFP4: doubled values",
	bytes: mxBytes, steps: 1, lines: 8, d: mxScale, scaleBytes: true,
	narrow: true, // 16 x 12 x 127 is 24,384
	file: source{
		turns: 1, steps: 1,
		begin: func(g *arm) {
			g.op("VMOVI", imm(15), vec(vMask, "B16"))
			g.constant16("doubled", vTable)
		},
		load: func(g *arm, _, at, to int) {
			g.nibbles(at >= 4*line, at%(4*line), to)
			g.op("VTBL", vec(to, "B16"), "["+vec(vTable, "B16")+"]", vec(to, "B16"))
		},
	},
}

// unpacked is the weights that unpack has put into scratch.
func (g *arm) unpacked() source {
	return source{
		turns: g.form.steps, steps: 1, advance: g.form.lines * line,
		load: func(g *arm, _, at, to int) { g.load(to, aWeights+at, nWeights) },
	}
}

// turns writes the loop over the turns of a source.
func (g *arm) turns(label string, s *source, step func(step int)) {
	if s.begin != nil {
		s.begin(g)
	}
	if s.turns > 1 {
		g.op("MOVD", imm(s.turns), nTurn)
		g.label(label)
	}
	for i := range s.steps {
		step(i)
		if s.next != nil {
			s.next(g, i)
		}
	}
	if s.turns > 1 {
		g.op("ADD", imm(s.advance), nWeights, nWeights)
		g.op("SUBS", imm(1), nTurn, nTurn)
		g.op("BNE", label)
	}
}

// unpack puts all weights of the block into scratch. For SMMLA each two lines become rows of eight values:
// the first vector has rows 0 and 1, and so on.
func (g *arm) unpack() {
	g.op("MOVD", nPanel, nWeights)
	g.op("ADD", imm(aWeights), nScratch, nTemp)
	g.op("MOVD", "ZR", nPass)
	g.turns(g.name+"_unpack", &g.form.file, func(step int) {
		for v := 0; v < g.form.lines; v += 2 {
			for i := range 8 {
				g.form.file.load(g, step, v*line+16*i, i)
			}
			first := 0
			if g.set == matrix {
				first = 8
				for i := range 4 {
					g.do(zip1S, 8+2*i, i, 4+i)
					g.do(zip2S, 9+2*i, i, 4+i)
				}
			}
			g.op("VST1.P", vecs(first, 4), at(64, nTemp))
			g.op("VST1.P", vecs(first+4, 4), at(64, nTemp))
		}
	})
}

// prepare brings what stands beside the weights into the form that s wants.
func (g *arm) prepare(s set, label string) {
	if g.form.k() {
		g.scales(s, g.name+label)
	}
	g.op("ADD", imm(aD), nScratch, nTemp)
	g.floats16(g.form.d)
	if g.form.dmin == 0 {
		return
	}
	g.floats16(g.form.dmin)
	g.op("ADD", imm(aMin), nScratch, nTemp)
	if s == plain {
		g.minimums16()
	} else {
		g.minimums8(s)
	}
}

// scales makes int32 of scales of 8 bits.
func (g *arm) scales(s set, label string) {
	g.op("ADD", imm(g.form.scale), nPanel, nScale)
	g.op("ADD", imm(aScale), nScratch, nTemp)
	g.op("MOVD", imm(g.form.steps), nTurn)
	g.label(label)
	g.op("FMOVQ.P", at(16, nScale), whole(0))
	g.one(sxtlB, 1, 0)
	g.one(sxtlB2, 2, 0)
	g.one(sxtlH, 4, 1)
	g.one(sxtlH2, 5, 1)
	g.one(sxtlH, 6, 2)
	g.one(sxtlH2, 7, 2)
	if s == matrix {
		for i := range 4 {
			g.do(zip1S, 8+2*i, 4+i, 4+i)
			g.do(zip2S, 9+2*i, 4+i, 4+i)
		}
		g.op("VST1.P", vecs(8, 4), at(64, nTemp))
		g.op("VST1.P", vecs(12, 4), at(64, nTemp))
	} else {
		g.op("VST1.P", vecs(4, 4), at(64, nTemp))
	}
	g.op("SUBS", imm(1), nTurn, nTurn)
	g.op("BNE", label)
}

// floats16 makes 16 float32 at nTemp of 16 binary16, or of bytes s that stand for the bits s << 23.
func (g *arm) floats16(from int) {
	g.load(0, from, nPanel)
	if g.form.scaleBytes {
		g.one(uxtlB, 1, 0)
		g.one(uxtlB2, 2, 0)
		for i, w := range []inst{uxtlH, uxtlH2, uxtlH, uxtlH2} {
			g.one(w, 4+i, 1+i/2)
			g.shift("VSHL", "S4", 23, 4+i, 4+i)
		}
	} else {
		g.load(1, from+16, nPanel)
		for i, w := range []inst{fcvtl, fcvtl2, fcvtl, fcvtl2} {
			g.one(w, 4+i, i/2)
		}
	}
	g.op("VST1.P", vecs(4, 4), at(64, nTemp))
}

// minimums8 lays out the minimums by row: four rows x sub-blocks 0 to 3, the same rows x sub-blocks 4 to 7;
// for SMMLA two rows x all sub-blocks.
func (g *arm) minimums8(s set) {
	for i := range 8 {
		g.load(i, g.form.min+16*i, nPanel)
	}
	for h := range 2 { // rows 8h to 8h+7
		g.do(zip1H, 8, h, 2+h)
		g.do(zip1H, 9, 4+h, 6+h)
		g.do(zip2H, 10, h, 2+h)
		g.do(zip2H, 11, 4+h, 6+h)
		if s == matrix {
			g.do(zip1S, 12, 8, 9)
			g.do(zip2S, 13, 8, 9)
			g.do(zip1S, 14, 10, 11)
			g.do(zip2S, 15, 10, 11)
			g.op("VST1.P", vecs(12, 4), at(64, nTemp))
		} else {
			g.op("VST1.P", vecs(8, 4), at(64, nTemp))
		}
	}
}

// minimums16 lays out the minimums by sub-block, as int16.
func (g *arm) minimums16() {
	g.op("ADD", imm(g.form.min), nPanel, nScale)
	for range 4 {
		g.op("VLD2.P", at(32, nScale), vecs(0, 2))
		g.one(uxtlB, 4, 0)
		g.one(uxtlB2, 5, 0)
		g.one(uxtlB, 6, 1)
		g.one(uxtlB2, 7, 1)
		g.op("VST1.P", vecs(4, 4), at(64, nTemp))
	}
}
