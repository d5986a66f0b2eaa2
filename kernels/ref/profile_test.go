package ref

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"strings"
	"testing"

	"kvasir/internal/moe"

	"pgregory.net/rapid"
)

// slowExponent is the rule with exact numbers: the smallest E with s * 2^E >= 256, then the largest
// not above it for which 8 picks fit.
func slowExponent(s, largest float32) int {
	power := func(e int) *big.Float { return new(big.Float).SetMantExp(big.NewFloat(1), e) }
	e := -200
	for new(big.Float).Mul(big.NewFloat(float64(s)), power(e)).Cmp(big.NewFloat(256)) < 0 {
		e++
	}
	for {
		v := new(big.Float).Mul(big.NewFloat(float64(largest)), power(e))
		v.Add(v, big.NewFloat(0.5)) // at the border all products are integers, so rounding there is any
		n, _ := v.Int(nil)
		if new(big.Int).Lsh(n, 3).Cmp(new(big.Int).Lsh(big.NewInt(1), 31)) < 0 {
			return max(-8, min(40, e))
		}
		e--
	}
}

func TestExponentIsTheRule(t *testing.T) {
	positive := rapid.Custom(func(t *rapid.T) float32 {
		mantissa := rapid.SampledFrom([]float64{1, 1.5, 2 - 0x1p-23, 1 + 0x1p-23, 1.1}).Draw(t, "mantissa")
		return float32(math.Ldexp(mantissa, rapid.IntRange(-60, 40).Draw(t, "power")))
	})
	rapid.Check(t, func(t *rapid.T) {
		s, largest := positive.Draw(t, "s"), positive.Draw(t, "largest")
		medians := make([]float32, MinRows)
		for i := range medians {
			medians[i] = s
		}
		got, err := Exponent(medians, largest)
		if want := slowExponent(s, largest); err != nil || got != want {
			t.Fatalf("s %g, largest %g: E %d, error %v, want %d", s, largest, got, err, want)
		}
	})
}

func TestExponentTakesTheFifthPercentile(t *testing.T) {
	// 2,000 rows above zero: rank 100 of them decides, also with zeros between, in any order.
	for _, c := range []struct{ small, zeros, want int }{
		{99, 0, 8}, {100, 0, 14}, {99, 5000, 8}, {100, 5000, 14}, {1000, 7, 14},
	} {
		var medians []float32
		for i := range 2000 {
			v := float32(1)
			if i < c.small {
				v = 1.0 / 64
			}
			medians = append(medians, v)
		}
		medians = append(medians, make([]float32, c.zeros)...)
		src := source(3)
		for i := range medians {
			j := src.intn(i + 1)
			medians[i], medians[j] = medians[j], medians[i]
		}
		if got, err := Exponent(medians, 10); err != nil || got != c.want {
			t.Errorf("%d small medians of 2000 and %d zeros: E %d, error %v, want %d", c.small, c.zeros, got, err, c.want)
		}
	}
	few := make([]float32, MinRows)
	few[5] = 0.5
	if got, err := Exponent(few, 1); err != nil || got != 9 {
		t.Errorf("one median that is not zero: E %d, error %v, want 9", got, err)
	}
}

func TestExponentRefuses(t *testing.T) {
	rows := func(n int, v float32) []float32 {
		s := make([]float32, n)
		for i := range s {
			s[i] = v
		}
		return s
	}
	withBad := func(v float32) []float32 { s := rows(MinRows, 1); s[7] = v; return s }
	for _, c := range []struct {
		name    string
		medians []float32
		largest float32
		say     string
	}{
		{"few rows", rows(1999, 1), 1, "1999 rows, want at least 2000"},
		{"only zeros", rows(2000, 0), 1, "medians of all 2000 rows are 0"},
		{"NaN", withBad(nan), 1, "median NaN of row 7"},
		{"infinity", withBad(inf), 1, "median +Inf of row 7"},
		{"negative", withBad(-1), 1, "median -1 of row 7"},
		{"no pick", rows(2000, 1), 0, "largest pick 0"},
		{"NaN pick", rows(2000, 1), nan, "largest pick NaN"},
		{"infinite pick", rows(2000, 1), inf, "largest pick +Inf"},
	} {
		if _, err := Exponent(c.medians, c.largest); !errors.Is(err, ErrMeasure) || !strings.Contains(fmt.Sprint(err), c.say) {
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.say)
		}
	}
}

func TestFloorLog2(t *testing.T) {
	for e := -149; e < 128; e++ {
		x := float32(math.Ldexp(1, e))
		if got := floorLog2(x); got != e {
			t.Errorf("2^%d: %d", e, got)
		}
		if below := math.Nextafter32(x, 0); below > 0 && floorLog2(below) != e-1 {
			t.Errorf("below 2^%d: %d", e, floorLog2(below))
		}
	}
}

const profileFile = `{
  "arithmetic": 1,
  "model": "kvasir-tiny",
  "rows": 2315,
  "exponents": [
    11,
    -8,
    40
  ]
}
`

func TestProfileFile(t *testing.T) {
	p := Profile{Arithmetic: 1, Model: "kvasir-tiny", Rows: 2315, Exponents: []int{11, -8, 40}}
	if got := string(p.Append([]byte("x"))); got != "x"+profileFile {
		t.Errorf("the file is %s, want %s", got, profileFile)
	}
	got, err := ParseProfile([]byte(profileFile))
	if err != nil || !reflect.DeepEqual(got, p) {
		t.Errorf("the file is read as %+v, error %v", got, err)
	}
	if err := got.Check(3); err != nil {
		t.Error(err)
	}
	if err := got.Check(4); !errors.Is(err, ErrProfile) || !strings.Contains(err.Error(), `exponents for 3 layers, the model has 4; was it made for "kvasir-tiny"?`) {
		t.Errorf("another number of layers: error %v", err)
	}
}

func TestDefaultProfile(t *testing.T) {
	p := DefaultProfile(5)
	if err := p.Check(5); err != nil {
		t.Error(err)
	}
	for l, e := range p.Exponents {
		if e != 20 {
			t.Errorf("exponent %d of layer %d, want 20", e, l)
		}
	}
	if got, err := ParseProfile(p.Append(nil)); err != nil || !reflect.DeepEqual(got, p) {
		t.Errorf("it comes back as %+v, error %v", got, err)
	}
	most := DefaultProfile(moe.MaxLayers)
	if _, err := ParseProfile(most.Append(nil)); err != nil {
		t.Errorf("a profile of %d layers: %v", moe.MaxLayers, err)
	}
}

func TestProfileRefuses(t *testing.T) {
	with := func(old, replacement string) string { return strings.Replace(profileFile, old, replacement, 1) }
	for _, c := range []struct{ name, file, say string }{
		{"nothing", "", "EOF"},
		{"not JSON", "11 12 13", "cannot unmarshal number"},
		{"a list", "[11]", "cannot unmarshal array"},
		{"cut short", profileFile[:40], "unexpected EOF"},
		{"unknown field", with(`"rows"`, `"layers": 3, "rows"`), `unknown field "layers"`},
		{"missing field", with(`"rows": 2315,`, ""), "want the fields arithmetic, model, rows and exponents"},
		{"missing exponents", `{"arithmetic": 1, "model": "", "rows": 0}`, "want the fields"},
		{"null", with("11", "null"), "no exponent for layer 0"},
		{"fraction", with("11", "11.5"), "cannot unmarshal number 11.5"},
		{"a word", with("11", `"11"`), "cannot unmarshal string"},
		{"another arithmetic", with(`"arithmetic": 1`, `"arithmetic": 2`), "arithmetic version 2, this program has 1"},
		{"too large", with("40", "41"), "exponent 41 of layer 2, want -8 to 40"},
		{"too small", with("-8", "-9"), "exponent -9 of layer 1"},
		{"few rows", with("2315", "1999"), "measured over 1999 rows, want at least 2000"},
		{"negative rows", with("2315", "-1"), "measured over -1 rows"},
		{"no layers", `{"arithmetic": 1, "model": "", "rows": 0, "exponents": []}`, "exponents for 0 layers"},
		{"too many layers", with("11", strings.Repeat("11,", moe.MaxLayers)+"11"), "exponents for 1027 layers, want 1 to 1024"},
		{"more behind", profileFile + "{}", "more after the end"},
		{"garbage behind", profileFile + "}", "more after the end"},
		{"a long file", profileFile + strings.Repeat(" ", 1<<16), "bytes, want at most 65536"},
	} {
		p, err := ParseProfile([]byte(c.file))
		if !errors.Is(err, ErrProfile) || !strings.Contains(fmt.Sprint(err), c.say) {
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.say)
		}
		if p.Exponents != nil {
			t.Errorf("%s: a profile came with the error: %+v", c.name, p)
		}
	}
}
