package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
)

// away answers after a while, whoever asks beside.
type away time.Duration

func (a away) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	out.Reset(b.Rows, b.Hidden)
	return until(ctx, time.Now().Add(time.Duration(a)))
}

// TestBackboneIsOneDevice holds what streams take: alone they wait for every answer, together they use the time.
func TestBackboneIsOneDevice(t *testing.T) {
	d := small()
	row, err := d.makeRows(moe.RowQ8K)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		remote, streams int
		want            time.Duration
	}{
		{1, 1, 59 * time.Millisecond},    // 10 x 4, less the experts of one layer, and 20 away
		{1, 2, 44500 * time.Microsecond}, // they keep in step: of 89 ms the backbone rests 11
		{1, 3, 39 * time.Millisecond},    // the backbone's own
		{4, 1, 116 * time.Millisecond},   // 9 x 4 and 20 x 4
		{4, 8, 36 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := &backbone{own: 9 * time.Millisecond, home: time.Millisecond, layers: 4, remote: tt.remote}
			got, err := b.tokens(t.Context(), away(20*time.Millisecond), row, tt.streams, 4)
			if err != nil || (got-tt.want).Abs() > 2*time.Millisecond {
				t.Errorf("%d layers away, %d streams: %v a token, %v; want %v", tt.remote, tt.streams, got, err, tt.want)
			}
		})
	}
}

func TestReferenceRestatesEveryFigure(t *testing.T) {
	x := QuickReference()
	x.Layers, x.Token, x.Streams, x.Direct, x.CDN = 2, 4*time.Millisecond, 2, time.Millisecond, time.Millisecond
	d := &x.Layer
	d.Experts, d.TopK, d.Hidden, d.FFN, d.Only, d.Batch, d.Repeat, d.least = 6, 2, 512, 256, []int{1, 2}, 2, 1, 0
	r, err := x.Run(t.Context(), Observer[ReferenceReport, ReferenceResult]{})
	if err != nil {
		t.Fatal(err)
	}
	figures := ""
	for i, y := range r.Results {
		figures += y.Figure
		if (i == 0) != (y.RTT == nil) || i > 0 && (y.Ms <= 0 || y.Costs == nil || y.Sum < 4) || i == 0 && y.XVsBatch1 <= 0 {
			t.Errorf("result %d: %+v", i, y)
		}
	}
	if words := r.Words(); figures != "abbccbbcc" || len(words) != 3 || r.Settings.Kernel == "" {
		t.Errorf("figures %s, words %q", figures, words)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, err = x.Run(ctx, Observer[ReferenceReport, ReferenceResult]{Row: func(ReferenceResult) { cancel() }})
	if !errors.Is(err, context.Canceled) || len(r.Results) != 1 || r.Words() != nil {
		t.Errorf("interrupted: %v, %+v", err, r.Results)
	}
}

func TestBarsRunsAllThatBarsAreSetFor(t *testing.T) {
	judged := map[string]bool{}
	for _, d := range DefaultBars().Runs {
		if err := d.Check(); err != nil {
			t.Fatal(err)
		}
		judged[d.Worker.String()+" "+d.Path.Up.String()] = true
	}
	if len(judged) != 4 {
		t.Errorf("runs are %v", judged)
	}
	b := QuickBars()
	for i := range b.Runs {
		d := &b.Runs[i]
		d.Experts, d.TopK, d.Hidden, d.FFN, d.Only, d.Batch, d.Repeat = 6, 2, 512, 256, []int{1, 2}, 2, 1
		d.RTTs = []time.Duration{time.Millisecond}
	}
	heads := 0
	r, err := b.Run(t.Context(), Observer[Report, Result]{Begin: func(*Report) { heads++ }})
	if err != nil || heads != 4 || len(r.Runs) != 4 || len(r.Different()) > 0 || r.Machine.CPU == "" {
		t.Fatalf("%v, %d heads, %+v", err, heads, r)
	}
	if words := r.Words(); len(words) != 1 || !strings.Contains(words[0], "not for this one") {
		t.Errorf("words %q", words)
	}
}
