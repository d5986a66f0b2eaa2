package ledger

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
	"time"

	"kvasir/wire/seal"
)

func sample() Report {
	return Report{
		Session:  SessionID{0: 0x11, 15: 0x22},
		Sequence: 2,
		Before:   Hash{0: 0x33, 31: 0x44},
		Worker:   seal.PublicKey{0: 0x55, 31: 0x66},
		Backbone: seal.PublicKey{0: 0x77, 31: 0x88},
		Time:     time.UnixMilli(0x0102030405).UTC(),
		Model:    Hash{0: 0x99, 31: 0xaa},
		Profile:  Hash{0: 0xbb, 31: 0xcc},
		Traffic:  Traffic{0x1234, 0x5678},
		Audit:    Audit{Checked: 3, Wrong: 1, Unchecked: 2, Holds: 1, Mode: Probation, Evidence: Hash{0: 0xdd, 31: 0xee}},
		Hidden:   3072,
		Picks:    []LayerPicks{{Layer: 0, Picks: 104}, {Layer: 47, Picks: 0x010203}},
	}
}

func TestReportHasGoldenBytes(t *testing.T) {
	const golden = `
		02
		11 00 00 00 00 00 00 00 00 00 00 00 00 00 00 22
		00 00 00 00 00 00 00 02
		33 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 44
		55 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 66
		77 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 88
		00 00 00 01 02 03 04 05
		99 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 aa
		bb 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 cc
		00 00 00 00 00 00 12 34 00 00 00 00 00 00 56 78
		00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 01
		00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 01
		02
		dd 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ee
		00 00 0c 00
		00 02
		00 00 00 00 00 00 00 00 00 68
		00 2f 00 00 00 00 00 01 02 03`
	want, err := hex.DecodeString(strings.Join(strings.Fields(golden), ""))
	must(t, err)
	r := sample()
	must(t, r.Check())
	if got := r.append(nil); !bytes.Equal(got, want) {
		t.Fatalf("got  % x\nwant % x", got, want)
	}
	back, err := Parse(append(want, make([]byte, ed25519.SignatureSize)...))
	must(t, err)
	if !reflect.DeepEqual(back, r) {
		t.Fatalf("got  %+v\nwant %+v", back, r)
	}
	hash := HashOf(append(want, make([]byte, ed25519.SignatureSize)...))
	if got := hex.EncodeToString(hash[:4]); got != "827d6a83" {
		t.Fatalf("hash begins with %s", got)
	}
}

func TestReportIsSignedInItsDomain(t *testing.T) {
	key := seal.NewKey()
	signed, err := sample().Append([]byte("x"), key)
	must(t, err)
	signed = signed[1:]
	cut := len(signed) - ed25519.SignatureSize
	public := key.Public()
	if !ed25519.Verify(public[:], append([]byte("kvasir report 2\x00"), signed[:cut]...), signed[cut:]) {
		t.Fatal("signature is of something else")
	}
	r, err := Verify(signed)
	must(t, err)
	if r.Backbone != public {
		t.Fatal("report names another backbone")
	}
	for i := range signed { // no byte may be changed
		signed[i] ^= 1
		if _, err := Verify(signed); err == nil {
			t.Fatalf("byte %d changed, and nobody saw it", i)
		}
		signed[i] ^= 1
	}
}

func TestReportIsRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Report)
		want   error
	}{
		{"no sequence", func(r *Report) { r.Sequence = 0 }, ErrBadReport},
		{"negative sequence", func(r *Report) { r.Sequence = -1 }, ErrBadReport},
		{"first with one before it", func(r *Report) { r.Sequence = 1 }, ErrBadReport},
		{"no worker", func(r *Report) { r.Worker = seal.PublicKey{} }, ErrBadReport},
		{"no backbone", func(r *Report) { r.Backbone = seal.PublicKey{} }, ErrBadReport},
		{"no time", func(r *Report) { r.Time = time.UnixMilli(0) }, ErrBadReport},
		{"time beyond all", func(r *Report) { r.Time = time.UnixMilli(maxMillis) }, ErrBadReport},
		{"no hidden", func(r *Report) { r.Hidden = 0 }, ErrBadReport},
		{"large hidden", func(r *Report) { r.Hidden = MaxHidden + 1 }, ErrBadReport},
		{"layers out of order", func(r *Report) { r.Picks[0].Layer = 48 }, ErrBadReport},
		{"layer twice", func(r *Report) { r.Picks[0].Layer = 47 }, ErrBadReport},
		{"layer too high", func(r *Report) { r.Picks[1].Layer = MaxLayers }, ErrBadReport},
		{"layer without picks", func(r *Report) { r.Picks[0].Picks = 0 }, ErrBadReport},
		{"negative picks", func(r *Report) { r.Picks[0].Picks = -5 }, ErrBadReport},
		{"huge picks", func(r *Report) { r.Picks[0].Picks = 1 << 62 }, ErrOverflow},
		{"too much output", func(r *Report) { r.Picks[0].Picks = MaxOutput / (3072 * 4) }, ErrOverflow},
		{"negative bytes", func(r *Report) { r.ToWorker = -1 }, ErrBadReport},
		{"no mode", func(r *Report) { r.Mode = 0 }, ErrBadReport},
		{"unknown mode", func(r *Report) { r.Mode = 4 }, ErrBadReport},
		{"more wrong than checked", func(r *Report) { r.Wrong = 4 }, ErrBadReport},
		{"negative rows", func(r *Report) { r.Unchecked = -1 }, ErrBadReport},
		{"wrong without evidence", func(r *Report) { r.Evidence = Hash{} }, ErrBadReport},
		{"evidence without wrong", func(r *Report) { r.Wrong = 0 }, ErrBadReport},
		{"holds before it is", func(r *Report) { r.Holds = 3 }, ErrBadReport},
		{"holds negative", func(r *Report) { r.Holds = -1 }, ErrBadReport},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := sample()
			c.change(&r)
			wantError(t, r.Check(), c.want)
			_, err := Parse(append(r.append(nil), make([]byte, ed25519.SignatureSize)...))
			wantError(t, err, c.want)
		})
	}
	whole := append(sampleBytes(), make([]byte, ed25519.SignatureSize)...)
	for n := range whole {
		if _, err := Parse(whole[:n]); err == nil {
			t.Fatalf("cut to %d bytes and taken", n)
		}
	}
	_, err := Parse(append(whole, 0))
	wantError(t, err, ErrBadReport)
	whole[0] = 1
	_, err = Parse(whole)
	wantError(t, err, ErrBadReport)
}

// What is of class close has a version of its own, which says so under the signature; what is of class exact has the
// bytes that it always had.
func TestReportSaysItsClass(t *testing.T) {
	key := seal.NewKey()
	r := sample()
	r.Backbone = key.Public()
	exact, err := r.Append(nil, key)
	must(t, err)
	r.Close = true
	near, err := r.Append(nil, key)
	must(t, err)
	mode := bytes.Index(exact, []byte{2, 0xdd})
	want := append(append(append([]byte{3}, exact[1:mode+1]...), 2), exact[mode+1:len(exact)-ed25519.SignatureSize]...)
	if got := near[:len(near)-ed25519.SignatureSize]; !bytes.Equal(got, want) {
		t.Fatalf("got  % x\nwant % x", got, want)
	}
	if !ed25519.Verify(r.Backbone[:], append([]byte("kvasir report 3\x00"), want...), near[len(want):]) {
		t.Fatal("signature is of something else")
	}
	back, err := Verify(near)
	must(t, err)
	if !reflect.DeepEqual(back, r) || back.Class() != "close" {
		t.Fatalf("got  %+v\nwant %+v", back, r)
	}
	back, err = Verify(exact)
	must(t, err)
	if back.Close || back.Class() != "exact" {
		t.Fatalf("class %q, want exact", back.Class())
	}
	for i := range near { // no byte may be changed, nor the class
		near[i] ^= 1
		if _, err := Verify(near); err == nil {
			t.Fatalf("byte %d changed, and nobody saw it", i)
		}
		near[i] ^= 1
	}
	near[mode+1] = 1 // exact, which has another form
	_, err = Parse(near)
	wantError(t, err, ErrBadReport)
	unchecked := Audit{Mode: Unverified}
	if got := unchecked.Class(); got != "" {
		t.Errorf("nobody compares, and the class is %q", got)
	}
}

func sampleBytes() []byte {
	r := sample()
	return r.append(nil)
}

func TestLongestReportIsMaxReport(t *testing.T) {
	r := sample()
	r.Picks, r.Close = nil, true
	for l := range MaxLayers {
		r.Picks = append(r.Picks, LayerPicks{l, 1})
	}
	signed, err := r.Append(nil, seal.NewKey())
	must(t, err)
	if len(signed) != MaxReport || len(signed) > seal.MaxChunk {
		t.Fatalf("%d bytes, want %d, at most %d", len(signed), MaxReport, seal.MaxChunk)
	}
	_, err = Verify(signed)
	must(t, err)
}

func FuzzParse(f *testing.F) {
	f.Add(append(sampleBytes(), make([]byte, ed25519.SignatureSize)...))
	near := sample()
	near.Close = true
	f.Add(append(near.append(nil), make([]byte, ed25519.SignatureSize)...))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, src []byte) {
		r, err := Parse(src)
		if err != nil {
			return
		}
		cut := len(src) - ed25519.SignatureSize
		if got := r.append(nil); !bytes.Equal(got, src[:cut]) {
			t.Fatalf("got  % x\nwant % x", got, src[:cut])
		}
	})
}

func TestSessionIDIsText(t *testing.T) {
	id := SessionID{1, 2, 0xff}
	text, err := id.MarshalText()
	must(t, err)
	var back SessionID
	must(t, back.UnmarshalText(text))
	if back != id || string(text) != "0102ff00000000000000000000000000" {
		t.Fatalf("%s, %v", text, back)
	}
	for _, bad := range []string{"", "01", strings.Repeat("z", 32), strings.Repeat("0", 33)} {
		if _, err := ParseSessionID(bad); err == nil {
			t.Errorf("%q taken", bad)
		}
	}
}

// nothing is news of no rows.
func nothing(int64) (Traffic, Audit) { return Traffic{3, 7}, Audit{Mode: Unverified} }

func TestReporterMakesAChain(t *testing.T) {
	r := newSwarm(t, 1).reporter(1, 0)
	if signed, err := r.Report(epoch, false, nothing); signed != nil || err != nil {
		t.Fatalf("said %x, %v before anything was done", signed, err)
	}
	must(t, r.Count(5, 8))
	must(t, r.Count(2, 8))
	must(t, r.Count(5, 8))
	first, err := r.Report(epoch.Add(time.Microsecond), false, nothing)
	must(t, err)
	must(t, r.Count(2, 1)) // while nobody has confirmed the first
	again, err := r.Report(epoch.Add(time.Hour), false, nothing)
	must(t, err)
	if !bytes.Equal(first, again) {
		t.Fatal("the same report came out otherwise")
	}
	r.Done(7) // of nothing
	r.Done(1)
	second, err := r.Report(epoch.Add(time.Hour), false, nothing)
	must(t, err)

	one, err := Verify(first)
	must(t, err)
	two, err := Verify(second)
	must(t, err)
	if want := []LayerPicks{{2, 8}, {5, 16}}; !reflect.DeepEqual(one.Picks, want) {
		t.Errorf("first has %v, want %v", one.Picks, want)
	}
	if want := []LayerPicks{{2, 1}}; !reflect.DeepEqual(two.Picks, want) || !two.Time.Equal(epoch.Add(time.Hour)) {
		t.Errorf("second has %v at %v", two.Picks, two.Time)
	}
	if one.Model != (Hash{1}) || one.Profile != (Hash{2}) || one.ToBackbone != 7 {
		t.Errorf("first is %+v", one)
	}
	must(t, one.follows(0, nil))
	must(t, two.follows(1, first))
	wantError(t, two.follows(0, nil), ErrGap)
	wantError(t, two.follows(1, second), ErrFork)
	r.Done(2)
	third, err := r.Report(epoch, true, func(sequence int64) (Traffic, Audit) {
		return Traffic{}, Audit{Mode: Sampled, Holds: sequence - 1}
	})
	must(t, err)
	three, err := Verify(third)
	must(t, err)
	if three.Holds != 2 || len(three.Picks) != 0 {
		t.Errorf("third, about checking alone, is %+v", three)
	}
	r.Done(3)
	must(t, r.Count(0, 1))
	back, err := r.Report(epoch, false, nothing)
	must(t, err)
	four, err := Verify(back)
	must(t, err)
	wantError(t, four.follows(3, third), ErrBadReport) // what held does not hold any more

	for _, c := range []struct {
		layer int
		picks int64
	}{{-1, 1}, {MaxLayers, 1}, {0, -1}} {
		wantError(t, r.Count(c.layer, c.picks), ErrBadReport)
	}
}

func TestReporterCountsNoMoreThanAReportHolds(t *testing.T) {
	r := newSwarm(t, 1).reporter(1, 0)
	most := int64(MaxOutput / (3072 * BytesPerValue))
	must(t, r.Count(0, most-1))
	wantError(t, r.Count(1, 2), ErrOverflow)
	must(t, r.Count(1, 1))
	wantError(t, r.Count(0, 1), ErrOverflow)
	signed, err := r.Report(epoch, false, nothing)
	must(t, err)
	_, err = Verify(signed)
	must(t, err)
	must(t, r.Count(0, 1))
}
