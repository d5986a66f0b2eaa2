package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"kvasir/internal/moe"
)

// recode parses a payload and appends what was read: each message has one encoding only, so the result
// is the payload again. It returns nil and the error where the payload is refused.
func recode(t Type, p []byte) ([]byte, error) {
	switch t {
	case TypeHello:
		var h Hello
		if err := ParseHello(&h, p); err != nil {
			return nil, err
		}
		return AppendHello(nil, &h), nil
	case TypeAssign:
		var a Assign
		if err := ParseAssign(&a, p); err != nil {
			return nil, err
		}
		return AppendAssign(nil, a), nil
	case TypeFetch:
		return again(p, ParseFetch, AppendFetch)
	case TypeSliceData:
		return again(p, ParseSliceData, AppendSliceData)
	case TypeReady:
		return again(p, ParseReady, AppendReady)
	case TypeDispatch:
		return recodeDispatch(p)
	case TypePartials:
		return recodePartials(p)
	case TypeFault:
		return again(p, ParseFault, AppendFault)
	case TypeCredit:
		return again(p, ParseCredit, AppendCredit)
	case TypeCancel:
		return []byte{}, nil
	case TypePing, TypePong:
		return again(p, ParsePing, AppendPing)
	case TypeReceipt:
		return again(p, ParseReceipt, AppendReceipt)
	case TypeGoAway:
		return again(p, ParseGoAway, AppendGoAway)
	}
	return nil, ErrUnknown
}

func again[M any](p []byte, parse func([]byte) (M, error), add func([]byte, M) []byte) ([]byte, error) {
	m, err := parse(p)
	if err != nil {
		return nil, err
	}
	return add(nil, m), nil
}

func recodeDispatch(p []byte) ([]byte, error) {
	h, err := ParseDispatchHead(p)
	if err != nil {
		return nil, err
	}
	b, err := moe.NewBatch(h.Shape, h.Rows, h.Picks)
	if err != nil {
		return nil, fmt.Errorf("a head that was accepted makes no batch: %w", err)
	}
	epoch, err := ParseDispatch(b, p)
	if err != nil {
		return nil, err
	}
	if err := b.Validate(moe.MaxExperts); err != nil {
		return nil, fmt.Errorf("a dispatch that was accepted breaks an invariant: %w", err)
	}
	return AppendDispatch(nil, epoch, b), nil
}

func recodePartials(p []byte) ([]byte, error) {
	if len(p) < partialsLen {
		return nil, ErrPayload
	}
	rows, hidden := int(p[0])|int(p[1])<<8, int(p[4])|int(p[5])<<8
	if rows < 1 || rows > moe.MaxRows || hidden < 1 || hidden > moe.MaxHidden || rows*hidden > 1<<20 {
		return nil, ErrPayload // the caller knows rows and hidden size, and they are in bounds
	}
	var out moe.Partials
	if err := ParsePartials(&out, p, rows, hidden); err != nil {
		return nil, err
	}
	return AppendPartials(nil, &out), nil
}

// unhex reads spaced hex in which xx*12 stands for twelve times xx.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	var p []byte
	for _, word := range strings.Fields(s) {
		word, times, _ := strings.Cut(word, "*")
		b, err := hex.DecodeString(word)
		n := 1
		if times != "" {
			if _, scanErr := fmt.Sscan(times, &n); scanErr != nil {
				t.Fatal(scanErr)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		p = append(p, bytes.Repeat(b, n)...)
	}
	return p
}

func hashOf(b byte) (h Hash) {
	for i := range h {
		h[i] = b
	}
	return h
}

// q8k is a batch of two Q8K rows of 3 values with 1 and 2 picks.
func q8k(t testing.TB) *moe.Batch {
	t.Helper()
	b, err := moe.NewBatch(moe.Shape{Layer: 5, Hidden: 3, Format: moe.RowQ8K}, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	row := b.Row(b.Grow([]uint16{7}, []float32{1}))
	copy(row.Q, []int8{1, -1, 127})
	row.Scales[0] = 0.5
	row = b.Row(b.Grow([]uint16{0, 0x0fff}, []float32{-2, 0.25}))
	copy(row.Q, []int8{-127, 0, 2})
	row.Scales[0] = 1
	return b
}

func f32(t testing.TB) *moe.Batch {
	t.Helper()
	b, err := moe.NewBatch(moe.Shape{Layer: 1, Hidden: 2, Format: moe.RowF32}, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	copy(b.Row(b.Grow([]uint16{3}, []float32{1})).F, []float32{1, -2})
	return b
}

// partials are a row of small values, a row out of range, and a row of zeros.
func partials() *moe.Partials {
	var p moe.Partials
	p.Reset(3, 3)
	copy(p.Row(0), []int64{1, -2, 3})
	p.Fault(1, moe.Range)
	return &p
}

// golden is one message of each type. A change here is a new protocol version.
func golden(t testing.TB) []struct {
	name    string
	typ     Type
	hex     string
	payload []byte
} {
	return []struct {
		name    string
		typ     Type
		hex     string
		payload []byte
	}{
		{"hello", TypeHello, `
			80 00  01 00  02 00  01  02  03 00 00 00  31 00 00 00  00 01 00 00  00 0c 00 00
			01 00 00 00 00 00 00 00  00 00 00 02 00 00 00 00  40 00 00 00  01 00  03  00
			aa*32  bb*32
			00 00 00 00 02 00 00 00  a0 86 01 00  00 00 00 00
			07 00  10 00  20 00  00 00  cc*32
			6b 61 79`,
			AppendHello(nil, &Hello{
				Min: 1, Max: 2, Role: RoleWorker, Class: Close, Arithmetic: 3, Features: FeatureFetch,
				Layers: 49, Experts: 256, Hidden: 3072, Model: hashOf(0xaa), Profile: hashOf(0xbb),
				Calls: 64, Window: 32 << 20, Memory: 8 << 30, Rate: 100_000, Agent: []byte("kay"),
				Slices: []Slice{{Layer: 7, Lo: 16, Hi: 32, Hash: hashOf(0xcc)}},
			})},
		{"assign", TypeAssign, `
			02 00 00 00  02 00  00 00
			03 00  00 00  00 01  4b 00  dd*32
			ff 03  ff 0f  00 10  38 00  00*32`,
			AppendAssign(nil, Assign{Epoch: 2, Slices: []Slice{
				{Layer: 3, Lo: 0, Hi: 256, Hash: hashOf(0xdd), Exponent: ExponentBias + 11},
				{Layer: 1023, Lo: 4095, Hi: 4096, Exponent: ExponentBias - 8}}})},
		{"fetch", TypeFetch, `ee*32  00 00 10 00 00 00 00 00  00 00 04 00  00*4`,
			AppendFetch(nil, Fetch{Hash: hashOf(0xee), Offset: 1 << 20, Size: 1 << 18})},
		{"slice data", TypeSliceData, `04 00 00 00 00 00 00 00  09 00 00 00 00 00 00 00  00*48  01 02 03`,
			AppendSliceData(nil, SliceData{Offset: 4, Size: 9, Data: []byte{1, 2, 3}})},
		{"ready", TypeReady, `02 00 00 00`, AppendReady(nil, 2)},
		{"dispatch of q8k", TypeDispatch, `
			02 00 00 00  05 00 00 00  02 00 00 00  03 00 00 00  03 00 00 00  01  00*43
			01 ff 7f  81 00 02  00*58
			00 00 00 3f  00 00 80 3f
			00 00 80 3f  00 00 00 c0  00 00 80 3e
			07 00  00 00  ff 0f
			01 02`,
			AppendDispatch(nil, 2, q8k(t))},
		{"dispatch of f32", TypeDispatch, `
			00 00 00 00  01 00 00 00  01 00 00 00  02 00 00 00  01 00 00 00  00  00*43
			00 00 80 3f  00 00 00 c0
			00 00 80 3f  03 00  01`,
			AppendDispatch(nil, 0, f32(t))},
		// 3 values of 3 bits: 001, 110, 011, least significant bit first: 11 110 001, then 0.
		{"partials", TypePartials, `03 00 00 00  03 00 00 00  00 02 00  03 f1 00  00`,
			AppendPartials(nil, partials())},
		{"fault", TypeFault, `01 00  00 00  6e 6f`, AppendFault(nil, Fault{Code: NotHeld, Text: []byte("no")})},
		{"credit", TypeCredit, `00 00 00 00 01 00 00 00`, AppendCredit(nil, 1<<32)},
		{"cancel", TypeCancel, ``, nil},
		{"ping", TypePing, `08 07 06 05 04 03 02 01`, AppendPing(nil, 0x0102030405060708)},
		{"pong", TypePong, `08 07 06 05 04 03 02 01`, AppendPing(nil, 0x0102030405060708)},
		{"receipt", TypeReceipt, `09 00 00 00 00 00 00 00  fe ed`,
			AppendReceipt(nil, Receipt{Sequence: 9, Signed: []byte{0xfe, 0xed}})},
		{"go away", TypeGoAway, `02 00  00 00  e8 03 00 00  62 79 65`,
			AppendGoAway(nil, GoAway{Reason: Moving, Back: 1000, Text: []byte("bye")})},
	}
}

func TestMessagesHaveTheseBytes(t *testing.T) {
	seen := map[Type]bool{}
	for _, m := range golden(t) {
		seen[m.typ] = true
		t.Run(m.name, func(t *testing.T) {
			want := unhex(t, m.hex)
			if !bytes.Equal(m.payload, want) {
				t.Fatalf("appended\n% x, want\n% x", m.payload, want)
			}
			got, err := recode(m.typ, want)
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("parsed and appended again\n% x, %v, want\n% x", got, err, want)
			}
			if err := NewHeader(m.typ, len(want), 1).Check(); err != nil {
				t.Errorf("its header is refused: %v", err)
			}
		})
	}
	for typ := TypeHello; typ.Known(); typ++ {
		if !seen[typ] {
			t.Errorf("no golden bytes for %s", typ)
		}
	}
}

func TestHeaderHasTheseBytes(t *testing.T) {
	h := Header{Type: TypeDispatch, Flags: Bulk | Must, Size: 15984, Length: 0x00123456, Call: 0x0102030405060708}
	want := unhex(t, "06 03 70 3e 56 34 12 00 08 07 06 05 04 03 02 01")
	if got := AppendHeader(nil, h); !bytes.Equal(got, want) {
		t.Errorf("appended % x, want % x", got, want)
	}
	if got, err := ParseHeader(want); err != nil || got != h {
		t.Errorf("parsed %+v, %v, want %+v", got, err, h)
	}
}

func TestHeadersAreRefused(t *testing.T) {
	tests := []struct {
		name string
		h    Header
		want error
		text string
	}{
		{"control", Header{Type: TypePing, Size: 8, Length: 8}, nil, ""},
		{"must on a known type", Header{Type: TypePing, Flags: Must, Size: 8, Length: 8}, nil, ""},
		{"bulk, first of several", Header{Type: TypeDispatch, Flags: Bulk, Size: MaxPayload, Length: 20000}, nil, ""},
		{"unknown control", Header{Type: 99, Size: 5, Length: 5}, nil, ""},
		{"unknown bulk", Header{Type: 99, Flags: Bulk, Size: 5, Length: 50}, nil, ""},
		{"type 0", Header{Type: 0, Flags: Must}, ErrUnknown, "type 0"},
		{"unknown and must", Header{Type: 99, Flags: Must, Size: 5, Length: 5}, ErrUnknown, "update this side"},
		{"reserved flag", Header{Type: TypePing, Flags: 4, Size: 8, Length: 8}, ErrHeader, "reserved flags 0x04"},
		{"chunk too long", Header{Type: 99, Size: MaxPayload + 1, Length: MaxPayload + 1}, ErrHeader, "15985 bytes in a chunk"},
		{"chunk beyond message", Header{Type: TypeDispatch, Flags: Bulk, Size: 100, Length: 99}, ErrHeader, "message of 99"},
		{"control in pieces", Header{Type: TypeFault, Size: 10, Length: 20}, ErrHeader, "control messages are one chunk"},
		{"unknown control in pieces", Header{Type: 99, Size: 10, Length: 20}, ErrHeader, "one chunk"},
		{"empty chunk", Header{Type: TypeDispatch, Flags: Bulk, Length: 100}, ErrHeader, "empty chunk"},
		{"bulk without its flag", Header{Type: TypeDispatch, Size: 100, Length: 100}, ErrHeader, "flags"},
		{"control with the flag", Header{Type: TypePing, Flags: Bulk, Size: 8, Length: 8}, ErrHeader, "flags"},
		{"short", Header{Type: TypePing, Size: 7, Length: 7}, ErrHeader, "want 8 to 8"},
		{"long", Header{Type: TypeCancel, Size: 1, Length: 1}, ErrHeader, "want 0 to 0"},
		{"dispatch beyond all batches", Header{Type: TypeDispatch, Flags: Bulk, Size: 9, Length: maxDispatch + 1}, ErrHeader, "Dispatch of"},
		{"partials beyond all batches", Header{Type: TypePartials, Flags: Bulk, Size: 9, Length: maxPartials + 1}, ErrHeader, "Partials of"},
		{"slice data too long", Header{Type: TypeSliceData, Flags: Bulk, Size: 9, Length: MaxSliceData + 65}, ErrHeader, "SliceData of"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := AppendHeader(nil, tt.h)
			got, err := ParseHeader(p)
			if tt.want == nil && (err != nil || got != tt.h) {
				t.Fatalf("got %+v, %v", got, err)
			}
			if !errors.Is(err, tt.want) || tt.want != nil && !strings.Contains(err.Error(), tt.text) {
				t.Fatalf("error %v, want %v with %q", err, tt.want, tt.text)
			}
		})
	}
	if _, err := ParseHeader(make([]byte, HeaderLen-1)); !errors.Is(err, ErrHeader) {
		t.Errorf("15 bytes: %v, want ErrHeader", err)
	}
}

func TestTheLargestMessagesFitTheirBounds(t *testing.T) {
	s := moe.Shape{Hidden: moe.MaxHidden}
	if got := DispatchSize(s, moe.MaxRows, moe.MaxRows*moe.MaxTopK); got != maxDispatch {
		t.Errorf("largest dispatch is %d bytes, the bound says %d", got, maxDispatch)
	}
	if got := PartialsBound(moe.MaxRows, moe.MaxHidden); got != maxPartials {
		t.Errorf("largest partials are %d bytes, the bound says %d", got, maxPartials)
	}
	full := &Hello{Slices: make([]Slice, MaxSlices), Agent: make([]byte, MaxAgent)}
	if n := len(AppendHello(nil, full)); n > MaxPayload {
		t.Errorf("largest hello is %d bytes, a chunk holds %d", n, MaxPayload)
	}
	for typ := TypeHello; typ.Known(); typ++ {
		if k := kinds[typ]; !k.bulk && k.max > MaxPayload {
			t.Errorf("%s may have %d bytes and is control: a chunk holds %d", typ, k.max, MaxPayload)
		}
	}
}

func TestTheNextVersionsHelloIsUnderstood(t *testing.T) {
	h := Hello{Min: 1, Max: 9, Role: RoleWorker, Class: Exact, Agent: []byte("next"),
		Slices: []Slice{{Layer: 1, Lo: 0, Hi: 8}}}
	p := AppendHello(nil, &h)
	p[0] += 24 // a longer fixed part
	p = append(p[:helloLen:helloLen], append(bytes.Repeat([]byte{0xff}, 24), p[helloLen:]...)...)
	p[47], p[124] = 1, 1 // bytes that are reserved today
	var got Hello
	if err := ParseHello(&got, p); err != nil || !reflect.DeepEqual(got, h) {
		t.Errorf("got %+v, %v, want %+v", got, err, h)
	}
}

func TestTextIsCutAtACharacter(t *testing.T) {
	long := []byte(strings.Repeat("x", MaxText-1) + "ü")
	if f, err := ParseFault(AppendFault(nil, Fault{Code: Internal, Text: long})); err != nil || len(f.Text) != MaxText-1 {
		t.Errorf("got %d bytes, %v, want %d", len(f.Text), err, MaxText-1)
	}
	if f, err := ParseFault(AppendFault(nil, Fault{Code: Internal, Text: []byte{'a', 0xff}})); err != nil || len(f.Text) != 0 {
		t.Errorf("text that is not UTF-8: %q, %v, want none", f.Text, err)
	}
}

func TestADispatchIsAlignedWithinItsPayload(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := layoutOf(moe.Shape{
			Hidden: rapid.IntRange(1, moe.MaxHidden).Draw(t, "hidden"),
			Format: moe.RowFormat(rapid.IntRange(0, int(moe.RowQ8)).Draw(t, "format")),
		}, rapid.IntRange(1, moe.MaxRows).Draw(t, "rows"), rapid.IntRange(1, moe.MaxRows*moe.MaxTopK).Draw(t, "picks"))
		if at.values%64 != 0 || at.scales != at.weights && at.scales%64 != 0 || at.weights%4 != 0 || at.experts%4 != 0 {
			t.Fatalf("layout %+v", at)
		}
	})
}

func TestNamesOfTypesAndCodes(t *testing.T) {
	for got, want := range map[string]string{
		TypeSliceData.String(): "SliceData", Type(77).String(): "type 77",
		RoleWorker.String(): "worker", RoleBackbone.String(): "backbone", Role(0).String(): "unknown role",
		Exact.String(): "exact", Close.String(): "close", Class(9).String(): "unknown class",
		NotHeld.String(): "not_held", Broken.String(): "broken", Code(99).String(): "fault 99",
		Stopping.String(): "stopping", Moving.String(): "moving", Unsigned.String(): "unsigned", Reason(9).String(): "reason 9",
		Hash{}.String(): "none", hashOf(0xab).String(): "abababababababab",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
