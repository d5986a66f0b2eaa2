package ref

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"kvasir/internal/moe"
)

// ErrProfile: an arithmetic profile that cannot be used.
var ErrProfile = errors.New("ref: invalid profile")

// Profile is a model's arithmetic profile: the exponents of its gated sums. All machines that
// compute for one another use the same one; it is part of the model's hash. Its file is JSON with
// these fields and no others, all of them present:
//
//	{
//	  "arithmetic": 1,            version of the arithmetic; must be ref.Arithmetic
//	  "model": "kvasir-tiny",     name of the model it was measured on
//	  "rows": 2315,               rows of each layer it was measured over, at least 2,000; 0 says that
//	                              nothing was measured
//	  "exponents": [11, 12, 11]   E of each layer, from -8 to 40
//	}
type Profile struct {
	Arithmetic int    `json:"arithmetic"`
	Model      string `json:"model"`
	Rows       int    `json:"rows"`
	Exponents  []int  `json:"exponents"`
}

// DefaultProfile is what a model without a profile uses: DefaultExponent in every layer.
func DefaultProfile(layers int) Profile {
	p := Profile{Arithmetic: Arithmetic, Exponents: make([]int, layers)}
	for i := range p.Exponents {
		p.Exponents[i] = DefaultExponent
	}
	return p
}

// Check returns an error, wrapping ErrProfile, unless p can be used for a model of the given number
// of layers.
func (p Profile) Check(layers int) error {
	if err := p.check(); err != nil {
		return err
	}
	if len(p.Exponents) != layers {
		return fmt.Errorf("%w: exponents for %d layers, the model has %d; was it made for %q?",
			ErrProfile, len(p.Exponents), layers, p.Model)
	}
	return nil
}

func (p Profile) check() error {
	if p.Arithmetic != Arithmetic {
		return fmt.Errorf("%w: arithmetic version %d, this program has %d; measure the model again",
			ErrProfile, p.Arithmetic, Arithmetic)
	}
	if p.Rows != 0 && p.Rows < MinRows {
		return fmt.Errorf("%w: measured over %d rows, want at least %d", ErrProfile, p.Rows, MinRows)
	}
	if n := len(p.Exponents); n < 1 || n > moe.MaxLayers {
		return fmt.Errorf("%w: exponents for %d layers, want 1 to %d", ErrProfile, n, moe.MaxLayers)
	}
	for l, e := range p.Exponents {
		if e < MinExponent || e > MaxExponent {
			return fmt.Errorf("%w: exponent %d of layer %d, want %d to %d", ErrProfile, e, l, MinExponent, MaxExponent)
		}
	}
	return nil
}

// Append appends the profile's file to dst. The same profile gives the same bytes.
func (p Profile) Append(dst []byte) []byte {
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		panic("BUG: " + err.Error()) // it holds numbers and a string only
	}
	return append(append(dst, b...), '\n')
}

// maxProfileBytes bounds a file: MaxLayers exponents, one a line, and a name.
const maxProfileBytes = 64 << 10

// ParseProfile reads a profile's file. It returns an error, wrapping ErrProfile, for an unknown or
// missing field, another version of the arithmetic, and an exponent out of its range.
func ParseProfile(src []byte) (Profile, error) {
	if len(src) > maxProfileBytes {
		return Profile{}, fmt.Errorf("%w: %d bytes, want at most %d", ErrProfile, len(src), maxProfileBytes)
	}
	var f struct {
		Arithmetic *int    `json:"arithmetic"`
		Model      *string `json:"model"`
		Rows       *int    `json:"rows"`
		Exponents  []*int  `json:"exponents"`
	}
	d := json.NewDecoder(bytes.NewReader(src))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return Profile{}, fmt.Errorf("%w: %w", ErrProfile, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Profile{}, fmt.Errorf("%w: more after the end of the object", ErrProfile)
	}
	if f.Arithmetic == nil || f.Model == nil || f.Rows == nil || f.Exponents == nil {
		return Profile{}, fmt.Errorf("%w: want the fields arithmetic, model, rows and exponents", ErrProfile)
	}
	p := Profile{Arithmetic: *f.Arithmetic, Model: *f.Model, Rows: *f.Rows}
	for l, e := range f.Exponents {
		if e == nil {
			return Profile{}, fmt.Errorf("%w: no exponent for layer %d", ErrProfile, l)
		}
		p.Exponents = append(p.Exponents, *e)
	}
	if err := p.check(); err != nil {
		return Profile{}, err
	}
	return p, nil
}
