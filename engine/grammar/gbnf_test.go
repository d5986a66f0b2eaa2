package grammar

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// accepts reports whether the grammar matches a whole text, byte by byte.
func accepts(g *Grammar, text string) bool {
	s := g.start()
	for i := range len(text) {
		s = g.step(s, text[i])
	}
	return s.accept
}

func TestParseUnderstandsGBNF(t *testing.T) {
	for _, c := range []struct {
		name, grammar string
		yes, no       []string
	}{
		{"literal", `root ::= "abc"`, []string{"abc"}, []string{"", "ab", "abcd"}},
		{"empty literal", `root ::= ""`, []string{""}, []string{"a"}},
		{"escapes", `root ::= "\n\r\t\\\"\[\]\x41\u00e9\U0001F600"`, []string{"\n\r\t\\\"[]Aé😀"}, []string{"n"}},
		{"x escape is a code point", `root ::= "\xe9"`, []string{"é"}, []string{"\xe9"}},
		{"alternatives", `root ::= "a" | "b" "c" | ""`, []string{"a", "bc", ""}, []string{"b", "abc"}},
		{"group", `root ::= ("a" | "b") "c"`, []string{"ac", "bc"}, []string{"c", "a"}},
		{"star", `root ::= "ab"*`, []string{"", "ab", "abab"}, []string{"a", "aba"}},
		{"plus", `root ::= [a-c]+`, []string{"a", "cab"}, []string{"", "d"}},
		{"option", `root ::= "a"? "b"?`, []string{"", "a", "b", "ab"}, []string{"ba", "aa"}},
		{"exactly", `root ::= "a"{3}`, []string{"aaa"}, []string{"", "aa", "aaaa"}},
		{"at least", `root ::= "a"{2,}`, []string{"aa", "aaaaaa"}, []string{"", "a"}},
		{"from to", `root ::= "a"{ 1 , 3 }`, []string{"a", "aa", "aaa"}, []string{"", "aaaa"}},
		{"none", `root ::= "a"{0} "b"`, []string{"b"}, []string{"ab"}},
		{"repeated repetition", `root ::= "a"{2}{2}`, []string{"aaaa"}, []string{"aa", "aaa"}},
		{"counted", `root ::= "ab"{3,300} "c"`, []string{strings.Repeat("ab", 3) + "c", strings.Repeat("ab", 300) + "c"},
			[]string{"ababc", strings.Repeat("ab", 301) + "c"}},
		{"counted without end", `root ::= [ab]{300,}`, []string{strings.Repeat("a", 300), strings.Repeat("b", 999)},
			[]string{strings.Repeat("a", 299)}},
		{"counted in counted", `root ::= ("a"{300} "b"){1,300}`,
			[]string{strings.Repeat(strings.Repeat("a", 300)+"b", 300)}, []string{strings.Repeat("a", 300)}},
		{"class", `root ::= [a-cx\]\\-]`, []string{"a", "b", "c", "x", "]", "\\", "-"}, []string{"d", "", "aa"}},
		{"negated class", `root ::= [^a-z\n]`, []string{"A", "é", "😀", "\x00", "\U0010ffff"}, []string{"b", "\n", "\xff", "\xc3"}},
		{"unicode class", `root ::= [ぁ-ゟ]+`, []string{"あいう"}, []string{"ア", "a"}},
		{"wide class", `root ::= [\u0001-\U0010FFFF]`, []string{"\x01", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000"},
			[]string{"\x00", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\x80", "\xe0\x80\x80", "\xf0\x80\x80\x80"}},
		{"dot", `root ::= . .`, []string{"a\n", "é😀"}, []string{"a", "\xff\xff"}},
		{"comments and lines", "# first\nroot ::= a |\n  b # or\n\na ::= \"a\" (\n \"x\" # inside\n \"y\"\n)\r\nb ::=\n \"b\"\n# last",
			[]string{"axy", "b"}, []string{"a"}},
		{"bar on the next line", "root ::= \"a\"\n  | \"b\"", []string{"a", "b"}, nil},
		{"rules", "root ::= a-1 B_2\na-1 ::= \"x\"\nB_2 ::= a-1", []string{"xx"}, []string{"x"}},
		{"recursion in the middle", `root ::= "(" root ")" | ""`, []string{"", "()", "((()))"}, []string{"(", "())"}},
		{"recursion at the end", `root ::= "a" root | "b"`, []string{"b", "aab", strings.Repeat("a", 5000) + "b"}, []string{"a"}},
		{"rules in a circle", "root ::= \"a\" other | \"\"\nother ::= \"b\" root \"c\"", []string{"", "abc", "ababcc"}, []string{"ab"}},
		{"repetition of what may be empty", `root ::= ("a"* "b"?)* "c"`, []string{"c", "aabac"}, []string{"", "ca"}},
		{"bounded repetition of what may be empty", `root ::= ("a"?){2,4}`, []string{"", "a", "aaaa"}, []string{"aaaaa"}},
		{"an alternative without end", "root ::= \"a\" | \"b\" x\nx ::= \"x\" x", []string{"a"}, []string{"b", "bx"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := Parse(c.grammar)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range c.yes {
				if !accepts(g, text) {
					t.Errorf("%q is refused", text)
				}
			}
			for _, text := range c.no {
				if accepts(g, text) {
					t.Errorf("%q is accepted", text)
				}
			}
		})
	}
}

func TestParseRefusesBadGrammars(t *testing.T) {
	for _, c := range []struct {
		name, grammar string
		sentinel      error
		says          string
	}{
		{"nothing", "", ErrSyntax, "no rule root"},
		{"no root", `a ::= "x"`, ErrSyntax, "no rule root"},
		{"no name", `::= "x"`, ErrSyntax, "line 1, column 1: a rule begins with its name"},
		{"no sign", "root = \"x\"", ErrSyntax, "line 1, column 6: after the name root comes ::="},
		{"undefined", "root ::= \"é\" missing", ErrSyntax, "line 1, column 14: rule missing is used and not defined"},
		{"defined twice", "root ::= \"x\"\nroot ::= \"y\"", ErrSyntax, "line 2, column 1: rule root is defined twice"},
		{"left recursion", "root ::= root \"x\" | \"y\"", ErrSyntax, "line 1, column 1: rule root begins with itself"},
		{"left recursion in a circle", "root ::= \"k\" a\na ::= b \"x\"\nb ::= a | \"y\"", ErrSyntax, "line 2, column 1: rule a begins"},
		{"left recursion after nothing", "root ::= e* root \"x\"\ne ::= \"a\"?", ErrSyntax, "rule root begins with itself"},
		{"no finite text", `root ::= "a" root`, ErrSyntax, "matches no text that ends"},
		{"empty class", `root ::= []`, ErrSyntax, "matches no text that ends"},
		{"open literal", "root ::= \"abc", ErrSyntax, "the literal does not end"},
		{"open class", "root ::= [abc", ErrSyntax, "the class does not end"},
		{"open group", "root ::= (\"a\"", ErrSyntax, "closed with )"},
		{"extra brace", `root ::= "a" )`, ErrSyntax, "unexpected ')'"},
		{"nothing to repeat", `root ::= * "a"`, ErrSyntax, "nothing before it"},
		{"bad escape", `root ::= "\q"`, ErrSyntax, "column 11: unknown escape"},
		{"short escape", `root ::= "\u12`, ErrSyntax, "needs 4 hexadecimal digits"},
		{"not hexadecimal", `root ::= "\xg0"`, ErrSyntax, "needs 2 hexadecimal digits"},
		{"beyond Unicode", `root ::= "\U00110000"`, ErrSyntax, "beyond the last code point"},
		{"surrogate", `root ::= "\ud800"`, ErrSyntax, "surrogate"},
		{"reversed range", `root ::= [z-a]`, ErrSyntax, "is empty"},
		{"reversed bounds", `root ::= "a"{3,2}`, ErrSyntax, "from 3 to 2"},
		{"bad bounds", `root ::= "a"{,2}`, ErrSyntax, "{m,n}"},
		{"open bounds", `root ::= "a"{2`, ErrSyntax, "unexpected the end"},
		{"many times", `root ::= "a"{9999999}`, ErrLimit, "more than 1048576 times"},
		{"very many times", `root ::= "a"{99999999999999999999999}`, ErrLimit, "more than 1048576 times"},
		{"counted emptiness", `root ::= ("a"?){1000}`, ErrLimit, "may be empty"},
		{"tokens", `root ::= <think> .*`, ErrSyntax, "not supported"},
		{"negated tokens", `root ::= !<[12]>`, ErrSyntax, "not supported"},
		{"not UTF-8", "root ::= \"\xff\"", ErrSyntax, "line 1, column 11: the grammar is not valid UTF-8"},
		{"too long", strings.Repeat("#", MaxSource+1), ErrLimit, "bytes"},
		{"too deep", "root ::= " + strings.Repeat("(", 300) + "\"a\"" + strings.Repeat(")", 300), ErrLimit, "nested deeper"},
		{"many nodes", "root ::= " + strings.Repeat("[a-b]{200} [c-d]{200}", 4000), ErrLimit, "nodes"},
		{"many rules", "root ::= \"x\"\n" + manyRules(5000), ErrLimit, "rules"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse(c.grammar)
			if !errors.Is(err, c.sentinel) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %v with %q", err, c.sentinel, c.says)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

func manyRules(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "r%d ::= \"x\"\n", i)
	}
	return b.String()
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`root ::= "a" [^b-c]* (x | y){2,300} .?` + "\nx ::= \"\\u00e9\" root | \"\"\ny ::= [\\]-]+ # z",
		`root ::= "(" root ")" | ""`, `root ::= root`, "root ::= (a?){3}\na ::= \"x\"*",
		`root ::= ((("a"{1,16}){1,16}){1,16}){1,16}`, `root ::= ("a" | "aa"){0,900}`,
	} {
		f.Add(s, "a(xy)")
	}
	f.Fuzz(func(t *testing.T, source, text string) {
		g, err := Parse(source)
		if err != nil {
			return
		}
		s := g.start()
		for i := 0; i < len(text) && i < 64; i++ {
			s = g.step(s, text[i])
			if s.alive() != (s.accept || len(s.stacks) > 0) {
				t.Fatal("a whole text has no caller to return to")
			}
		}
	})
}
