package asm

// pass is the products of some rows with one piece of each line: all of it, or one half and then the other.
// What one set of registers holds:
//
//	      SDOT                          SMMLA                       SMLAL
//	0     up to 6 x 2 (4) sums of a step, of products               up to 4 x 4 sums of 16 bits
//	12    up to 6 x 2 sums of the block; in formats of 32 values    16: up to 4 x 2 sums of the block
//	      these, too, are sums of a step
//	24    16 values of each row         8 values of two rows        4 values of a row, four times
//	30    weights                       28: weights                 28: weights
//
// With few rows, whose weights are unpacked here, there is more room: vMask, vTable and vOne lie between
// the sums and the rows. SMMLA has the sums of two rows in one vector: row 0 of the weights with both, row
// 1 with both.
type pass struct {
	*arm
	set  set
	src  *source
	n    int // rows
	wide int // vectors of a line
}

// products returns a function that writes the products of n rows and what becomes of them.
func (g *arm) products(s set, src *source) func(label string, n int) {
	wide := 4
	if g.form.k() || s == plain {
		wide = 2
	}
	return func(label string, n int) {
		(&pass{g, s, src, n, wide}).write(label)
	}
}

func (p *pass) write(label string) {
	p.op("MOVD", "ZR", nPass)
	if p.wide < 4 {
		p.label(label + "_pass")
	}
	p.point()
	if p.form.k() {
		for i := range p.accs() {
			p.zero(p.acc(i))
		}
	}
	p.turns(label+"_turn", p.src, p.step)
	if p.form.min > 0 {
		p.minimums()
	}
	p.floats()
	if p.wide == 4 {
		p.op("MOVD", nOut, nDst)
		return
	}
	back := 32
	if p.form.k() {
		back = 256
	}
	for t := range p.n {
		p.op("SUB", imm(back), nRows[t], nRows[t])
	}
	p.op("ADD", imm(line/2), nPass, nPass)
	p.op("CMP", imm(line), nPass)
	p.op("BLT", label+"_pass")
	p.op("SUB", imm(line/2), nOut, nDst)
}

// point sets the pointers of the pass.
func (p *pass) point() {
	base, shift := nScratch, ""
	if p.set == matrix {
		shift = "<<1"
	}
	if p.src == &p.form.file {
		base = nPanel
	}
	p.op("ADD", nPass+shift, base, nWeights)
	p.op("ADD", nPass, nScratch, nD)
	p.op("ADD", nPass, nDst, nOut)
	if p.form.k() {
		p.op("ADD", nPass+shift, nScratch, nScale)
		p.op("ADD", imm(aScale), nScale, nScale)
	}
}

// vectors is how many vectors there are of each line, or pair of lines; accs how many of all sums.
func (p *pass) vectors() int {
	if p.set == matrix {
		return 2 * p.wide
	}
	return p.wide
}

func (p *pass) accs() int {
	if p.set == matrix {
		return (p.n + 1) / 2 * p.vectors()
	}
	return p.n * p.vectors()
}

// acc is the register of a sum of the block.
func (p *pass) acc(i int) int {
	switch {
	case p.set == plain:
		return 16 + i
	case p.form.k():
		return 12 + i
	}
	return i
}

// weights runs over the weights of a step. A register is loaded again as soon as it has been used, long
// before its turn comes: processors that do not reorder instructions would wait.
func (p *pass) weights(step int, use func(i, w int)) {
	regs := []int{28, 29, 30, 31}
	if p.src == &p.form.file || p.set == dot {
		regs = regs[2:]
	}
	count := p.form.lines * p.wide // vectors of 16 weights
	size := 16 * p.vectors()       // of a line or pair of lines, in this pass
	all := size * 4 / p.wide
	load := func(i int) {
		p.src.load(p.arm, step, 16*i/size*all+16*i%size, regs[i%len(regs)])
	}
	for i := range regs {
		load(i)
	}
	for i := range count {
		use(i, regs[i%len(regs)])
		if i+len(regs) < count {
			load(i + len(regs))
		}
	}
}

// step writes the products of one step, and adds them, scaled, to the sums of the block.
func (p *pass) step(step int) {
	switch {
	case p.set == dot:
		p.stepDot(step)
	case p.set == matrix:
		p.stepMatrix(step)
	case p.form.full:
		p.stepFull()
	default:
		p.stepPlain(step)
	}
}

func (p *pass) stepDot(step int) {
	for i := range p.accs() {
		p.zero(i)
	}
	p.weights(step, func(i, w int) {
		v, q := i/p.wide, i%p.wide
		for t := range p.n {
			if v%4 == 0 && q == 0 {
				p.op("FMOVQ.P", at(16, nRows[t]), whole(24+t))
			}
		}
		for t := range p.n {
			p.element(sdot, t*p.wide+q, w, 24+t, v%4)
		}
	})
	p.scaled(30)
}

func (p *pass) stepMatrix(step int) {
	for i := range p.accs() {
		p.zero(i)
	}
	n := p.vectors()
	p.weights(step, func(i, w int) {
		if i%n == 0 {
			p.pairs()
		}
		for t := 0; t < p.n; t += 2 {
			p.do(smmla, t/2*n+i%n, w, 24+t/2)
		}
	})
	p.scaled(28)
}

// pairs loads eight values of each two rows; a row without another stands twice.
func (p *pass) pairs() {
	for t := 0; t < p.n; t += 2 {
		if t+1 == p.n {
			p.op("VLD1R.P", at(8, nRows[t]), "["+vec(24+t/2, "D2")+"]")
			continue
		}
		p.op("FMOVD.P", at(8, nRows[t]), whole(24+t/2))
		p.op("VLD1.P", at(8, nRows[t+1]), vec(24+t/2, "D[1]"))
	}
}

// scaled multiplies the sums of a step with its scales, which it loads to the registers from first on.
func (p *pass) scaled(first int) {
	if !p.form.k() {
		return
	}
	n := p.vectors()
	for i := range n {
		p.load(first+i, 16*i, nScale)
	}
	for i := range p.accs() {
		p.do(mla, p.acc(i), i, first+i%n)
	}
	p.op("ADD", imm(32*n), nScale, nScale)
}

// stepPlain has sums of 16 bits: in each, one value of four of one row of weights.
func (p *pass) stepPlain(step int) {
	low, high := smull, smull2
	p.weights(step, func(i, w int) {
		q := i % 2
		if i == 2 {
			low, high = smlal, smlal2
		}
		for t := range p.n {
			if q == 0 {
				p.op("VLD1R.P", at(4, nRows[t]), "["+vec(24+t, "S4")+"]")
			}
		}
		for t := range p.n {
			p.do(low, 4*t+2*q, w, 24+t)
			p.do(high, 4*t+2*q+1, w, 24+t)
		}
	})
	if p.form.k() {
		for q := range 2 {
			p.load(24+q, 16*q, nScale)
		}
		p.op("ADD", imm(64), nScale, nScale)
	}
	for i := range 2 * p.n {
		sum := p.acc(i)
		if p.form.k() {
			sum = 30 + i%2
		}
		if p.form.narrow {
			p.do(addp8, sum, 2*i, 2*i+1)
			p.one(saddlp, sum, sum)
		} else {
			p.one(saddlp, 2*i, 2*i)
			p.one(saddlp, 2*i+1, 2*i+1)
			p.do(addp4, sum, 2*i, 2*i+1)
		}
		if p.form.k() {
			p.do(mla, p.acc(i), sum, 24+i%2)
		}
	}
}

// stepFull adds two products in 16 bits and widens them: 2 x 128 x 127 is 32,512.
func (p *pass) stepFull() {
	widen := saddlp
	for v := 0; v < p.form.lines; v += 2 {
		for i := range 4 {
			p.src.load(p.arm, 0, (v+i/2)*line+16*(i%2), 28+i)
		}
		for t := range p.n {
			values, products := 24+t%2*2, 16+t%2*4
			p.op("VLD1R.P", at(4, nRows[t]), "["+vec(values, "S4")+"]")
			p.op("VLD1R.P", at(4, nRows[t]), "["+vec(values+1, "S4")+"]")
			for q := range 2 {
				p.do(smull, products+2*q, 28+q, values)
				p.do(smull2, products+2*q+1, 28+q, values)
			}
			for q := range 2 {
				p.do(smlal, products+2*q, 30+q, values+1)
				p.do(smlal2, products+2*q+1, 30+q, values+1)
			}
			for i := range 4 {
				p.one(widen, 4*t+i, products+i)
			}
		}
		widen = sadalp
	}
}
