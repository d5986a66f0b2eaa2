package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"kvasir/internal/moe"
)

// FuzzMessage: what is accepted has one encoding, and what is not is refused with ErrPayload.
func FuzzMessage(f *testing.F) {
	for _, m := range golden(f) {
		f.Add(byte(m.typ), m.payload)
	}
	f.Fuzz(func(t *testing.T, typ byte, p []byte) {
		got, err := recode(Type(typ), p)
		if Type(typ) == TypeDispatch {
			var v moe.Batch
			if _, verr := ViewDispatch(&v, aligned(p, 0)); (verr == nil) != (err == nil) || verr == nil && v.Validate(moe.MaxExperts) != nil {
				t.Fatalf("% x: a view says %v, a copy %v", p, verr, err)
			}
		}
		switch {
		case err != nil:
			if !errors.Is(err, ErrPayload) && !errors.Is(err, ErrUnknown) {
				t.Fatalf("refused with %v", err)
			}
		case Type(typ) == TypeHello && binary.LittleEndian.Uint16(p) != helloLen, Type(typ) == TypeCancel:
			// A later version's Hello loses what is not known here. Cancel has no payload to parse.
		case !bytes.Equal(got, p):
			t.Fatalf("% x was accepted and means % x", p, got)
		}
	})
}

// FuzzHeader: a header that is accepted has one encoding and claims nothing beyond its type's bounds.
func FuzzHeader(f *testing.F) {
	for _, m := range golden(f) {
		f.Add(AppendHeader(nil, NewHeader(m.typ, len(m.payload), 7)))
	}
	f.Add(AppendHeader(nil, Header{Type: 200, Flags: Bulk, Size: 3, Length: 900}))
	f.Fuzz(func(t *testing.T, p []byte) {
		h, err := ParseHeader(p)
		if err != nil {
			if !errors.Is(err, ErrHeader) && !errors.Is(err, ErrUnknown) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if !bytes.Equal(AppendHeader(nil, h), p[:HeaderLen]) {
			t.Fatalf("% x was accepted and means %+v", p[:HeaderLen], h)
		}
		if h.Type.Known() && h.Length > kinds[h.Type].max || h.Size > MaxPayload || h.Size > h.Length {
			t.Fatalf("accepted %+v", h)
		}
	})
}
