package asm

import (
	"fmt"
	"strings"
)

// An inst is a vector instruction of arm64. Go's assembler knows some of them; the others are written as
// words, beside which stands what they mean.
type inst struct {
	name    string
	word    uint32 // without registers; 0 where Go's assembler knows the instruction
	d, n, m string // the arrangement of the result and of the sources
}

// Instructions with two sources.
var (
	sdot   = inst{"SDOT", 0x4f80e000, "4S", "16B", "4B"} // by element of the second source
	smmla  = inst{"SMMLA", 0x4e80a400, "4S", "16B", "16B"}
	smull  = inst{"SMULL", 0x0e20c000, "8H", "8B", "8B"}
	smull2 = inst{"SMULL2", 0x4e20c000, "8H", "16B", "16B"}
	smlal  = inst{"SMLAL", 0x0e208000, "8H", "8B", "8B"}
	smlal2 = inst{"SMLAL2", 0x4e208000, "8H", "16B", "16B"}
	mla    = inst{"MLA", 0x4ea09400, "4S", "4S", "4S"}
	ushl   = inst{"USHL", 0x6e204400, "16B", "16B", "16B"}
	fmul   = inst{"FMUL", 0x6e20dc00, "4S", "4S", "4S"}
	fadd   = inst{"FADD", 0x4e20d400, "4S", "4S", "4S"}
	fsub   = inst{"FSUB", 0x4ea0d400, "4S", "4S", "4S"}

	and   = inst{name: "VAND", d: "B16", n: "B16", m: "B16"}
	sub   = inst{name: "VSUB", d: "B16", n: "B16", m: "B16"}
	addp8 = inst{name: "VADDP", d: "H8", n: "H8", m: "H8"}
	addp4 = inst{name: "VADDP", d: "S4", n: "S4", m: "S4"}
	zip1S = inst{name: "VZIP1", d: "S4", n: "S4", m: "S4"}
	zip2S = inst{name: "VZIP2", d: "S4", n: "S4", m: "S4"}
	zip1H = inst{name: "VZIP1", d: "H8", n: "H8", m: "H8"}
	zip2H = inst{name: "VZIP2", d: "H8", n: "H8", m: "H8"}
	zip1D = inst{name: "VZIP1", d: "D2", n: "D2", m: "D2"}
	zip2D = inst{name: "VZIP2", d: "D2", n: "D2", m: "D2"}
	uzp1S = inst{name: "VUZP1", d: "S4", n: "S4", m: "S4"}
	uzp2S = inst{name: "VUZP2", d: "S4", n: "S4", m: "S4"}
)

// Instructions with two sources, the second of which is one element of a vector for all lanes.
var (
	smullH  = inst{"SMULL", 0x0f40a000, "4S", "4H", "H"}
	smullH2 = inst{"SMULL2", 0x4f40a000, "4S", "8H", "H"}
	smlalH  = inst{"SMLAL", 0x0f402000, "4S", "4H", "H"}
	smlalH2 = inst{"SMLAL2", 0x4f402000, "4S", "8H", "H"}
	fmulS   = inst{"FMUL", 0x4f809000, "4S", "4S", "S"}
)

// Instructions with one source.
var (
	saddlp = inst{name: "SADDLP", word: 0x4e602800, d: "4S", n: "8H"}
	sadalp = inst{name: "SADALP", word: 0x4e606800, d: "4S", n: "8H"}
	sxtlB  = inst{name: "SXTL", word: 0x0f08a400, d: "8H", n: "8B"}
	sxtlB2 = inst{name: "SXTL2", word: 0x4f08a400, d: "8H", n: "16B"}
	sxtlH  = inst{name: "SXTL", word: 0x0f10a400, d: "4S", n: "4H"}
	sxtlH2 = inst{name: "SXTL2", word: 0x4f10a400, d: "4S", n: "8H"}
	xtn2   = inst{name: "XTN2", word: 0x4e212800, d: "16B", n: "8H"}
	scvtf  = inst{name: "SCVTF", word: 0x4e21d800, d: "4S", n: "4S"}
	fcvtl  = inst{name: "FCVTL", word: 0x0e217800, d: "4S", n: "4H"}
	fcvtl2 = inst{name: "FCVTL2", word: 0x4e217800, d: "4S", n: "8H"}

	uxtlB  = inst{name: "VUXTL", d: "H8", n: "B8"}
	uxtlB2 = inst{name: "VUXTL2", d: "H8", n: "B16"}
	uxtlH  = inst{name: "VUXTL", d: "S4", n: "H4"}
	uxtlH2 = inst{name: "VUXTL2", d: "S4", n: "H8"}
)

// vec is the name of a vector register with an arrangement.
func vec(n int, arrangement string) string { return fmt.Sprintf("V%d.%s", n, arrangement) }

// whole is the name of a vector register in loads and stores of all its bits.
func whole(n int) string { return fmt.Sprintf("F%d", n) }

// vecs is a list of consecutive registers.
func vecs(first, count int) string {
	list := make([]string, count)
	for i := range list {
		list[i] = vec(first+i, "B16")
	}
	return "[" + strings.Join(list, ", ") + "]"
}

func (g *arm) word(w uint32, name string, operands ...string) {
	g.raw("\tWORD $0x%08x // %s %s", w, name, strings.Join(operands, ", "))
}

// do writes d = n i m. Go's assembler wants the operands the other way round.
func (g *arm) do(i inst, d, n, m int) {
	if i.word == 0 {
		g.op(i.name, vec(m, i.m), vec(n, i.n), vec(d, i.d))
		return
	}
	g.word(i.word|uint32(m<<16|n<<5|d), i.name, vec(d, i.d), vec(n, i.n), vec(m, i.m))
}

// one writes d = i n.
func (g *arm) one(i inst, d, n int) {
	if i.word == 0 {
		g.op(i.name, vec(n, i.n), vec(d, i.d))
		return
	}
	g.word(i.word|uint32(n<<5|d), i.name, vec(d, i.d), vec(n, i.n))
}

// element writes d = n i m[e].
func (g *arm) element(i inst, d, n, m, e int) {
	w := i.word | uint32(m<<16|n<<5|d)
	if i.m == "H" {
		if m > 15 {
			panic(fmt.Sprintf("BUG: an element of 16 bits of V%d", m))
		}
		w |= uint32(e>>2<<11 | e>>1&1<<21 | e&1<<20)
	} else {
		w |= uint32(e>>1<<11 | e&1<<21)
	}
	g.word(w, i.name, vec(d, i.d), vec(n, i.n), fmt.Sprintf("%s[%d]", vec(m, i.m), e))
}

// shrn writes d = n >> shift, the lower eight bits of each lane of 16.
func (g *arm) shrn(d, n, shift int) {
	g.word(0x0f008400|uint32((16-shift)<<16|n<<5|d), "SHRN", vec(d, "8B"), vec(n, "8H"), fmt.Sprintf("#%d", shift))
}

// shift writes a shift of Go's assembler by a constant.
func (g *arm) shift(name, arrangement string, by, n, d int) {
	g.op(name, imm(by), vec(n, arrangement), vec(d, arrangement))
}

// zero clears d, in the form that processors do without executing it.
func (g *arm) zero(d int) { g.word(0x6f00e400|uint32(d), "MOVI", vec(d, "2D"), "#0") }

// load and store move all bits of a vector.
func (g *arm) load(d, disp int, base string) { g.op("FMOVQ", at(disp, base), whole(d)) }

func (g *arm) store(s, disp int, base string) { g.op("FMOVQ", whole(s), at(disp, base)) }
