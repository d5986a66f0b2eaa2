package asm

// avxVNNI is the AVX2 tiles with VPDPBUSD in place of VPMADDUBSW.
func avxVNNI() string {
	f := newFile("AVX-VNNI: products of unsigned weights and signed values by VPDPBUSD, in 32-bit sums.")
	f.constant("nibbles", 0x0f0f0f0f)
	f.constant("bit4", 0x10101010)
	f.constant("pairs", 0x30303030)
	f.constant("offset", 0x80808080)
	f.bytes("mxfp4v", mxOffset, mxOffset)
	tile := func(name string) *x86 { return &x86{file: f, name: name, vnni: true, unit: 4} }
	tile("tileQ4KAVXVNNI").q4k()
	tile("tileQ5KAVXVNNI").q5k()
	tile("tileQ6KAVXVNNI").q6k()
	tile("tileQ8AVXVNNI").q8v()
	tile("tileMXFP4AVXVNNI").mxfp4()
	f.peak("peakAVXVNNI", func() {
		for i := range 12 {
			f.vpdpbusd(12, 13, i)
		}
	}, func() { f.op("VZEROUPPER") })
	return f.String()
}

// mxOffset is the doubled values of MXFP4's codes with 128 added, as Q8_0's weights have it.
var mxOffset = [16]byte{128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116}

// vpdpbusd adds to the int32 of dst the products of four unsigned bytes of weights and four signed bytes of
// values, each a register's number. Go's assembler knows the instruction with an EVEX prefix only; with VEX
// it is VEX.256.66.0F38.W0 50 /r (Intel's manual, volume 2).
func (f *file) vpdpbusd(values, weights, dst int) {
	prefix1 := 0x42 | (^dst>>3&1)<<7 | (^values>>3&1)<<5
	prefix2 := 0x05 | (^weights&15)<<3
	modrm := 0xc0 | dst&7<<3 | values&7
	f.raw("\tBYTE $0xc4; BYTE $0x%02x; BYTE $0x%02x; BYTE $0x50; BYTE $0x%02x // VPDPBUSD Y%d, Y%d, Y%d",
		prefix1, prefix2, modrm, values, weights, dst)
}

// q8v: with 128 added to the weights, which record sums take off again, products have full range.
func (g *x86) q8v() {
	g.begin32("Q8_0: weights with 128 added.", q8Bytes)
	g.halves(q8D, sD)
	g.rows(6, func(n int) {
		for t := range n {
			g.op("VPBROADCASTD", indexed(recSum32, rowRegs[t], rLines, 1), acc(t, 0))
			g.op("VMOVDQU", acc(t, 0), acc(t, 1))
		}
		for v := range 8 {
			g.ask(v, 8, q8Bytes)
			for h := range 2 {
				g.op("VMOVDQU", at(64*v+32*h, rW), y(h))
				g.op("VPXOR", static("offset"), y(h), y(h))
			}
			g.products(n, v, false)
		}
		g.floats32(n)
	})
	g.end32(q8Bytes)
}
