package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"

	"kvasir/internal/moe"
)

// TestEveryTypeIsInTheTables holds that each type has golden bytes and cases that are refused.
func TestEveryTypeIsInTheTables(t *testing.T) {
	seen := map[Type]bool{}
	for _, m := range golden(t) {
		seen[m.typ] = true
		if k := kinds[m.typ]; len(m.payload) < k.min || len(m.payload) > k.max {
			t.Errorf("%s: %d bytes, want %d to %d", m.name, len(m.payload), k.min, k.max)
		}
	}
	refused := map[Type]bool{TypeCancel: true} // it has no payload: its header is refused
	for _, m := range golden(t) {
		for _, tt := range spoiled {
			refused[m.typ] = refused[m.typ] || tt.message == m.name
		}
	}
	for typ := TypeHello; typ.Known(); typ++ {
		if !seen[typ] || !refused[typ] || kinds[typ].name == "" {
			t.Errorf("%s: golden %v, refused %v", typ, seen[typ], refused[typ])
		}
	}
}

// TestAnyChangedByteIsRefusedOrMeansItself flips bits, cuts and lengthens: what is accepted says again just
// what it was, so nothing is read that was not written.
func TestAnyChangedByteIsRefusedOrMeansItself(t *testing.T) {
	try := func(name string, typ Type, p []byte, what string, at int) {
		t.Helper()
		got, err := recode(typ, p)
		switch {
		case err != nil:
			if !errors.Is(err, ErrPayload) {
				t.Fatalf("%s, %s at %d: refused with %v", name, what, at, err)
			}
		case typ == TypeHello && binary.LittleEndian.Uint16(p) != helloLen:
		case !bytes.Equal(got, p):
			t.Fatalf("%s, %s at %d: % x was accepted and means % x", name, what, at, p, got)
		}
	}
	for _, m := range golden(t) {
		if m.typ == TypeCancel {
			continue
		}
		for i := range m.payload {
			for x := 1; x < 256; x++ {
				p := bytes.Clone(m.payload)
				p[i] ^= byte(x)
				try(m.name, m.typ, p, "a change", i)
			}
			try(m.name, m.typ, m.payload[:i], "a cut", i)
		}
		for n := range 200 {
			try(m.name, m.typ, append(bytes.Clone(m.payload), make([]byte, n+1)...), "zeros", n)
		}
	}
}

// TestRandomBytesAreRefusedOrMeanThemselves changes several bytes at once, in messages of every type.
func TestRandomBytesAreRefusedOrMeanThemselves(t *testing.T) {
	const seed = 11
	rng := rand.New(rand.NewPCG(seed, 0))
	list := golden(t)
	for i := range 60_000 {
		m := list[rng.IntN(len(list))]
		if m.typ == TypeCancel {
			continue
		}
		p := bytes.Clone(m.payload)
		for range 1 + rng.IntN(4) {
			p[rng.IntN(len(p))] = [...]byte{0, 1, 2, 0x7f, 0x80, 0xff, byte(rng.Uint32())}[rng.IntN(7)]
		}
		p = p[:len(p)-rng.IntN(2)*rng.IntN(len(p))]
		got, err := recode(m.typ, p)
		if err != nil && !errors.Is(err, ErrPayload) ||
			err == nil && !bytes.Equal(got, p) && (m.typ != TypeHello || binary.LittleEndian.Uint16(p) == helloLen) {
			t.Fatalf("seed %d, case %d, %s: % x: % x, %v", seed, i, m.name, p, got, err)
		}
	}
}

// TestNoClaimIsBelieved puts large numbers everywhere in every message, and counts what parsing allocates:
// no more than the message has bytes, a few times over, and an error.
func TestNoClaimIsBelieved(t *testing.T) {
	for _, m := range golden(t) {
		for width := 1; width <= 8; width *= 2 {
			for at := 0; at+width <= len(m.payload); at++ {
				for _, claim := range []uint64{1<<64 - 1, 1 << 63, 1 << 31, 1<<31 - 1, 1 << 20, 4096, 32768, 0x7fff} {
					p := bytes.Clone(m.payload)
					var b [8]byte
					binary.LittleEndian.PutUint64(b[:], claim)
					copy(p[at:at+width], b[:])
					if n := allocated(func() { _ = parse(m.typ, p) }); n > 16<<10 {
						t.Fatalf("%s: %d at byte %d: parsing %d bytes allocates %d", m.name, claim, at, len(p), n)
					}
				}
			}
		}
	}
}

// parse reads a payload as the reader of a connection does, which for Dispatch looks at the head before it
// makes room, and for Partials knows what it has asked for.
func parse(typ Type, p []byte) error {
	switch typ {
	case TypeDispatch:
		var b moe.Batch
		_, err := ViewDispatch(&b, p)
		return err
	case TypePartials:
		var out moe.Partials
		return ParsePartials(&out, p, 3, 3)
	}
	_, err := recode(typ, p)
	return err
}

func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestAHeaderWithAnyByteChangedIsRefusedOrMeansItself is the same for chunks.
func TestAHeaderWithAnyByteChangedIsRefusedOrMeansItself(t *testing.T) {
	for _, m := range golden(t) {
		good := AppendHeader(nil, NewHeader(m.typ, len(m.payload), 7))
		for i := range good {
			for x := 1; x < 256; x++ {
				p := bytes.Clone(good)
				p[i] ^= byte(x)
				h, err := ParseHeader(p)
				if err != nil {
					if !errors.Is(err, ErrHeader) && !errors.Is(err, ErrUnknown) {
						t.Fatalf("%s, byte %d: %v", m.name, i, err)
					}
					continue
				}
				if !bytes.Equal(AppendHeader(nil, h), p) || h.Size > MaxPayload || h.Type.Known() && h.Length > kinds[h.Type].max {
					t.Fatalf("%s, byte %d: % x means %+v", m.name, i, p, h)
				}
			}
			if _, err := ParseHeader(good[:i]); !errors.Is(err, ErrHeader) {
				t.Fatalf("%s: %d bytes: %v", m.name, i, err)
			}
		}
	}
}

// TestUnknownFeaturesAreKept has a later version offer what is not known here.
func TestUnknownFeaturesAreKept(t *testing.T) {
	h := Hello{Min: 1, Max: 2, Role: RoleWorker, Class: Exact, Features: 1<<63 | 1<<17 | FeatureFetch}
	var got Hello
	if err := ParseHello(&got, AppendHello(nil, &h)); err != nil || got.Features != h.Features || got.Max != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}
