package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

const max32 = "ff ff ff ff"

// spoiled are the golden messages with bytes set from an offset on, and cut or lengthened at the end.
var spoiled = []struct {
	message string
	at      int
	hex     string
	add     int // bytes at the end: cut when negative, 5a when positive
	want    string
}{
	{"hello", 0, "", -1, "bytes for a fixed part"},
	{"hello", 0, "", 1, "bytes for a fixed part"},
	{"hello", 0, "", -112, "want 128 to"},
	{"hello", 0, "7f 00", 0, "fixed part of 127"},
	{"hello", 0, "ff ff", 0, "fixed part of 65535"},
	{"hello", 2, "00 00", 0, "oldest version 0"},
	{"hello", 2, "03 00", 0, "oldest version 3, want 1 to 2"},
	{"hello", 6, "00", 0, "role 0"},
	{"hello", 6, "03", 0, "role 3"},
	{"hello", 7, "00", 0, "class 0"},
	{"hello", 12, max32, 0, "layers 4294967295"},
	{"hello", 16, max32, 0, "experts 4294967295"},
	{"hello", 20, max32, 0, "hidden size 4294967295"},
	{"hello", 32, "ff ff ff ff ff ff ff ff", 0, "window 18446744073709551615"},
	{"hello", 40, max32, 0, "calls 4294967295"},
	{"hello", 44, "ff ff", 0, "65535 slices"},
	{"hello", 46, "ff", 0, "agent of 255"},
	{"hello", 47, "01", 0, "reserved byte 47"},
	{"hello", 112, "01 00 00 00 00 00 01 00", 0, "memory 281474976710657"},
	{"hello", 112, "ff ff ff ff ff ff ff ff", 0, "memory 18446744073709551615"},
	{"hello", 120, "00 00 00 80", 0, "rate 2147483648"},
	{"hello", 124, "01", 0, "reserved byte 124"},
	{"hello", 127, "01", 0, "reserved byte 127"},
	{"hello", 128, "00 04", 0, "slice of layer 1024"},
	{"hello", 130, "20 00", 0, "experts 32 to 32"},
	{"hello", 132, "01 10", 0, "experts 16 to 4097"},
	{"hello", 134, "01", 0, "exponent plus 64 1, want 56 to 104"},
	{"hello", 168, "ff", 0, "agent is not UTF-8"},

	{"assign", 0, "00", 0, "epoch 0"},
	{"assign", 4, "01 00", 0, "bytes for 1 slices"},
	{"assign", 4, "ff ff", 0, "bytes for 65535 slices"},
	{"assign", 6, "01", 0, "reserved byte 6"},
	{"assign", 0, "", -40, "bytes for 2 slices"},
	{"assign", 0, "", -80, "want 48 to"},
	{"assign", 8, "ff ff", 0, "slice of layer 65535"},
	{"assign", 14, "37", 0, "exponent plus 64 55"},
	{"assign", 14, "69", 0, "exponent plus 64 105"},
	{"assign", 15, "01", 0, "exponent plus 64 331"},

	{"fetch", 0, "", -1, "47 bytes, want 48"},
	{"fetch", 0, "", 1, "49 bytes, want 48"},
	{"fetch", 40, "00 00 00 00", 0, "bytes wanted 0"},
	{"fetch", 40, "01 00 10 00", 0, "bytes wanted 1048577"},
	{"fetch", 44, "01", 0, "reserved byte 44"},

	{"slice data", 0, "", -4, "63 bytes, want 64"},
	{"slice data", 0, "07", 0, "3 bytes from 7 of a slice of 9"},
	{"slice data", 0, "0a", 0, "from 10 of a slice of 9"},
	{"slice data", 0, "ff ff ff ff ff ff ff ff", 0, "from 18446744073709551615"},
	{"slice data", 16, "01", 0, "reserved byte 16"},
	{"slice data", 63, "01", 0, "reserved byte 63"},

	{"ready", 0, "", 1, "5 bytes, want 4"},
	{"ready", 0, "", -1, "3 bytes, want 4"},

	{"dispatch of q8k", 0, "", -1, "want 156"},
	{"dispatch of q8k", 0, "", 1, "want 156"},
	{"dispatch of q8k", 0, "", -93, "63 bytes, want 64"},
	{"dispatch of q8k", 4, "00 04 00 00", 0, "layer 1024"},
	{"dispatch of q8k", 4, max32, 0, "layer 4294967295"},
	{"dispatch of q8k", 8, "00", 0, "rows 0"},
	{"dispatch of q8k", 8, "01 10 00 00", 0, "rows 4097"},
	{"dispatch of q8k", 8, max32, 0, "rows 4294967295"},
	{"dispatch of q8k", 8, "01", 0, "for 1 Q8K rows"},
	{"dispatch of q8k", 12, "00", 0, "hidden size 0"},
	{"dispatch of q8k", 12, "01 80 00 00", 0, "hidden size 32769"},
	{"dispatch of q8k", 12, "00 80 00 00", 0, "rows of 32768"},
	{"dispatch of q8k", 16, "01", 0, "picks 1, want 2 to 128"},
	{"dispatch of q8k", 16, max32, 0, "picks 4294967295"},
	{"dispatch of q8k", 16, "04", 0, "with 4 picks"},
	{"dispatch of q8k", 20, "03", 0, "row format 3"},
	{"dispatch of q8k", 20, "00", 0, "F32 rows"},
	{"dispatch of q8k", 21, "01", 0, "reserved byte 21"},
	{"dispatch of q8k", 63, "01", 0, "reserved byte 63"},
	{"dispatch of q8k", 68, "80", 0, "row 1, value 1 is -128"},
	{"dispatch of q8k", 70, "01", 0, "reserved byte 70"},
	{"dispatch of q8k", 127, "01", 0, "reserved byte 127"},
	{"dispatch of q8k", 150, "00 10", 0, "pick 1 asks for expert 4096"},
	{"dispatch of q8k", 154, "00", 0, "row 0 has 0 picks"},
	{"dispatch of q8k", 154, "41", 0, "row 0 has 65 picks"},
	{"dispatch of q8k", 154, "02", 0, "4 picks together, the head says 3"},
	{"dispatch of q8k", 154, "01 01", 0, "2 picks together"},

	{"dispatch of f32", 0, "", -1, "want 79"},
	{"dispatch of f32", 20, "02", 0, "Q8 rows"},
	{"dispatch of f32", 12, "03", 0, "rows of 3"},
	{"dispatch of f32", 76, "ff ff", 0, "expert 65535"},
	{"dispatch of f32", 78, "00", 0, "row 0 has 0 picks"},

	{"partials", 0, "02", 0, "bytes behind"}, // the caller of this table believes the rows of the head
	{"partials", 0, "04", 0, ""},
	{"partials", 0, "", -1, "row 2"},
	{"partials", 0, "", -6, "bytes for the statuses"},
	{"partials", 0, "", 1, "1 bytes behind the last row"},
	{"partials", 8, "04", 0, "row 0 has status 4"},
	{"partials", 8, "ff", 0, "row 0 has status 255"},
	{"partials", 11, "35", 0, "width 53"},
	{"partials", 11, "04", 0, "row 0"},
	{"partials", 13, "02", 0, "padding"},

	{"fault", 0, "00", 0, "code 0"},
	{"fault", 2, "01", 0, "reserved byte 2"},
	{"fault", 4, "ff", 0, "not UTF-8"},
	{"fault", 0, "", MaxText - 1, "1029 bytes, want 4 to 1028"},
	{"fault", 0, "", -3, "3 bytes, want 4"},
	{"credit", 0, "", -1, "7 bytes, want 8"},
	{"credit", 0, "", 1, "9 bytes, want 8"},
	{"ping", 0, "", 1, "9 bytes, want 8"},
	{"pong", 0, "", -1, "7 bytes, want 8"},
	{"receipt", 0, "", -3, "7 bytes, want 8"},
	{"receipt", 0, "", MaxSigned, "want 8 to"},
	{"go away", 0, "00", 0, "reason 0"},
	{"go away", 2, "01", 0, "reserved byte 2"},
	{"go away", 9, "c3", 0, "not UTF-8"},
	{"go away", 0, "", -4, "7 bytes, want 8"},
}

func TestPayloadsAreRefused(t *testing.T) {
	good := map[string][]byte{}
	types := map[string]Type{}
	for _, m := range golden(t) {
		good[m.name], types[m.name] = m.payload, m.typ
	}
	for _, tt := range spoiled {
		t.Run(tt.message+" "+tt.want, func(t *testing.T) {
			p := bytes.Clone(good[tt.message])
			if p == nil {
				t.Fatalf("no golden message %q", tt.message)
			}
			copy(p[tt.at:], unhex(t, tt.hex))
			if tt.add < 0 {
				p = p[:len(p)+tt.add]
			} else {
				p = append(p, bytes.Repeat([]byte{0x5a}, tt.add)...)
			}
			got, err := recode(types[tt.message], p)
			if !errors.Is(err, ErrPayload) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got % x, %v, want ErrPayload with %q", got, err, tt.want)
			}
		})
	}
}

func TestPartialsOfAnotherShapeAreRefused(t *testing.T) {
	p := AppendPartials(nil, partials())
	for _, dims := range [][2]int{{2, 3}, {4, 3}, {3, 2}, {3, 256}, {4096, 32768}} {
		out := partials()
		before := len(out.Sum)
		if err := ParsePartials(out, p, dims[0], dims[1]); !errors.Is(err, ErrPayload) {
			t.Errorf("%v: %v, want ErrPayload", dims, err)
		}
		if len(out.Sum) != before {
			t.Errorf("%v: resized to %d sums before the claim was checked", dims, len(out.Sum))
		}
	}
}

func TestAHugeClaimAllocatesNothing(t *testing.T) {
	d := AppendDispatch(nil, 0, q8k(t))
	binary.LittleEndian.PutUint32(d[8:], 4096)
	binary.LittleEndian.PutUint32(d[12:], 32768)
	binary.LittleEndian.PutUint32(d[16:], 4096*64)
	if _, err := ParseDispatchHead(d); !errors.Is(err, ErrPayload) {
		t.Errorf("a dispatch of 156 bytes that claims 4096 rows: %v, want ErrPayload", err)
	}
}
