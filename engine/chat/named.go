package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/ncruces/go-strftime"
	"github.com/nikolalohinski/gonja/v2/exec"
)

// call is what is called by its name: on(name, arguments).
type namedCall struct {
	*operands
	on       any
	name     string
	keywords dict
}

func (o *operands) named() *namedCall {
	return &namedCall{&operands{o.r, o.e, o.args[3:]}, o.args[0], o.args[1].(string), o.args[2].(dict)}
}

// argument returns the argument at position at or called name; absent if there is none.
func (n *namedCall) argument(at int, name string, absent any) any {
	if at < len(n.args) {
		return n.args[at]
	}
	if v, ok := n.keywords.get(name); ok {
		return v
	}
	return absent
}

func (n *namedCall) text(at int, name string) (string, error) {
	v := n.argument(at, name, undefined{})
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%s: its argument %s is %s, want a string", n.name, name, kind(v))
	}
	return s, nil
}

// functions are called by name alone.
var functions = map[string]func(n *namedCall) (any, error){
	"namespace":       newNamespace,
	"range":           newRange,
	"raise_exception": raise,
	"strftime_now":    now,
}

func opCall(o *operands) (any, error) {
	n := o.named()
	f := functions[n.name]
	if v, ok := o.e.Environment.Context.Get(n.name); ok {
		switch v := plain(v).(type) {
		case macro:
			return callMacro(n, v)
		case function:
			f = functions[string(v)]
		default:
			f = nil
		}
	}
	if f == nil {
		return nil, fmt.Errorf("there is no function %s", n.name)
	}
	return f(n)
}

func callMacro(n *namedCall, m macro) (any, error) {
	if n.r.macros == maxMacros {
		return nil, fmt.Errorf("%w: the template has more than %d macro calls within one another", ErrLimit, maxMacros)
	}
	n.r.macros++
	defer func() { n.r.macros-- }()
	params := exec.NewVarArgs()
	for _, v := range n.args {
		params.Args = append(params.Args, exec.AsValue(v))
	}
	for _, e := range n.keywords {
		params.KwArgs[e.key.(string)] = exec.AsValue(e.value)
	}
	v := m.call(params)
	if v.IsError() {
		return nil, errors.New(oneLine(v.Error()))
	}
	return v.String(), nil
}

func newNamespace(n *namedCall) (any, error) {
	if len(n.args) > 0 {
		return nil, errors.New("namespace takes name=value")
	}
	ns := &namespace{map[string]any{}}
	for _, e := range n.keywords {
		ns.vars[e.key.(string)] = e.value
	}
	return ns, nil
}

func newRange(n *namedCall) (any, error) {
	bound := [3]int{0, 0, 1}
	for i, v := range n.args {
		x, ok := v.(int)
		if !ok || i > 2 {
			return nil, errors.New("range takes one to three whole numbers")
		}
		bound[i] = x
	}
	switch len(n.args) {
	case 0:
		return nil, errors.New("range takes one to three whole numbers")
	case 1:
		bound[0], bound[1] = 0, bound[0]
	}
	start, stop, step := bound[0], bound[1], bound[2]
	if step == 0 {
		return nil, errors.New("the step of range is 0")
	}
	var out []any
	for i := start; step > 0 && i < stop || step < 0 && i > stop; {
		if err := n.r.spend(valueCost + stepCost); err != nil {
			return nil, err
		}
		out = append(out, i)
		next := i + step
		if (next > i) != (step > 0) { // beyond what an int holds
			break
		}
		i = next
	}
	return out, nil
}

func raise(n *namedCall) (any, error) {
	return nil, fmt.Errorf("%w: %s", ErrRaised, oneLine(toString(n.argument(0, "message", "no reason given"))))
}

func now(n *namedCall) (any, error) {
	layout, err := n.text(0, "format")
	if err != nil {
		return nil, err
	}
	if n.r.now == nil {
		return nil, fmt.Errorf("%w: the template asks for the date, and Options.Now is not set", ErrRender)
	}
	return strftime.Format(layout, n.r.now()), n.r.spend(64 * len(layout))
}

// tests are what follows is.
var tests = map[string]func(n *namedCall) bool{
	"defined":   func(n *namedCall) bool { return !isKind[undefined](n.on) },
	"undefined": func(n *namedCall) bool { return isKind[undefined](n.on) },
	"none":      func(n *namedCall) bool { return n.on == nil },
	"true":      func(n *namedCall) bool { return n.on == true },
	"false":     func(n *namedCall) bool { return n.on == false },
	"boolean":   func(n *namedCall) bool { return isKind[bool](n.on) },
	"integer":   func(n *namedCall) bool { return isKind[int](n.on) || isKind[literal](n.on) },
	"float":     func(n *namedCall) bool { return isKind[float64](n.on) },
	"number":    func(n *namedCall) bool { _, _, _, ok := number(n.on); return ok || isKind[literal](n.on) },
	"string":    func(n *namedCall) bool { return isKind[string](n.on) },
	"mapping":   func(n *namedCall) bool { return isKind[dict](n.on) },
	"sequence": func(n *namedCall) bool {
		return isKind[[]any](n.on) || isKind[string](n.on) || isKind[dict](n.on) || isKind[undefined](n.on)
	},
	"iterable": func(n *namedCall) bool {
		return isKind[[]any](n.on) || isKind[string](n.on) || isKind[dict](n.on) || isKind[undefined](n.on)
	},
	"callable": func(n *namedCall) bool { return isKind[macro](n.on) || isKind[function](n.on) },
	"odd":      func(n *namedCall) bool { i, ok := n.on.(int); return ok && i%2 != 0 },
	"even":     func(n *namedCall) bool { i, ok := n.on.(int); return ok && i%2 == 0 },
	"divisibleby": func(n *namedCall) bool {
		i, _ := n.on.(int)
		j, _ := n.argument(0, "num", 0).(int)
		return j != 0 && i%j == 0
	},
}

func isKind[T any](v any) bool {
	_, ok := v.(T)
	return ok
}

// comparisons are tests that are operators by another name.
var comparisons = map[string]string{
	"in": "in", "eq": "==", "equalto": "==", "==": "==", "sameas": "==", "ne": "!=", "!=": "!=",
	"lt": "<", "lessthan": "<", "<": "<", "le": "<=", "<=": "<=",
	"gt": ">", "greaterthan": ">", ">": ">", "ge": ">=", ">=": ">=",
}

func opTest(o *operands) (any, error) { return test(o.named()) }

func test(n *namedCall) (any, error) {
	if op, ok := comparisons[n.name]; ok {
		if len(n.args) != 1 {
			return nil, fmt.Errorf("the test %s takes one argument", n.name)
		}
		return operations[op](&operands{n.r, n.e, []any{n.on, n.args[0]}})
	}
	f, ok := tests[n.name]
	if !ok {
		return nil, fmt.Errorf("the test %s is not supported", n.name)
	}
	return f(n), nil
}

// methods of strings and mappings, by name. Each is paid for by what it takes and by what it gives;
// those that can give more than a few times what they take look before.
func opMethod(o *operands) (any, error) {
	n := o.named()
	for _, v := range append([]any{n.on, n.keywords}, n.args...) {
		if err := n.r.spendFor(v); err != nil {
			return nil, err
		}
	}
	switch on := n.on.(type) {
	case string:
		if f, ok := stringMethods[n.name]; ok {
			return f(n, on)
		}
	case dict:
		switch n.name {
		case "get":
			if v, ok := on.get(n.argument(0, "key", undefined{})); ok {
				return v, nil
			}
			return n.argument(1, "default", nil), nil
		case "keys":
			return n.list(on)
		case "items":
			return items(n, on)
		case "values":
			var out []any
			for _, e := range on {
				out = append(out, e.value)
			}
			return out, nil
		}
	}
	return nil, fmt.Errorf("%s has no method %s", kind(n.on), n.name)
}

func items(n *namedCall, d dict) (any, error) {
	var out []any
	for _, e := range d {
		out = append(out, []any{e.key, e.value})
	}
	return out, n.r.spend(4 * valueCost * len(out))
}

var stringMethods = map[string]func(n *namedCall, s string) (any, error){
	"upper":      func(_ *namedCall, s string) (any, error) { return strings.ToUpper(s), nil },
	"lower":      func(_ *namedCall, s string) (any, error) { return strings.ToLower(s), nil },
	"capitalize": func(_ *namedCall, s string) (any, error) { return capitalize(s), nil },
	"title":      func(_ *namedCall, s string) (any, error) { return title(s), nil },
	"isdigit":    func(_ *namedCall, s string) (any, error) { return s != "" && allRunes(s, unicode.IsDigit), nil },
	"isspace":    func(_ *namedCall, s string) (any, error) { return s != "" && allRunes(s, unicode.IsSpace), nil },
	"isalpha":    func(_ *namedCall, s string) (any, error) { return s != "" && allRunes(s, unicode.IsLetter), nil },
	"strip": func(n *namedCall, s string) (any, error) {
		return strip(n, s, strings.TrimFunc)
	},
	"lstrip": func(n *namedCall, s string) (any, error) {
		return strip(n, s, strings.TrimLeftFunc)
	},
	"rstrip": func(n *namedCall, s string) (any, error) {
		return strip(n, s, strings.TrimRightFunc)
	},
	"startswith":   func(n *namedCall, s string) (any, error) { return affix(n, s, strings.HasPrefix) },
	"endswith":     func(n *namedCall, s string) (any, error) { return affix(n, s, strings.HasSuffix) },
	"removeprefix": func(n *namedCall, s string) (any, error) { return cutAffix(n, s, strings.TrimPrefix) },
	"removesuffix": func(n *namedCall, s string) (any, error) { return cutAffix(n, s, strings.TrimSuffix) },
	"split":        func(n *namedCall, s string) (any, error) { return splitString(n, s, false) },
	"rsplit":       func(n *namedCall, s string) (any, error) { return splitString(n, s, true) },
	"splitlines":   splitLines,
	"replace":      replace,
	"join":         func(n *namedCall, s string) (any, error) { return join(n, n.argument(0, "iterable", undefined{}), s) },
	"find": func(n *namedCall, s string) (any, error) {
		sub, err := n.text(0, "sub")
		at := strings.Index(s, sub)
		if at > 0 {
			at = len([]rune(s[:at]))
		}
		return at, err
	},
	"count": func(n *namedCall, s string) (any, error) {
		sub, err := n.text(0, "sub")
		return strings.Count(s, sub), err
	},
}

func allRunes(s string, in func(rune) bool) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !in(r) })
}

func capitalize(s string) string {
	r := []rune(strings.ToLower(s))
	if len(r) > 0 {
		r[0] = unicode.ToTitle(r[0])
	}
	return string(r)
}

func title(s string) string {
	inside := false
	return strings.Map(func(r rune) rune {
		start := !inside
		inside = unicode.IsLetter(r)
		if start {
			return unicode.ToTitle(r)
		}
		return unicode.ToLower(r)
	}, s)
}

func strip(n *namedCall, s string, trim func(string, func(rune) bool) string) (any, error) {
	if v := n.argument(0, "chars", nil); v == nil {
		return trim(s, unicode.IsSpace), nil
	}
	chars, err := n.text(0, "chars")
	if err != nil {
		return nil, err
	}
	set := map[rune]bool{}
	for _, r := range chars {
		set[r] = true
	}
	return trim(s, func(r rune) bool { return set[r] }), nil
}

// affix tests for one prefix or suffix, or for any of several.
func affix(n *namedCall, s string, has func(s, affix string) bool) (any, error) {
	list, ok := n.argument(0, "prefix", undefined{}).([]any)
	if !ok {
		x, err := n.text(0, "prefix")
		return has(s, x), err
	}
	return slices.ContainsFunc(list, func(v any) bool { x, ok := v.(string); return ok && has(s, x) }), nil
}

func cutAffix(n *namedCall, s string, trim func(s, affix string) string) (any, error) {
	x, err := n.text(0, "prefix")
	return trim(s, x), err
}

// splitString is Python's split and, from the right, rsplit.
func splitString(n *namedCall, s string, right bool) (any, error) {
	most, ok := n.argument(1, "maxsplit", -1).(int)
	if !ok {
		return nil, fmt.Errorf("%s: maxsplit is no whole number", n.name)
	}
	var parts []string
	if n.argument(0, "sep", nil) == nil {
		if most >= 0 {
			return nil, fmt.Errorf("%s: maxsplit needs a separator", n.name)
		}
		parts = strings.Fields(s)
	} else {
		sep, err := n.text(0, "sep")
		if err != nil {
			return nil, err
		}
		if sep == "" {
			return nil, fmt.Errorf("%s: the separator is empty", n.name)
		}
		if err := n.r.spend(valueCost * (strings.Count(s, sep) + 1)); err != nil {
			return nil, err
		}
		parts = strings.Split(s, sep)
		if extra := len(parts) - 1 - most; most >= 0 && extra > 0 {
			if right {
				parts = append([]string{strings.Join(parts[:extra+1], sep)}, parts[extra+1:]...)
			} else {
				parts = append(parts[:most:most], strings.Join(parts[most:], sep))
			}
		}
	}
	out := make([]any, len(parts))
	for i, p := range parts {
		out[i] = p
	}
	return out, n.r.spend(valueCost * len(out))
}

func splitLines(n *namedCall, s string) (any, error) {
	var out []any
	for line := range strings.Lines(s) {
		out = append(out, strings.TrimRight(line, "\r\n"))
	}
	return out, n.r.spend(valueCost * len(out))
}

func replace(n *namedCall, s string) (any, error) {
	from, err := n.text(0, "old")
	if err != nil {
		return nil, err
	}
	to, err := n.text(1, "new")
	if err != nil {
		return nil, err
	}
	times, ok := n.argument(2, "count", -1).(int)
	if !ok {
		return nil, errors.New("replace: count is no whole number")
	}
	// At most 64 MiB times 64 MiB: no overflow.
	if err := n.r.spend(strings.Count(s, from) * len(to)); err != nil {
		return nil, err
	}
	return strings.Replace(s, from, to, times), nil
}

// join joins the items of v, which may be anything but are printed as strings.
func join(n *namedCall, v any, separator string) (any, error) {
	list, err := n.list(v)
	if err != nil {
		return nil, err
	}
	if err := n.r.spend(len(separator) * len(list)); err != nil {
		return nil, err
	}
	parts := make([]string, len(list))
	for i, x := range list {
		if err := n.r.spendFor(x); err != nil {
			return nil, err
		}
		parts[i] = toString(x)
	}
	return strings.Join(parts, separator), nil
}
