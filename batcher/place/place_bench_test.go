package place

import (
	"fmt"
	"testing"
)

// BenchmarkMake plans a model of 48 layers for 64 workers of different speeds, with counts of picks.
func BenchmarkMake(b *testing.B) {
	m := big()
	for range m.Layers {
		row := make([]float64, m.Experts)
		for e := range row {
			row[e] = 1 / float64(1+e)
		}
		m.Load = append(m.Load, row)
	}
	var ws []Worker
	for i := range 64 {
		ws = append(ws, far(fmt.Sprint(i), gib*int64(2+i%7), 1e4*float64(1+i%11)))
	}
	b.ReportAllocs()
	for b.Loop() {
		Make(m, Backbone{}, ws)
	}
}
