// Package variant names the instruction sets that kernels are written for, and says which of them this
// machine has and which one is taken.
//
// All variants give the same bits (kernels/kerneltest), so the choice is one of speed. The environment
// variable KVASIR_KERNEL forces one, for tests and bug reports.
package variant

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
)

// Variant is an instruction set that kernels are written for.
type Variant uint8

// The variants, each better than those before it on a processor that has it.
const (
	Portable   Variant = iota // Go alone
	NEON                      // arm64
	DotProd                   // arm64 with SDOT
	I8MM                      // arm64 with SDOT and SMMLA
	AVX2                      // amd64 with AVX2 and F16C
	AVXVNNI                   // the same with VPDPBUSD on 256 bits
	AVX512VNNI                // amd64 with AVX-512 F, BW, DQ, VL and VNNI
	count
)

var names = [count]string{"portable", "neon", "dotprod", "i8mm", "avx2", "avxvnni", "avx512vnni"}

// String returns the name by which KVASIR_KERNEL asks for v.
func (v Variant) String() string {
	if v < count {
		return names[v]
	}
	return fmt.Sprintf("variant %d", uint8(v))
}

// Env is the environment variable that forces a variant.
const Env = "KVASIR_KERNEL"

// Errors of a wish that cannot be met; test with errors.Is.
var (
	// ErrUnknown: no variant has that name.
	ErrUnknown = errors.New("variant: unknown kernel variant")
	// ErrMissing: this processor, or this build, lacks the variant.
	ErrMissing = errors.New("variant: not available here")
)

// Parse returns the variant of a name.
func Parse(name string) (Variant, error) {
	for v, n := range names {
		if n == name {
			return Variant(v), nil
		}
	}
	return Portable, fmt.Errorf("%w %q, want one of %s", ErrUnknown, name, strings.Join(names[:], ", "))
}

// Available returns what this processor and this build can run, from the plainest to the best. Portable
// is always among them.
func Available() []Variant {
	list := []Variant{Portable}
	for v := NEON; v < count; v++ {
		if len(missing(v)) == 0 {
			list = append(list, v)
		}
	}
	return list
}

// Choice is a variant and why it was taken.
type Choice struct {
	Variant Variant
	Why     string
}

// Choose returns the variant that wish names, or the best available where wish is empty. A wish that
// cannot be met is an error that says what is missing.
func Choose(wish string) (Choice, error) {
	list := Available()
	best := list[len(list)-1]
	if wish == "" {
		return Choice{best, why(best)}, nil
	}
	v, err := Parse(wish)
	if err != nil {
		return Choice{}, err
	}
	if lacks := missing(v); len(lacks) > 0 {
		return Choice{}, fmt.Errorf("%w: %s needs %s; the best here is %s", ErrMissing, v, strings.Join(lacks, ", "), best)
	}
	return Choice{v, "asked for by " + Env}, nil
}

// why tells what the variants above the best one would need.
func why(best Variant) string {
	for v := best + 1; v < count; v++ {
		if lacks := missing(v); ours(v) && len(lacks) > 0 {
			return fmt.Sprintf("the best here: %s needs %s", v, strings.Join(lacks, ", "))
		}
	}
	if best == Portable {
		return "this build has no assembly for its processor"
	}
	return "the best there is"
}

// Active returns what Choose makes of KVASIR_KERNEL, asked once. Programs call it at their start and end
// with the error; later calls cannot fail then.
var Active = sync.OnceValues(func() (Choice, error) { return Choose(os.Getenv(Env)) })
