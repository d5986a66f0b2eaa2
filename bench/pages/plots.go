package pages

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"kvasir/bench"
)

// Plot is one picture.
type Plot struct {
	Name  string
	Title string
	plot  *plot.Plot
}

// File is the name that the picture is stored under.
func (p *Plot) File() string { return p.Name + ".svg" }

// Size of a picture.
const (
	width  = 18 * vg.Centimeter
	height = 11 * vg.Centimeter
)

// Save writes pictures to a folder, which it makes.
func Save(dir string, plots []Plot) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("plots: %w", err)
	}
	for i := range plots {
		path := filepath.Join(dir, plots[i].File())
		if err := plots[i].plot.Save(width, height, path); err != nil {
			return fmt.Errorf("plot %s: %w", path, err)
		}
	}
	return nil
}

// series is a line of a picture.
type series struct {
	name   string
	points plotter.XYs
	like   string // the series whose colour it has, with triangles for points; empty: a colour of its own
}

// newPlot returns an empty picture with named axes; a logarithmic axis has marks of 1, 2 and 5.
func newPlot(title, x, y string, logX, logY bool) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(8)
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(2)
	p.Add(plotter.NewGrid())
	if logX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, marks{}
	}
	if logY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, marks{}
	}
	return p
}

// marks of a logarithmic axis.
type marks struct{}

// Ticks implements plot.Ticker.
func (marks) Ticks(low, high float64) []plot.Tick {
	var list []plot.Tick
	many := high/low > 1e3
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for _, m := range []float64{1, 2, 5} {
			v := m * math.Pow(10, e)
			if v < low*0.999 || v > high*1.001 {
				continue
			}
			label := fmt.Sprintf("%g", v)
			if many && m != 1 {
				label = ""
			}
			list = append(list, plot.Tick{Value: v, Label: label})
		}
	}
	return list
}

// lines adds lines with points.
func lines(p *plot.Plot, list []series) error {
	colors := map[string]int{}
	for _, s := range list {
		l, points, err := plotter.NewLinePoints(s.points)
		if err != nil {
			return err
		}
		l.Width, points.Shape, points.Radius = vg.Points(1.5), draw.CircleGlyph{}, vg.Points(3)
		n, ok := colors[s.like]
		if ok {
			points.Shape, points.Radius, l.Dashes = draw.PyramidGlyph{}, vg.Points(3.5), []vg.Length{vg.Points(4), vg.Points(3)}
		} else {
			n = len(colors)
			colors[s.name] = n
		}
		l.Color, points.Color = plotutil.Color(n), plotutil.Color(n)
		p.Add(l, points)
		p.Legend.Add(s.name, l, points)
	}
	return nil
}

// plotsOf draws what the results of paths tell.
func plotsOf(scenario string, reports []*bench.Report) []Plot {
	var list []Plot
	add := func(x Plot, ok bool) {
		if ok {
			x.Name = scenario + "-" + x.Name
			list = append(list, x)
		}
	}
	if len(reports) == 1 {
		add(throughput(reports[0]))
		add(waterfall(reports[0]))
	}
	add(overhead(reports))
	return list
}

// ticks marks these values of an axis.
func ticks(values []float64) plot.ConstantTicks {
	slices.Sort(values)
	var list plot.ConstantTicks
	for _, v := range slices.Compact(values) {
		list = append(list, plot.Tick{Value: v, Label: fmt.Sprintf("%g", v)})
	}
	return list
}

// throughput is rows a second against the batch, a line for each path.
func throughput(r *bench.Report) (Plot, bool) {
	var list []series
	var batches []float64
	for i := range r.Results {
		x := &r.Results[i]
		batches = append(batches, float64(x.Batch))
		name, like := "local", ""
		if x.RTT != nil {
			name = fmt.Sprintf("%v ms", *x.RTT)
		}
		if x.Flights > 0 {
			name, like = name+", pipelined", name
		}
		k := slices.IndexFunc(list, func(s series) bool { return s.name == name })
		if k < 0 {
			list, k = append(list, series{name: name, like: like}), len(list)
		}
		list[k].points = append(list[k].points, plotter.XY{X: float64(x.Batch), Y: x.TokensPerS})
	}
	title := "Rows a second through one layer"
	if r.Settings.Scenario == bench.DecodeName {
		title = "Tokens a second through the model"
	}
	return rising("throughput", title, "rows of a batch", list, batches)
}

// together is tokens a second of a whole model against the sequences that decode together.
func together(r *bench.ModelReport) (Plot, bool) {
	s := series{name: "decode"}
	var sequences []float64
	for i := range r.Results {
		if x := &r.Results[i]; x.Kind == s.name {
			sequences = append(sequences, float64(x.Batch))
			s.points = append(s.points, plotter.XY{X: float64(x.Batch), Y: x.TokensPerS})
		}
	}
	return rising(r.Settings.Scenario+"-throughput", "Tokens a second through the model", "sequences together", []series{s}, sequences)
}

// rising is a plot of what grows with the batch; false: no line has two points.
func rising(name, title, x string, list []series, batches []float64) (Plot, bool) {
	p := newPlot(title, x, "a second", true, true)
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs = false, false, -vg.Points(6)
	p.X.Tick.Marker = ticks(batches)
	if !slices.ContainsFunc(list, func(s series) bool { return len(s.points) > 1 }) || lines(p, list) != nil {
		return Plot{}, false
	}
	p.X.Max *= math.Pow(p.X.Max/p.X.Min, 0.35) // room for the legend, right of the curves
	return Plot{name, title, p}, true
}

// overheadLeast stands for what is too small to tell, on a logarithmic axis.
const overheadLeast = 0.1

// overhead is what a round trip costs against the round trip, a line for each batch.
func overhead(reports []*bench.Report) (Plot, bool) {
	var list []series
	var rtts []float64
	for _, r := range reports {
		for i := range r.Results {
			x := &r.Results[i]
			if x.RTTOverhead == nil || x.Batch != 1 && x.Batch != 8 && x.Batch != 64 && x.Batch != 512 {
				continue
			}
			name, like := fmt.Sprintf("batch %d", x.Batch), ""
			if len(reports) > 1 {
				name += ", " + lineName(&r.Settings)
			}
			if x.Flights > 0 {
				name, like = name+", pipelined", name
			}
			k := slices.IndexFunc(list, func(s series) bool { return s.name == name })
			if k < 0 {
				list, k = append(list, series{name: name, like: like}), len(list)
			}
			rtts = append(rtts, *x.RTT)
			list[k].points = append(list[k].points, plotter.XY{X: *x.RTT, Y: max(overheadLeast, *x.RTTOverhead)})
		}
	}
	list = slices.DeleteFunc(list, func(s series) bool { return len(s.points) < 2 })
	title := "What a round trip costs"
	p := newPlot(title, "round trip, ms", "% over the time at 0 ms (0.1: or less)", false, true)
	if len(list) == 0 || lines(p, list) != nil {
		return Plot{}, false
	}
	p.X.Tick.Marker = ticks(append(rtts, 0))
	p.X.Min, p.X.Max = 0, p.X.Max*1.04 // the last mark is within the picture
	p.Y.Max *= 50                      // room for the legend
	return Plot{"overhead", title, p}, true
}

func lineName(s *bench.Settings) string {
	kind, _, _ := strings.Cut(s.Worker, ":")
	if s.Up == 0 {
		return kind
	}
	return fmt.Sprintf("%s, %vbit/s", kind, bench.Rate(s.Up))
}

// waterfall is where the time of a dispatch goes, a bar for each batch: differences of medians.
func waterfall(r *bench.Report) (Plot, bool) {
	var names []string
	var work, path, trip plotter.Values
	for i := range r.Results {
		l := &r.Results[i]
		if l.RTT != nil {
			continue
		}
		near, far := find(r, l.Batch, 0), find(r, l.Batch, r.Settings.RTT)
		if near == nil || far == nil || far == near {
			continue
		}
		names = append(names, fmt.Sprint(l.Batch))
		a, b, c := l.Ms, max(0, near.Ms-l.Ms), max(0, far.Ms-near.Ms)
		sum := (a + b + c) / 100
		work, path, trip = append(work, a/sum), append(path, b/sum), append(trip, c/sum)
	}
	if len(names) == 0 {
		return Plot{}, false
	}
	what := "dispatch"
	if r.Settings.Scenario == bench.DecodeName {
		what = "step"
	}
	title := fmt.Sprintf("Where the time of a %s at %v ms goes", what, r.Settings.RTT)
	p := newPlot(title, "rows of a batch", "% of its time, one at a time", false, false)
	var below *plotter.BarChart
	for i, s := range []struct {
		name   string
		values plotter.Values
	}{{"experts", work}, {"path at 0 ms", path}, {"round trip", trip}} {
		bar, err := plotter.NewBarChart(s.values, vg.Points(22))
		if err != nil {
			return Plot{}, false
		}
		bar.Color, bar.LineStyle.Width = plotutil.Color(i), 0
		if below != nil {
			bar.StackOn(below)
		}
		below = bar
		p.Add(bar)
		p.Legend.Add(s.name, bar)
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.6, float64(len(names))-0.4
	p.Y.Min, p.Y.Max, p.Y.Tick.Marker = 0, 130, ticks([]float64{0, 20, 40, 60, 80, 100})
	return Plot{"waterfall", title, p}, true
}

// find returns the result of a batch at a round trip, one dispatch at a time.
func find(r *bench.Report, batch int, rtt float64) *bench.Result {
	for i := range r.Results {
		if x := &r.Results[i]; x.Batch == batch && x.RTT != nil && *x.RTT == rtt && x.Flights == 0 {
			return x
		}
	}
	return nil
}

// roofline is operations a second against operations a byte of weights, below what the machine allows.
func roofline(r *bench.KernelsReport) (Plot, bool) {
	m := &r.Machine
	var list []series
	low, high := math.Inf(1), 0.0
	for i := range r.Results {
		x := &r.Results[i]
		if x.Touched == 0 || x.Weights == 0 || x.Ms == 0 || x.Kernel != r.Settings.Kernel || x.Picks == "hot" {
			continue
		}
		name := x.Quant
		if x.Picks != "uniform" {
			name += ", " + x.Picks
		}
		each := x.Gops * 1e9 * x.Ms / 1e3 / (x.Touched * float64(x.Weights))
		low, high = min(low, each), max(high, each)
		k := slices.IndexFunc(list, func(s series) bool { return s.name == name })
		if k < 0 {
			list, k = append(list, series{name: name}), len(list)
		}
		list[k].points = append(list[k].points, plotter.XY{X: each, Y: x.Gops})
	}
	if len(list) == 0 || m.Int8Peak == 0 || m.Read == 0 {
		return Plot{}, false
	}
	title := "The experts of a layer below what this machine allows"
	p := newPlot(title, "operations a byte of weights", "GOP/s", true, true)
	low, high = min(low, m.Int8Peak/m.Read)/2, max(high, m.Int8Peak/m.Read)*2
	roof := series{name: "memory, then int8 peak", points: plotter.XYs{{X: low, Y: low * m.Read}, {X: m.Int8Peak / m.Read, Y: m.Int8Peak}, {X: high, Y: m.Int8Peak}}}
	if lines(p, append([]series{roof}, list...)) != nil {
		return Plot{}, false
	}
	p.Y.Max = m.Int8Peak * 4
	return Plot{"kernels-roofline", title, p}, true
}
