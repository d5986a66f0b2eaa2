package grammar

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// testVocab is every byte, words of the grammars under test and random strings of an alphabet. The
// last token ends a text; the one before stands for nothing.
func testVocab(t testing.TB, random *rand.Rand, words []string, alphabet string, n int) *Vocab {
	t.Helper()
	var tokens []string
	for b := range 256 {
		tokens = append(tokens, string([]byte{byte(b)}))
	}
	tokens = append(tokens, words...)
	letters := []rune(alphabet)
	for range n {
		var b strings.Builder
		for range 1 + random.IntN(7) {
			b.WriteRune(letters[random.IntN(len(letters))])
		}
		token := b.String()
		if random.IntN(4) == 0 { // in the middle of a character, maybe
			token = token[random.IntN(len(token)):]
		}
		if random.IntN(4) == 0 {
			token = token[:1+random.IntN(len(token))]
		}
		tokens = append(tokens, token)
	}
	tokens = append(tokens, "", "<end>")
	v, err := NewVocab(len(tokens), func(id int32) []byte { return []byte(tokens[id]) }, []int32{int32(len(tokens) - 1)})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// dumbMask tries every token by itself, from the State of the whole text, without any mask.
func dumbMask(m *Matcher) []uint64 {
	allowed := make([]uint64, len(m.v.isEnd))
	for id := range int32(m.v.size) {
		s := m.state
		token := m.v.token(id)
		for _, b := range token {
			s = m.g.step(s, b)
		}
		if has(m.v.isEnd, id) && s.accept || len(token) > 0 && s.alive() {
			set(allowed, id)
		}
	}
	return allowed
}

// pick chooses one of the tokens of a mask.
func pick(random *rand.Rand, allowed []uint64) int32 {
	n := 0
	for _, w := range allowed {
		n += bits.OnesCount64(w)
	}
	if n == 0 {
		return -1
	}
	n = random.IntN(n)
	for i, w := range allowed {
		for ; w != 0; w &= w - 1 {
			if n == 0 {
				return int32(i*64 + bits.TrailingZeros64(w))
			}
			n--
		}
	}
	return -1
}

const testAlphabet = "ab(){}[]\",: \n01.5-é😀ungltrfaes\\"

var twinGrammars = map[string]string{
	"words":     `root ::= ("ab" | "a" [bé]{0,3}) "c"? root | "😀"`,
	"parens":    `root ::= "(" root ")" root | [ab]*`,
	"counted":   `root ::= ("a" | "é"){3,300} "b"{40,400} ("(" [01]{2,90} ")"){5,60}`,
	"ambiguous": `root ::= ("a" | "aa" | "ab" | "b"){0,120} ")"`,
	"json": `root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}`,
	"expressions": "root ::= term ([-+,] term)*\nterm ::= factor (\":\" factor)*\nfactor ::= [0-9]+ | \"(\" root \")\" | [a-z]{1,200}",
}

func TestMaskEqualsTryingEveryToken(t *testing.T) {
	for name, source := range twinGrammars {
		t.Run(name, func(t *testing.T) {
			g, err := Parse(source)
			if err != nil {
				t.Fatal(err)
			}
			for seed := range uint64(6) {
				walkBesideTwin(t, g, seed)
			}
		})
	}
}

func walkBesideTwin(t *testing.T, g *Grammar, seed uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	v := testVocab(t, random, []string{`"`, `":`, `",`, `{"`, `"}`, `},{"`, "true", "null", "aaaa", "((((", "))))"}, testAlphabet, 400)
	m, err := v.Matcher(g)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	allowed := make([]uint64, len(v.isEnd))
	var text []byte
	for range 150 {
		m.Mask(allowed)
		want := dumbMask(m)
		for id := range int32(v.size) {
			if has(allowed, id) != has(want, id) {
				t.Fatalf("seed %d after %q: token %d %q is allowed: %v, and tried by itself: %v",
					seed, text, id, v.token(id), has(allowed, id), has(want, id))
			}
		}
		id := pick(random, allowed)
		if has(v.isEnd, id) {
			return
		}
		if err := m.Accept(id); err != nil {
			if errors.Is(err, ErrLimit) {
				return
			}
			t.Fatalf("seed %d after %q: %v", seed, text, err)
		}
		text = append(text, v.token(id)...)
	}
}

func TestMatcherEndsOnlyCompleteTexts(t *testing.T) {
	g, err := Parse(`root ::= "ab" "c"*`)
	if err != nil {
		t.Fatal(err)
	}
	v, err := NewVocab(4, func(id int32) []byte { return []byte([]string{"a", "bc", "c", ""}[id]) }, []int32{3})
	if err != nil {
		t.Fatal(err)
	}
	m, err := v.Matcher(g)
	if err != nil {
		t.Fatal(err)
	}
	allowed := []uint64{^uint64(0), 7}
	for _, c := range []struct {
		id   int32
		want uint64 // before
	}{{0, 1}, {1, 2}, {2, 4 | 8}, {3, 4 | 8}} {
		m.Mask(allowed)
		if allowed[0] != c.want || allowed[1] != 0 {
			t.Fatalf("before token %d the mask is %b", c.id, allowed)
		}
		for id := range int32(5) {
			if id != c.id && (id > 3 || c.want>>id&1 == 0) {
				if err := m.Accept(id); !errors.Is(err, ErrToken) {
					t.Fatalf("token %d: %v", id, err)
				}
			}
		}
		if m.Done() {
			t.Fatal("done too early")
		}
		if err := m.Accept(c.id); err != nil {
			t.Fatal(err)
		}
	}
	if m.Mask(allowed); allowed[0] != 0 || !m.Done() {
		t.Fatalf("after the end: %b, done %v", allowed, m.Done())
	}
	if err := m.Accept(2); !errors.Is(err, ErrToken) {
		t.Fatal(err)
	}
}

func TestMatcherIsDoneWhenNothingCanFollow(t *testing.T) {
	g, err := Parse(`root ::= "é" [xy]?`)
	if err != nil {
		t.Fatal(err)
	}
	v, err := NewVocab(4, func(id int32) []byte { return [][]byte{{0xc3}, {0xa9}, {'x'}, nil}[id] }, []int32{3})
	if err != nil {
		t.Fatal(err)
	}
	m, err := v.Matcher(g)
	if err != nil {
		t.Fatal(err)
	}
	for id, done := range []bool{false, false, true} {
		if err := m.Accept(int32(id)); err != nil {
			t.Fatal(err)
		}
		if m.Done() != done {
			t.Fatalf("after token %d: done %v", id, m.Done())
		}
	}
}

func TestMatcherSaysWhenNoTokenFits(t *testing.T) {
	g, err := Parse(`root ::= "a" | "bcd"`)
	if err != nil {
		t.Fatal(err)
	}
	vocab := func(tokens ...string) *Vocab {
		v, err := NewVocab(len(tokens)+1, func(id int32) []byte {
			if int(id) == len(tokens) {
				return nil
			}
			return []byte(tokens[id])
		}, []int32{int32(len(tokens))})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if _, err := vocab("c", "d", "ax").Matcher(g); !errors.Is(err, ErrStuck) {
		t.Errorf("no token can begin: %v", err)
	}
	m, err := vocab("a", "bc").Matcher(g)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Accept(1); !errors.Is(err, ErrStuck) {
		t.Errorf("no token can follow: %v", err)
	}
	if err := m.Accept(0); err != nil {
		t.Errorf("the text should be as it was: %v", err)
	}
}

func TestNewVocabRefuses(t *testing.T) {
	text := func(int32) []byte { return []byte("a") }
	for name, f := range map[string]func() (*Vocab, error){
		"no tokens":    func() (*Vocab, error) { return NewVocab(0, text, []int32{0}) },
		"no end":       func() (*Vocab, error) { return NewVocab(3, text, nil) },
		"end outside":  func() (*Vocab, error) { return NewVocab(3, text, []int32{3}) },
		"end negative": func() (*Vocab, error) { return NewVocab(3, text, []int32{-1}) },
		"long token": func() (*Vocab, error) {
			return NewVocab(3, func(int32) []byte { return make([]byte, maxToken+1) }, []int32{0})
		},
	} {
		if _, err := f(); !errors.Is(err, ErrVocab) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNestingIsBoundedAndAlwaysCloses(t *testing.T) {
	g, err := Parse("root ::= \"(\" pair \")\" | \"x\"\npair ::= root \",\" root")
	if err != nil {
		t.Fatal(err)
	}
	v := testVocab(t, rand.New(rand.NewPCG(1, 1)), []string{"((((((", "x,x", "),("}, "(,)x", 50)
	m, err := v.Matcher(g)
	if err != nil {
		t.Fatal(err)
	}
	allowed := make([]uint64, len(v.isEnd))
	depth, deepest := 0, 0
	for i := 0; ; i++ {
		m.Mask(allowed)
		id := int32('(')
		for _, c := range "(x,)" {
			if id = c; has(allowed, id) && (c != '(' || i < 3*maxDepth) {
				break
			}
		}
		if m.Done() {
			break
		}
		if want := dumbMask(m); !slices.Equal(allowed, want) {
			t.Fatalf("at depth %d: the mask is %x, and tried by itself %x", depth, allowed, want)
		}
		if err := m.Accept(id); err != nil {
			t.Fatalf("at depth %d: %v", depth, err)
		}
		switch id {
		case '(':
			depth++
		case ')':
			depth--
		}
		deepest = max(deepest, depth)
	}
	if depth != 0 || deepest < maxDepth/2-1 || deepest > maxDepth {
		t.Errorf("depth %d at the end, %d at most", depth, deepest)
	}
}

func TestWhatIsKeptIsBoundedAndChangesNothing(t *testing.T) {
	g, err := Parse(`root ::= [a-z]{1,50000} "!"`)
	if err != nil {
		t.Fatal(err)
	}
	v := testVocab(t, rand.New(rand.NewPCG(1, 1)), nil, "abcz!", 300)
	m, err := v.Matcher(g)
	if err != nil {
		t.Fatal(err)
	}
	generations := map[string]bool{}
	allowed := make([]uint64, len(v.isEnd))
	for i := range 30000 {
		if err := m.Accept('a' + int32(i%26)); err != nil {
			t.Fatal(err)
		}
		m.Mask(allowed)
		if !has(allowed, 'q') || !has(allowed, '!') || has(allowed, 'Q') {
			t.Fatalf("wrong mask after %d", i)
		}
		gen := g.gen.Load()
		generations[fmt.Sprintf("%p", gen)] = true
		if gen.bytes > maxKept+1<<20 || m.masks.bytes > maxMasks+1<<20 {
			t.Fatalf("%d bytes of States, %d of masks", gen.bytes, m.masks.bytes)
		}
	}
	if len(generations) < 2 {
		t.Error("the test does not outgrow a generation")
	}
}
