package chat

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

func opFilter(o *operands) (any, error) { return filter(o.named()) }

func filter(n *namedCall) (any, error) {
	for _, v := range append([]any{n.on, n.keywords}, n.args...) {
		if err := n.r.spendFor(v); err != nil {
			return nil, err
		}
	}
	f, ok := filters[n.name]
	if !ok {
		return nil, fmt.Errorf("the filter %s is not supported", n.name)
	}
	return f(n)
}

// filters are what follows a |.
var filters map[string]func(n *namedCall) (any, error)

func init() { // a map literal would depend on itself, by way of map
	filters = map[string]func(n *namedCall) (any, error){
		"trim": func(n *namedCall) (any, error) {
			return strip(n, toString(n.on), strings.TrimFunc)
		},
		"upper":      func(n *namedCall) (any, error) { return strings.ToUpper(toString(n.on)), nil },
		"lower":      func(n *namedCall) (any, error) { return strings.ToLower(toString(n.on)), nil },
		"capitalize": func(n *namedCall) (any, error) { return capitalize(toString(n.on)), nil },
		"title":      func(n *namedCall) (any, error) { return title(toString(n.on)), nil },
		"string":     func(n *namedCall) (any, error) { return toString(n.on), nil },
		"safe":       func(n *namedCall) (any, error) { return n.on, nil },
		"replace":    func(n *namedCall) (any, error) { return replace(n, toString(n.on)) },
		"indent":     indent,
		"length":     length,
		"count":      length,
		"default":    orDefault,
		"d":          orDefault,
		"int":        toInt,
		"float":      toFloat,
		"tojson":     toJSON,
		"list":       func(n *namedCall) (any, error) { return n.list(n.on) },
		"first":      func(n *namedCall) (any, error) { return nth(n, 0) },
		"last":       func(n *namedCall) (any, error) { return nth(n, -1) },
		"reverse":    reverse,
		"unique":     unique,
		"items":      itemsOf,
		"dictsort":   dictSort,
		"join": func(n *namedCall) (any, error) {
			return join(n, n.on, toString(n.argument(0, "d", "")))
		},
		"map":        mapItems,
		"select":     func(n *namedCall) (any, error) { return selectItems(n, false, true) },
		"reject":     func(n *namedCall) (any, error) { return selectItems(n, false, false) },
		"selectattr": func(n *namedCall) (any, error) { return selectItems(n, true, true) },
		"rejectattr": func(n *namedCall) (any, error) { return selectItems(n, true, false) },
	}
}

func length(n *namedCall) (any, error) {
	switch v := n.on.(type) {
	case undefined:
		return 0, nil
	case string:
		return utf8.RuneCountInString(v), nil
	case []any:
		return len(v), nil
	case dict:
		return len(v), nil
	}
	return nil, fmt.Errorf("%s has no length", kind(n.on))
}

func orDefault(n *namedCall) (any, error) {
	_, missing := n.on.(undefined)
	if missing || truth(n.argument(1, "boolean", false)) && !truth(n.on) {
		return n.argument(0, "default_value", ""), nil
	}
	return n.on, nil
}

func toInt(n *namedCall) (any, error) {
	if i, f, isInt, ok := number(n.on); isInt {
		return i, nil
	} else if ok {
		return int(f), nil
	}
	if i, err := strconv.Atoi(strings.TrimSpace(toString(n.on))); err == nil {
		return i, nil
	}
	return n.argument(0, "default", 0), nil
}

func toFloat(n *namedCall) (any, error) {
	if _, f, _, ok := number(n.on); ok {
		return f, nil
	}
	if f, err := strconv.ParseFloat(strings.TrimSpace(toString(n.on)), 64); err == nil {
		return f, nil
	}
	return n.argument(0, "default", 0.0), nil
}

func toJSON(n *namedCall) (any, error) {
	spaces := -1
	if v := n.argument(0, "indent", nil); v != nil {
		i, ok := v.(int)
		if !ok || i < 0 || i > 16 {
			return nil, fmt.Errorf("tojson: indent is %s, want 0 to 16", toString(v))
		}
		spaces = i
	}
	w := jsonWriter{r: n.r, indent: spaces}
	if err := w.write(n.on, 0); err != nil {
		return nil, err
	}
	return w.String(), nil
}

// indent puts spaces before every line but the first; before it, and before blank lines, only when
// asked.
func indent(n *namedCall) (any, error) {
	s := toString(n.on)
	width, isInt := n.argument(0, "width", 4).(int)
	prefix, isString := n.argument(0, "width", 4).(string)
	switch {
	case isInt && width >= 0 && width <= 1000:
		prefix = strings.Repeat(" ", width)
	case !isString:
		return nil, fmt.Errorf("indent: its width is %s, want 0 to 1000 or a string", toString(n.argument(0, "width", 4)))
	}
	if err := n.r.spend((strings.Count(s, "\n") + 1) * len(prefix)); err != nil {
		return nil, err
	}
	var b strings.Builder
	for i, line := range strings.Split(s, "\n") {
		if i > 0 {
			b.WriteByte('\n')
		}
		if (i > 0 || truth(n.argument(1, "first", false))) && (line != "" || truth(n.argument(2, "blank", false))) {
			b.WriteString(prefix)
		}
		b.WriteString(line)
	}
	return b.String(), nil
}

// nth returns the item at index at; -1 is the last.
func nth(n *namedCall, at int) (any, error) {
	list, err := n.list(n.on)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return undefined{}, nil
	}
	return list[(at+len(list))%len(list)], nil
}

func reverse(n *namedCall) (any, error) {
	if s, ok := n.on.(string); ok {
		r := []rune(s)
		slices.Reverse(r)
		return string(r), nil
	}
	list, err := n.list(n.on)
	list = slices.Clone(list)
	slices.Reverse(list)
	return list, err
}

func unique(n *namedCall) (any, error) {
	list, err := n.list(n.on)
	if err != nil {
		return nil, err
	}
	var out []any
	for _, x := range list {
		same := false
		for _, y := range out {
			if err := n.r.spendFor(x); err != nil {
				return nil, err
			}
			if same = equal(x, y); same {
				break
			}
		}
		if !same {
			out = append(out, x)
		}
	}
	return out, nil
}

func itemsOf(n *namedCall) (any, error) {
	switch d := n.on.(type) {
	case undefined:
		return []any(nil), nil
	case dict:
		return items(n, d)
	}
	return nil, fmt.Errorf("items: %s is no mapping", kind(n.on))
}

func dictSort(n *namedCall) (any, error) {
	d, ok := n.on.(dict)
	if !ok {
		return nil, fmt.Errorf("dictsort: %s is no mapping", kind(n.on))
	}
	d = slices.Clone(d)
	slices.SortStableFunc(d, func(a, b entry) int {
		return cmp.Compare(strings.ToLower(toString(a.key)), strings.ToLower(toString(b.key)))
	})
	return items(n, d)
}

// mapItems is map(attribute="x") or map("filter", arguments).
func mapItems(n *namedCall) (any, error) {
	if n.on == nil { // as Jinja has it
		return []any(nil), nil
	}
	list, err := n.list(n.on)
	if err != nil {
		return nil, err
	}
	out := make([]any, len(list))
	for i, x := range list {
		if len(n.args) == 0 {
			name, err := n.text(0, "attribute")
			if err != nil {
				return nil, err
			}
			v, ok := attribute(x, name)
			if !ok {
				v = n.argument(1, "default", undefined{})
			}
			out[i] = v
			continue
		}
		name, err := n.text(0, "filter")
		if err != nil {
			return nil, err
		}
		if name == "map" {
			return nil, fmt.Errorf("map: a map in a map is not supported")
		}
		if out[i], err = filter(&namedCall{&operands{n.r, n.e, n.args[1:]}, x, name, n.keywords}); err != nil {
			return nil, err
		}
	}
	return out, n.r.spend(stepCost * len(list))
}

// selectItems is select, reject, selectattr and rejectattr: with the name of a test and its
// arguments, or without, which tests for truth.
func selectItems(n *namedCall, attr, keep bool) (any, error) {
	if n.on == nil { // as Jinja has it
		return []any(nil), nil
	}
	list, err := n.list(n.on)
	if err != nil {
		return nil, err
	}
	args := n.args
	key := ""
	if attr {
		if key, err = n.text(0, "attribute"); err != nil {
			return nil, err
		}
		args = args[1:]
	}
	var out []any
	for _, x := range list {
		v := x
		if attr {
			var ok bool
			if v, ok = attribute(x, key); !ok {
				v = undefined{}
			}
		}
		is := truth(v)
		if len(args) > 0 {
			name, ok := args[0].(string)
			if !ok {
				return nil, fmt.Errorf("%s: the name of its test is %s", n.name, kind(args[0]))
			}
			r, err := test(&namedCall{&operands{n.r, n.e, args[1:]}, v, name, n.keywords})
			if err != nil {
				return nil, err
			}
			is = truth(r)
		}
		if is == keep {
			out = append(out, x)
		}
	}
	return out, n.r.spend(stepCost * len(list))
}
