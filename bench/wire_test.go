package bench_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"kvasir/bench"
)

// tinyWire moves a few chunks.
func tinyWire() bench.Wire {
	w := bench.QuickWire()
	w.Bytes, w.Rounds = 100_001, 2
	return w
}

func TestWireMeasuresEveryWayInTurns(t *testing.T) {
	var begun bool
	var rows int
	r, err := tinyWire().Run(t.Context(), bench.Observer[bench.WireReport, bench.WireResult]{
		Begin: func(*bench.WireReport) { begun = true },
		Row:   func(bench.WireResult) { rows++ },
	})
	if err != nil || !begun || rows != len(r.Results) {
		t.Fatalf("%v, begun %v, %d rows of %d", err, begun, rows, len(r.Results))
	}
	paths := map[string]int{}
	for _, x := range r.Results {
		if x.GBps <= 0 || x.Rounds != 2 || (x.XVs == 0) != (paths[x.Path] == 0) {
			t.Errorf("%+v: want a rate, 2 rounds, and what ours is compared with behind it", x)
		}
		paths[x.Path]++
	}
	if len(paths) != 6 || paths["frames"] != 3 || paths["small frames"] != 3 || paths["1 MiB messages"] != 3 ||
		paths["sealed"] != 2 || paths["gateway, plain"] != 2 || paths["gateway, TLS"] != 2 {
		t.Errorf("paths %v", paths)
	}
	for _, v := range r.Bars {
		if v.Verdict != "too few pairs" {
			t.Errorf("%+v of 2 rounds", v)
		}
	}
	for _, line := range append(r.Words(), r.Remarks()...) {
		for part := range strings.Lines(bench.Wrap(line)) {
			if len([]rune(part)) > bench.Columns+1 {
				t.Errorf("a line of %d columns: %q", len([]rune(part)), part)
			}
		}
	}
}

func TestWireStopsWithItsContext(t *testing.T) {
	w := bench.DefaultWire()
	ctx, stop := context.WithCancel(t.Context())
	r, err := w.Run(ctx, bench.Observer[bench.WireReport, bench.WireResult]{Progress: func(float64, string) { stop() }})
	if !errors.Is(err, context.Canceled) || !r.Empty() {
		t.Errorf("%v with %d results, want Canceled and none", err, len(r.Results))
	}
}

func TestWireRefusesSettings(t *testing.T) {
	for name, w := range map[string]bench.Wire{
		"--repeat": {Bytes: 1, Rounds: -1}, "--budget": {Bytes: 1},
	} {
		if err := w.Check(); !errors.Is(err, bench.ErrSettings) || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v, want ErrSettings that names %s", w, err, name)
		}
	}
}
