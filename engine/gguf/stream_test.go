package gguf

import (
	"bytes"
	"testing"

	"kvasir/kernels/quant"
)

func TestLayoutIsWhereWriteToPutsThings(t *testing.T) {
	f := func(name string, tensors int, alignment uint32) {
		t.Helper()
		var w Writer
		w.Set("general.name", name)
		if alignment > 0 {
			w.Set(alignmentKey, alignment)
		}
		var data [][]byte
		for i := range tensors {
			d := bytes.Repeat([]byte{byte(i + 1)}, 34*(i+1))
			data = append(data, d)
			w.Add(string(rune('a'+i)), quant.Q8_0, []int{32, i + 1}, Bytes(d))
		}
		l, err := w.Layout()
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, l.Size)
		copy(got, l.Head)
		for i, p := range l.Tensors {
			if p.Name != string(rune('a'+i)) || p.Size != int64(len(data[i])) {
				t.Errorf("%s: place %d is %+v", name, i, p)
			}
			copy(got[p.Offset:], data[i])
		}
		var want bytes.Buffer
		if _, err := w.WriteTo(&want); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%s: %d bytes by the layout, %d by WriteTo, and they differ", name, len(got), want.Len())
		}
	}
	f("no tensors", 0, 0)
	f("one", 1, 0)
	f("several", 5, 0)
	f("wide", 3, 4096)
}

func TestLayoutReportsWhatSetRefused(t *testing.T) {
	var w Writer
	w.Set("general.name", "a")
	w.Set("general.name", "b")
	if _, err := w.Layout(); err == nil {
		t.Error("a key twice was taken")
	}
	w = Writer{Version: 4}
	if _, err := w.Layout(); err == nil {
		t.Error("version 4 was taken")
	}
}
