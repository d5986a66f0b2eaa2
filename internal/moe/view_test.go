package moe

import (
	"slices"
	"testing"
)

func TestViewIsNoCopy(t *testing.T) {
	p := AlignedBytes(16)
	copy(p, []byte{0xff, 1, 0, 0, 0, 0, 0x80, 0x3f})
	q, ok := View[int8](p[:2])
	if !ok || !slices.Equal(q, []int8{-1, 1}) {
		t.Errorf("int8: %v, %v", q, ok)
	}
	if !littleEndian() {
		t.Skip("numbers of several bytes are copied on this machine: it is not little-endian")
	}
	e, ok := View[uint16](p[:4])
	if !ok || !slices.Equal(e, []uint16{0x1ff, 0}) {
		t.Errorf("uint16: %v, %v", e, ok)
	}
	f, ok := View[float32](p[4:8])
	if !ok || !slices.Equal(f, []float32{1}) {
		t.Errorf("float32: %v, %v", f, ok)
	}
	p[0] = 7
	if q[0] != 7 || e[0] != 0x107 {
		t.Error("a change of the bytes is not seen")
	}
	for name, ok := range map[string]bool{
		"not at a multiple": func() bool { _, ok := View[float32](p[2:6]); return ok }(),
		"odd":               func() bool { _, ok := View[uint16](p[1:3]); return ok }(),
		"cut":               func() bool { _, ok := View[float32](p[:6]); return ok }(),
	} {
		if ok {
			t.Errorf("%s: there is a view", name)
		}
	}
	if v, ok := View[float32](nil); !ok || v != nil {
		t.Errorf("nothing: %v, %v", v, ok)
	}
}

func TestBytesIsNoCopy(t *testing.T) {
	q, e, f := []int8{-1, 2}, []uint16{0x1ff, 3}, []float32{1}
	p, ok := Bytes(q)
	if !ok || !slices.Equal(p, []byte{0xff, 2}) {
		t.Errorf("int8: %v, %v", p, ok)
	}
	if q[1] = 7; p[1] != 7 {
		t.Error("a change of the numbers is not seen")
	}
	if !littleEndian() {
		t.Skip("numbers of several bytes are copied on this machine: it is not little-endian")
	}
	if p, ok := Bytes(e); !ok || !slices.Equal(p, []byte{0xff, 1, 3, 0}) {
		t.Errorf("uint16: %v, %v", p, ok)
	}
	if p, ok := Bytes(f); !ok || !slices.Equal(p, []byte{0, 0, 0x80, 0x3f}) {
		t.Errorf("float32: %v, %v", p, ok)
	}
	if p, ok := Bytes[float32](nil); !ok || p != nil {
		t.Errorf("nothing: %v, %v", p, ok)
	}
}
