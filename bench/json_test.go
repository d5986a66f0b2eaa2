package bench

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// docs/bench-json.md names every key of every scenario.
func TestEveryKeyIsDocumented(t *testing.T) {
	data, err := os.ReadFile("../docs/bench-json.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(data)
	for _, report := range []any{
		Report{}, BarsReport{}, ReferenceReport{}, KernelsReport{}, ModelReport{}, ServeReport{}, WireReport{}, RelayReport{},
		SwarmReport{}, AuditReport{}, GateReport{},
	} {
		jsonKeys(reflect.TypeOf(report), map[reflect.Type]bool{}, func(of reflect.Type, key string) {
			if !strings.Contains(doc, "`"+key+"`") {
				t.Errorf("%T: key %q of %s is not in docs/bench-json.md", report, key, of)
			}
		})
	}
}

// jsonKeys tells of every key that a type has as JSON.
func jsonKeys(of reflect.Type, seen map[reflect.Type]bool, found func(of reflect.Type, key string)) {
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		jsonKeys(of.Elem(), seen, found)
		return
	case reflect.Struct:
	default:
		return
	}
	if seen[of] {
		return
	}
	seen[of] = true
	for f := range of.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() && !f.Anonymous {
			continue
		}
		if name != "" {
			found(of, name)
		} else if !f.Anonymous {
			found(of, f.Name)
		}
		jsonKeys(f.Type, seen, found)
	}
}
