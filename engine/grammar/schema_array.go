package grammar

import (
	"strconv"
)

func (c *schemaCompiler) arrayOf(v *value, path string) (*expr, error) {
	lo, hi, err := limits(v, path, "minItems", "maxItems")
	if err != nil {
		return nil, err
	}
	var first []*expr
	if list := v.get("prefixItems"); list != nil {
		if list.kind != "array" {
			return nil, refuse(path, `"prefixItems" is a list of schemas, not %s`, list.kind)
		}
		for i, item := range list.items {
			e, err := c.schema(item, down(down(path, "prefixItems"), strconv.Itoa(i)), nil)
			if err != nil {
				return nil, err
			}
			first = append(first, e)
		}
	}
	rest := c.value()
	if items := v.get("items"); items != nil {
		if items.kind == "boolean" && items.text == "false" {
			rest = nil
		} else if rest, err = c.schema(items, down(path, "items"), nil); err != nil {
			return nil, err
		}
	}
	if rest == nil && int(lo) > len(first) {
		return nil, refuse(path, `"minItems" is %d, but "items" is false after %d`, lo, len(first))
	}
	return c.tuple(first, rest, lo, hi), nil
}

// limits reads a pair of keywords that bound a length.
func limits(v *value, path, least, most string) (lo, hi int32, err error) {
	hi = noMax
	for _, keyword := range []string{least, most} {
		at := v.get(keyword)
		if at == nil {
			continue
		}
		n, err := strconv.Atoi(at.text)
		if at.kind != "number" || err != nil || n < 0 || n > MaxRepeat {
			return 0, 0, refuse(path, "%q is a whole number up to %d, not %s", keyword, MaxRepeat, at)
		}
		if keyword == least {
			lo = int32(n)
		} else {
			hi = int32(n)
		}
	}
	if lo > hi {
		return 0, 0, refuse(path, "%q is more than %q", least, most)
	}
	return lo, hi, nil
}
