package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// operands are what an operation works on.
type operands struct {
	r    *run
	e    *exec.Evaluator
	args []any
}

// operations are what rewrite makes of an expression's parts.
var operations map[string]func(o *operands) (any, error)

func init() { // a map literal would depend on itself, by way of map and select
	operations = map[string]func(o *operands) (any, error){
		"name":      opName,
		"undefined": func(*operands) (any, error) { return undefined{}, nil },
		"print":     opPrint,
		"iterate":   opIterate,
		"list":      func(o *operands) (any, error) { return o.args, o.r.spend(valueCost * len(o.args)) },
		"dict":      opDict,
		"item":      opItem,
		"attribute": opAttribute,
		"slice":     opSlice,
		"call":      opCall,
		"method":    opMethod,
		"filter":    opFilter,
		"test":      opTest,
		"not":       func(o *operands) (any, error) { return !truth(o.args[0]), nil },
		"unary+":    func(o *operands) (any, error) { return arithmetic("+", 0, o.args[0]) },
		"unary-":    func(o *operands) (any, error) { return arithmetic("-", 0, o.args[0]) },
		"+":         opAdd,
		"~":         opConcat,
		"*":         opMultiply,
		"==":        opEqual,
		"!=":        func(o *operands) (any, error) { eq, err := opEqual(o); return eq != true, err },
		"in":        opIn,
	}
	for _, op := range []string{"-", "/", "//", "%"} {
		operations[op] = func(o *operands) (any, error) { return arithmetic(op, o.args[0], o.args[1]) }
	}
	for _, op := range []string{"<", "<=", ">", ">="} {
		operations[op] = func(o *operands) (any, error) { return compare(op, o.args[0], o.args[1]) }
	}
}

// do is the one function that a rewritten template calls: do(line, op, operands...).
func do(e *exec.Evaluator, params *exec.VarArgs) (any, error) {
	o := &operands{r: runOf(e.Environment), e: e}
	for _, v := range params.Args {
		o.args = append(o.args, plain(v))
	}
	line, op := o.args[0].(int), o.args[1].(string)
	o.args = o.args[2:]
	if err := o.r.spend(stepCost); err != nil {
		return nil, o.r.fail(line, err)
	}
	f, ok := operations[op]
	if !ok {
		return nil, o.r.fail(line, fmt.Errorf("the operator %s is not supported", op))
	}
	v, err := f(o)
	if err != nil {
		return nil, o.r.fail(line, err)
	}
	return v, nil
}

func wrapLine(line int, err error) error {
	switch {
	case errors.Is(err, ErrRaised), errors.Is(err, ErrLimit), errors.Is(err, ErrRender):
		return err
	}
	return fmt.Errorf("%w: line %d: %w", ErrRender, line, err)
}

func opName(o *operands) (any, error) {
	name := o.args[0].(string)
	if name == "none" {
		return nil, nil
	}
	if v, ok := o.e.Environment.Context.Get(name); ok {
		if v = plain(v); known(v) { // or it is something that gonja keeps there for itself
			return v, nil
		}
		return undefined{}, nil
	}
	if functions[name] != nil && (name != "strftime_now" || o.r.now != nil) {
		return function(name), nil
	}
	return undefined{}, nil
}

// known reports whether v is one of the values that a template may have.
func known(v any) bool {
	switch v.(type) {
	case nil, undefined, bool, int, float64, literal, string, []any, dict, *namespace, macro, function, exec.AttributeGetter:
		return true
	}
	return false
}

func opPrint(o *operands) (any, error) {
	if err := o.r.spendFor(o.args[0]); err != nil {
		return nil, err
	}
	return toString(o.args[0]), nil
}

// opIterate returns what a loop goes through as a list; with pairs, each item is a list of two.
func opIterate(o *operands) (any, error) {
	list, err := o.list(o.args[0])
	if err != nil {
		return nil, err
	}
	if o.args[1] == true {
		for _, x := range list {
			if pair, ok := x.([]any); !ok || len(pair) != 2 {
				return nil, fmt.Errorf("the loop takes pairs, and %s is none", kind(x))
			}
		}
	}
	return list, nil
}

// list returns the items that iterating over v gives: the keys of a mapping, the characters of a
// string.
func (o *operands) list(v any) ([]any, error) {
	var out []any
	switch v := v.(type) {
	case undefined:
	case []any:
		out = v
	case dict:
		for _, e := range v {
			out = append(out, e.key)
		}
	case string:
		if err := o.r.spend(valueCost * len(v)); err != nil {
			return nil, err
		}
		for _, c := range v {
			out = append(out, string(c))
		}
	default:
		return nil, fmt.Errorf("%s has no items", kind(v))
	}
	return out, o.r.spend(valueCost * len(out))
}

func opDict(o *operands) (any, error) {
	d := dict{}
	for i := 0; i < len(o.args); i += 2 {
		key := o.args[i]
		switch key.(type) {
		case nil, bool, int, float64, string:
		default:
			return nil, fmt.Errorf("%s cannot be the key of a mapping", kind(key))
		}
		if at := slices.IndexFunc(d, func(e entry) bool { return equal(e.key, key) }); at >= 0 {
			d[at].value = o.args[i+1]
			continue
		}
		d = append(d, entry{key, o.args[i+1]})
	}
	return d, o.r.spend(valueCost * len(o.args))
}

// attribute returns what is called name in v; false if nothing is.
func attribute(v any, name string) (any, bool) {
	switch v := v.(type) {
	case dict:
		return v.get(name)
	case *namespace:
		x, ok := v.vars[name]
		return x, ok
	case exec.AttributeGetter:
		switch name { // they count recursive loops, which there are none of; gonja counts all
		case "depth":
			return 1, true
		case "depth0":
			return 0, true
		}
		x, ok := v.GetAttribute(name)
		if p := plain(x); ok && p != nil && known(p) {
			return p, true
		}
	}
	return nil, false
}

// spendForLookup pays for a search through a mapping's keys.
func (o *operands) spendForLookup() error {
	d, _ := o.args[0].(dict)
	return o.r.spend(4 * len(d))
}

func opAttribute(o *operands) (any, error) {
	name := o.args[1].(string)
	if err := o.spendForLookup(); err != nil {
		return nil, err
	}
	if x, ok := attribute(o.args[0], name); ok {
		return x, nil
	}
	if _, ok := o.args[0].(undefined); ok {
		return nil, fmt.Errorf("%s of an undefined value", name)
	}
	return undefined{}, nil
}

func opItem(o *operands) (any, error) {
	if d, ok := o.args[0].(dict); ok {
		if err := o.spendForLookup(); err != nil {
			return nil, err
		}
		if v, ok := d.get(o.args[1]); ok {
			return v, nil
		}
		return undefined{}, nil
	}
	switch key := o.args[1].(type) {
	case string:
		return opAttribute(&operands{r: o.r, args: []any{o.args[0], key}})
	case int:
		switch v := o.args[0].(type) {
		case []any:
			if key < 0 {
				key += len(v)
			}
			if key >= 0 && key < len(v) {
				return v[key], nil
			}
		case string:
			runes := []rune(v)
			if key < 0 {
				key += len(runes)
			}
			if err := o.r.spend(4 * len(v)); err != nil {
				return nil, err
			}
			if key >= 0 && key < len(runes) {
				return string(runes[key]), nil
			}
		case undefined:
			return nil, fmt.Errorf("item %d of an undefined value", key)
		}
		return undefined{}, nil
	}
	return nil, fmt.Errorf("%s cannot be an index", kind(o.args[1]))
}

// opSlice is x[start:stop:step].
func opSlice(o *operands) (any, error) {
	var bound [3]*int
	for i, x := range o.args[1:4] {
		switch x := x.(type) {
		case nil:
		case int:
			bound[i] = &x
		default:
			return nil, fmt.Errorf("%s cannot be the bound of a slice", kind(x))
		}
	}
	step := 1
	if bound[2] != nil {
		step = *bound[2]
	}
	if step == 0 {
		return nil, errors.New("the step of a slice is 0")
	}
	switch v := o.args[0].(type) {
	case []any:
		var out []any
		for i := range indices(len(v), bound[0], bound[1], step) {
			out = append(out, v[i])
		}
		return out, o.r.spend(valueCost * len(out))
	case string:
		if err := o.r.spend(5 * len(v)); err != nil {
			return nil, err
		}
		runes := []rune(v)
		var out strings.Builder
		for i := range indices(len(runes), bound[0], bound[1], step) {
			out.WriteRune(runes[i])
		}
		return out.String(), nil
	}
	return nil, fmt.Errorf("%s cannot be sliced", kind(o.args[0]))
}

// indices yields those that Python's slice selects among n.
func indices(n int, start, stop *int, step int) func(func(int) bool) {
	low, high := 0, n // where start and stop may lie
	if step < 0 {
		low, high = -1, n-1
	}
	clamp := func(p *int, absent int) int {
		if p == nil {
			return absent
		}
		i := *p
		if i < 0 {
			i += n
		}
		return max(low, min(i, high))
	}
	return func(yield func(int) bool) {
		if step > 0 {
			for i, end := clamp(start, low), clamp(stop, high); i < end && yield(i); i += min(step, n) {
			}
			return
		}
		for i, end := clamp(start, high), clamp(stop, low); i > end && yield(i); i += max(step, -n) {
		}
	}
}

func opAdd(o *operands) (any, error) {
	switch a := o.args[0].(type) {
	case string:
		if b, ok := o.args[1].(string); ok {
			return a + b, o.r.spend(len(a) + len(b))
		}
	case []any:
		if b, ok := o.args[1].([]any); ok {
			return slices.Concat(a, b), o.r.spend(valueCost * (len(a) + len(b)))
		}
	}
	return arithmetic("+", o.args[0], o.args[1])
}

func opConcat(o *operands) (any, error) {
	for _, x := range o.args {
		if err := o.r.spendFor(x); err != nil {
			return nil, err
		}
	}
	return toString(o.args[0]) + toString(o.args[1]), nil
}

// opMultiply multiplies numbers, and repeats a string as often as a number says.
func opMultiply(o *operands) (any, error) {
	s, ok := o.args[0].(string)
	n, isInt := o.args[1].(int)
	if !ok || !isInt {
		return arithmetic("*", o.args[0], o.args[1])
	}
	n = max(n, 0)
	if s != "" && n > MaxOutput/len(s) {
		return nil, fmt.Errorf("%w: a string repeated %d times", ErrLimit, n)
	}
	return strings.Repeat(s, n), o.r.spend(len(s) * n)
}

func opEqual(o *operands) (any, error) {
	for _, x := range o.args {
		if err := o.r.spendFor(x); err != nil {
			return nil, err
		}
	}
	return equal(o.args[0], o.args[1]), nil
}

func opIn(o *operands) (any, error) {
	for _, x := range o.args {
		if err := o.r.spendFor(x); err != nil {
			return nil, err
		}
	}
	switch in := o.args[1].(type) {
	case undefined:
		return false, nil
	case string:
		s, ok := o.args[0].(string)
		if !ok {
			return nil, fmt.Errorf("a string cannot hold %s", kind(o.args[0]))
		}
		return strings.Contains(in, s), nil
	case []any:
		// Each comparison walks through the sought value.
		for _, x := range in {
			if err := o.r.spendFor(o.args[0]); err != nil {
				return nil, err
			}
			if equal(x, o.args[0]) {
				return true, nil
			}
		}
		return false, nil
	case dict:
		_, ok := in.get(o.args[0])
		return ok, nil
	}
	return nil, fmt.Errorf("%s has no items to look in", kind(o.args[1]))
}

func arithmetic(op string, a, b any) (any, error) {
	i, x, aInt, aOK := number(a)
	j, y, bInt, bOK := number(b)
	if !aOK || !bOK {
		return nil, fmt.Errorf("%s %s %s cannot be computed", kind(a), op, kind(b))
	}
	if y == 0 && (op == "/" || op == "//" || op == "%") {
		return nil, errors.New("division by zero")
	}
	if aInt && bInt && op != "/" {
		switch op {
		case "+":
			return i + j, nil
		case "-":
			return i - j, nil
		case "*":
			return i * j, nil
		}
		// Python rounds down and gives the remainder the sign of the divisor.
		quotient, rest := i/j, i%j
		if rest != 0 && (rest < 0) != (j < 0) {
			quotient, rest = quotient-1, rest+j
		}
		if op == "%" {
			return rest, nil
		}
		return quotient, nil
	}
	switch op {
	case "+":
		return x + y, nil
	case "-":
		return x - y, nil
	case "*":
		return x * y, nil
	case "/":
		return x / y, nil
	}
	return nil, fmt.Errorf("%s takes whole numbers", op)
}

func compare(op string, a, b any) (any, error) {
	var c int
	s, aString := a.(string)
	t, bString := b.(string)
	_, x, _, aNumber := number(a)
	_, y, _, bNumber := number(b)
	switch {
	case aString && bString:
		c = strings.Compare(s, t)
	case aNumber && bNumber:
		if x < y {
			c = -1
		} else if x > y {
			c = 1
		}
	default:
		return nil, fmt.Errorf("%s %s %s cannot be compared", kind(a), op, kind(b))
	}
	switch op {
	case "<":
		return c < 0, nil
	case "<=":
		return c <= 0, nil
	case ">":
		return c > 0, nil
	}
	return c >= 0, nil
}
