// Package bench measures paths that cross the floors: what a user would see, on real sockets, with the
// network in between emulated by bench/wan; and how near the kernels come to what the machine can do.
// Numbers of one package alone are in that package's own benchmarks.
//
// A scenario is a struct of settings with a Run. Dispatch is one layer of experts, in batches of growing
// size, computed here and on workers behind gateway and hub, or here alone. Decode is a whole model with its experts on workers. Kernels is the same layer here alone, beside
// the limits of the processor and of the memory. Model is a whole model, here alone. Wire is the path between
// worker and backbone without any computing, beside the barest ways that move the same bytes. Relay is many
// sessions on it. Gate compares counts and ratios with baselines. Swarm is simulated, and computes nothing.
//
// What holds for every figure:
//
//  1. It was measured by the run that prints it, and what was not measured is absent, never 0.
//  2. Ways that are compared take turns, round by round, so that a machine that slows down slows all
//     of them, and a limit is measured before and after what is compared with it; a figure is a median.
//  3. What came back is compared with what was computed here, bit for bit, every time; of answers that are counted
//     while others are under way, a part that changes, so that measuring takes less than a hundredth of the time.
//  4. An emulated delay is never counted as computing, and what the emulation really delivered is
//     measured beside it.
package bench

// About is a line of a list of scenarios.
type About struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Scenarios lists what there is to run.
func Scenarios() []About {
	return []About{
		{DispatchName, "one layer of experts in growing batches: here, and on workers behind gateway and hub"},
		{ExpertName, "the same layer here alone, without a network"},
		{BarsName, "what is asked of one remote layer: all its bars, in one run"},
		{ReferenceName, "figures that were published of remote experts, restated with their conditions"},
		{KernelsName, "the experts of a layer against the peak of int8 and the rate of memory of this machine"},
		{DecodeName, "a whole model whose experts are on workers: one micro-batch at a time, and several"},
		{ModelName, "a whole model: tokens of 1 to 512 sequences together, and a prompt of 512"},
		{ServeName, "HTTP against the same engine called directly; more than it can do; clients that vanish"},
		{RelayName, "many sessions through gateway and hub: what they cost, a restart, the death of a hop"},
		{WireName, "frames, the sealed stream and a gateway's copying against bare TCP and io.Copy"},
		{SwarmName, "simulated swarms of 10 to 10,000 workers: what they make, and what bounds them"},
		{AuditName, "a layer with and without its answers checked, in turns: what checking costs"},
		{GateName, "counts and paired ratios against baselines: fails where something is worse than before"},
	}
}

// Observer is told what happens during a run, on the goroutine of Run: R is the report, X one of its results.
// Its fields may be nil.
type Observer[R, X any] struct {
	// Begin is called once, before anything is measured: there are no results yet. Of Bars once for each run.
	Begin func(*R)
	// Progress says how much of the run is done, 0 to 1, and what is done now.
	Progress func(done float64, doing string)
	// Row is called for every result when it is final.
	Row func(X)
}

func (o Observer[R, X]) begin(r *R) {
	if o.Begin != nil {
		o.Begin(r)
	}
}

func (o Observer[R, X]) progress(done float64, doing string) {
	if o.Progress != nil {
		o.Progress(done, doing)
	}
}

func (o Observer[R, X]) row(x X) {
	if o.Row != nil {
		o.Row(x)
	}
}
