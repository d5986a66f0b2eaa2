package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"kvasir/internal/moe"
)

// smallDecode is a model that takes milliseconds.
func smallDecode() Decode {
	d := QuickDecode()
	d.Sequences, d.Prompt, d.Tokens, d.Pairs, d.Layers = []int{1, 3}, 2, 3, 1, 2
	d.RTTs, d.least = []time.Duration{time.Millisecond}, 0
	return d
}

func TestDecodeMakesTheSameTokensOnEveryWay(t *testing.T) {
	for _, speed := range []Speed{{}, {Call: 100 * time.Microsecond, Row: time.Microsecond}} {
		d := smallDecode()
		d.Worker = speed
		r, err := d.Run(t.Context(), Observer[Report, Result]{})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Results) != 2*5 || len(r.Different()) > 0 {
			t.Fatalf("%v: %d results, %v differ", speed, len(r.Results), r.Different())
		}
		for i, x := range r.Results {
			if x.Batch != []int{1, 3}[i/5] || x.Scenario != DecodeName || x.TokensPerS <= 0 || (x.kind() != local) != (x.Roofline > 0) ||
				x.piped() != (i%5 == 2 || i%5 == 4) || (x.kind() == far) != (x.RTTOverhead != nil) {
				t.Errorf("%v: result %d: %+v", speed, i, x)
			}
			// A row of 256 int8 and what is around it, on two of four layers.
			if x.kind() != local && (x.BytesOut < 260 || x.BytesOut > 1200) {
				t.Errorf("%v: %v bytes a row and layer", speed, x.BytesOut)
			}
		}
		if s := r.Settings; s.Layers != 4 || s.Remote != 2 || s.Model == "" {
			t.Errorf("settings %+v", s)
		}
		if words := r.Words(); len(words) < 3 || !strings.Contains(words[0], "2 of 4 layers away") {
			t.Errorf("words %q", words)
		}
	}
}

func TestDecodeSeesOtherTokens(t *testing.T) {
	r := &decodeRun{m: smallDecode(), fed: map[*way]*decoder{}}
	r.rig = rigLike(t, r.m.Like)
	r.lo, r.hi, r.made, r.prompts = 0, 4, make([][]int32, 1), [][]int32{{1, 2}}
	home, other := &way{x: r.rig.experts.Experts}, &way{kind: near, x: &otherBits{r.rig.experts.Experts}}
	var good, bad tally
	good.identical, bad.identical = true, true
	for _, x := range []struct {
		w *way
		t *tally
	}{{home, &good}, {other, &bad}} {
		d, err := r.decoderOf(x.w, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer d.turns.close()
		if err := r.take(t.Context(), x.w, 1, x.t); err != nil {
			t.Fatal(err)
		}
	}
	if !good.identical || bad.identical {
		t.Errorf("here the same %v; with other answers %v", good.identical, bad.identical)
	}
}

func rigLike(t *testing.T, like string) *modelRig {
	t.Helper()
	m := QuickModel()
	m.Like = like
	path, remove, err := m.file(t.Context(), func(float64, string) {})
	if err != nil {
		t.Fatal(err)
	}
	rig, err := loadModel(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rig.close(); remove() })
	return rig
}

// otherBits turns the sign of all answers.
type otherBits struct{ moe.Experts }

func (o *otherBits) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	err := o.Experts.Forward(ctx, b, out)
	for i := range out.Sum {
		out.Sum[i] = -out.Sum[i]
	}
	return err
}

func TestDecodeNamesTheFlagToChange(t *testing.T) {
	for want, spoil := range map[string]func(*Decode){
		"--layers 5, want 0 (all) to 4":       func(d *Decode) { d.Layers = 5 },
		"--workers 5 for 4 layers":            func(d *Decode) { d.Workers = 5 },
		"--workers 0":                         func(d *Decode) { d.Workers = 0 },
		"--sequences 0":                       func(d *Decode) { d.Sequences = nil },
		"--rtt -1ns":                          func(d *Decode) { d.RTTs = []time.Duration{-1} },
		"--flights 64 of --sequences 100":     func(d *Decode) { d.Flights, d.Sequences = 64, []int{100} },
		"--like: ":                            func(d *Decode) { d.Like = "gpt" },
		"use --preset tiny or --like anchor":  func(d *Decode) { d.Like = "qwen3-235b-a22b" },
		"--tokens 0, want 1 to":               func(d *Decode) { d.Tokens = 0 },
		"--prompt 0, want 1 to":               func(d *Decode) { d.Prompt = 0 },
		"--jitter 1s of a round trip of 1ms;": func(d *Decode) { d.Line.Jitter = time.Second },
	} {
		d := smallDecode()
		spoil(&d)
		_, err := d.Run(t.Context(), Observer[Report, Result]{})
		if !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		if err := d.Check(); !errors.Is(err, ErrSettings) && d.Like != "qwen3-235b-a22b" { // memory is known later
			t.Errorf("%q: %v before anything is made, want ErrSettings", want, err)
		}
	}
}
