package asm

// sumsAway is where the sums of a record are seen from the end of its values.
const sumsAway = recSums - 256

// minimums writes the sums of values times minimums into registers: where the sums of products were, which
// are not needed any more; for SMLAL from 4 on.
func (p *pass) minimums() {
	switch p.set {
	case plain:
		p.minimumsPlain()
	case dot:
		p.minimumsDot()
	case matrix:
		p.minimumsMatrix()
	}
}

// part splits the eight sums of 16 bits of row t, at most 4,096, into parts of 8 bits: in the lower half of
// the register d how often they hold 64, in the upper half what is left. The minimums, which are bytes,
// can be multiplied with them as if they were weights.
func (p *pass) part(t, d, temp, mask int) {
	p.load(temp, sumsAway, nRows[t])
	p.shrn(d, temp, 6)
	p.one(xtn2, d, temp)
	p.do(and, d, d, mask)
}

func (p *pass) minimumsDot() {
	p.constant16("parts", 30)
	for t := range p.n {
		p.part(t, 24+t, 31, 30)
	}
	p.op("ADD", nPass+"<<1", nScratch, nWeights)
	for q := range 2 {
		p.load(30, aMin+32*q, nWeights)
		p.load(31, aMin+32*q+16, nWeights)
		for t := range p.n {
			sum := 2*t + q
			p.zero(sum)
			p.element(sdot, sum, 30, 24+t, 0)
			p.element(sdot, sum, 31, 24+t, 1)
			p.shift("VSHL", "S4", 6, sum, sum)
			p.element(sdot, sum, 30, 24+t, 2)
			p.element(sdot, sum, 31, 24+t, 3)
		}
	}
}

func (p *pass) minimumsMatrix() {
	p.constant16("parts", 0)
	for t := 0; t < p.n; t += 2 {
		other := 30
		p.part(t, 30, 1, 0)
		if t+1 < p.n {
			other = 31
			p.part(t+1, 31, 1, 0)
		}
		p.do(zip1D, 24+t, 30, other)
		p.do(zip2D, 25+t, 30, other)
	}
	p.op("ADD", nPass+"<<1", nScratch, nWeights)
	for i := range 4 {
		p.load(30, aMin+16*i, nWeights)
		for t := 0; t < p.n; t += 2 {
			sum := 2*t + i
			p.zero(sum)
			p.do(smmla, sum, 30, 24+t)
			p.shift("VSHL", "S4", 6, sum, sum)
			p.do(smmla, sum, 30, 25+t)
		}
	}
}

func (p *pass) minimumsPlain() {
	for t := range p.n {
		p.load(t, sumsAway, nRows[t])
	}
	p.op("ADD", nPass+">>1", nScratch, nWeights)
	low, high := smullH, smullH2
	for j := range 8 {
		w := 30 + j%2
		p.load(w, aMin+32*j, nWeights)
		for t := range p.n {
			p.element(low, 4+2*t, w, t, j)
			p.element(high, 5+2*t, w, t, j)
		}
		low, high = smlalH, smlalH2
	}
}

// floats adds what the sums of the block stand for to the results.
func (p *pass) floats() {
	const scale, product, minus, value, d, dmin = 24, 25, 26, 27, 28, 30
	for q := range p.wide {
		p.load(d+q, aD+16*q, nD)
	}
	if p.form.min > 0 {
		for q := range p.wide {
			p.load(dmin+q, aDMin+16*q, nD)
		}
	}
	for t := range p.n {
		p.op("FMOVS", "("+nRows[t]+")("+nAway+")", whole(scale))
		for q := range p.wide {
			p.one(scvtf, value, p.sum(t, q, value))
			p.element(fmulS, product, d+q, scale, 0)
			p.do(fmul, product, product, value)
			if p.form.min > 0 {
				p.one(scvtf, value, p.minimum(t, q, value))
				p.element(fmulS, minus, dmin+q, scale, 0)
				p.do(fmul, minus, minus, value)
				p.do(fsub, product, product, minus)
			}
			p.load(value, 16*q, nOut)
			p.do(fadd, value, value, product)
			p.store(value, 16*q, nOut)
		}
		p.op("ADD", nStride, nOut, nOut)
	}
}

// sum returns the register with the sums of row t and the weights of vector q: d, where they have to be put
// together.
func (p *pass) sum(t, q, d int) int {
	switch {
	case p.set == matrix:
		return p.unzip(p.acc(t/2*p.vectors()+2*q), t%2, d)
	case p.set == plain && p.form.full:
		p.do(addp4, d, 4*t+2*q, 4*t+2*q+1)
		return d
	}
	return p.acc(t*p.wide + q)
}

// minimum does the same for the sums of minimums.
func (p *pass) minimum(t, q, d int) int {
	switch p.set {
	case matrix:
		return p.unzip(t/2*4+2*q, t%2, d)
	case plain:
		return 4 + 2*t + q
	}
	return 2*t + q
}

// unzip takes the sums of the first or the second of two rows out of two vectors.
func (p *pass) unzip(from, second, d int) int {
	i := uzp1S
	if second == 1 {
		i = uzp2S
	}
	p.do(i, d, from, from+1)
	return d
}
