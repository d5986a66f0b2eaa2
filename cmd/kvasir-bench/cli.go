package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"kvasir/bench"
)

// cli is the grammar of the command line.
type cli struct {
	Batch   number   `help:"Largest batch; 1, 2, 4 … up to it are measured (default 512, with --quick 64)." placeholder:"N"`
	Only    numbers  `help:"These batches alone, in place of 1, 2, 4 … (dispatch, expert)." placeholder:"N,N"`
	Preset  string   `help:"Dimensions of a model by one word: qwen3.5-122b, qwen3-30b or tiny." placeholder:"NAME"`
	Quick   bool     `help:"A small layer and small batches: done within 15 s. Of the gate its counters."`
	JSON    bool     `name:"json" help:"Print one JSON object; docs/bench-json.md describes it."`
	Format  string   `help:"How to print: table, or go, the Go benchmark format, which benchstat reads." enum:"table,go" default:"table"`
	Plot    string   `help:"Folder for plots of what was measured, as SVG; of report docs/benchmarks." placeholder:"DIR"`
	Into    string   `help:"Page that report puts figures into (default BENCHMARKS.md)." placeholder:"FILE"`
	Judge   bool     `help:"Fail where a bar is missed."`
	Repeat  number   `help:"Rounds of every batch, pairs of every point (default: as many as --budget allows)." placeholder:"N"`
	Budget  duration `help:"Time for the whole run (default 1m50s, kernels 2m30s, model and serve 4m, wire 1m, with --quick 10s)." placeholder:"TIME"`
	Experts number   `help:"Experts of the layer (default 256, with --quick 16)." placeholder:"N"`
	TopK    number   `name:"topk" help:"Experts a row (default 8)." placeholder:"N"`
	Hidden  number   `help:"Values a row (default 3072, with --quick 1024)." placeholder:"N"`
	FFN     number   `name:"ffn" help:"Values between gate and down (default 1024, with --quick 256)." placeholder:"N"`
	Quant   format   `help:"Format of all weights (default Q4_K)." placeholder:"NAME"`
	Seed    number   `help:"Of weights, rows and picks (default 1)." placeholder:"N"`

	RTT     durations `name:"rtt" help:"Emulated round trips between workers and gateway (default 13ms; 0: none)." placeholder:"TIME,TIME" group:"path"`
	Jitter  duration  `help:"Each way is half of it shorter or longer (default none)." placeholder:"TIME" group:"path"`
	Up      rate      `help:"Bits a second from each worker, such as 100M or 1G (default no limit)." placeholder:"RATE" group:"path"`
	Down    rate      `help:"Bits a second to each worker (default no limit)." placeholder:"RATE" group:"path"`
	Stall   stall     `help:"The path stands still for a while, again and again: 1s/30s (default never)." placeholder:"FOR/EVERY" group:"path"`
	Workers number    `help:"Workers behind the gateway (default 1)." placeholder:"N" group:"path"`
	Worker  worker    `help:"cpu: workers compute. stub:CALL+ROW: they take so long a batch and a row, such as stub:1.45ms+16us, and compute nothing. stub:gpu: as a GPU was measured (default cpu)." placeholder:"KIND" group:"path"`
	Flights number    `help:"Dispatches under way where they overlap (default as many as hide the way)." placeholder:"N" group:"path"`

	Layers    number  `help:"Layers whose experts are on workers (decode; default all), or that a model has (swarm; default 48)." placeholder:"N" group:"model"`
	Model     string  `help:"Model file. Default: one with random weights is made, as --like says." short:"m" placeholder:"FILE" group:"model"`
	Like      string  `help:"Dimensions of the model that is made: those of kvasir model synth --like (default anchor)." placeholder:"NAME" group:"model"`
	Sequences numbers `help:"Sequences that decode together, a point for each (default 1,8,64,256,512, decode 1,8,64, serve 64,256; none: 0)." placeholder:"N,N" group:"model"`
	Prompt    number  `help:"Tokens of each before those that are counted (default 16, decode 4)." placeholder:"N" group:"model"`
	Tokens    number  `help:"Tokens of each that are counted (default 16, serve 32)." placeholder:"N" group:"model"`
	Prefill   number  `help:"Tokens of the prompt that is read in one go (default 512; none: 0)." placeholder:"N" group:"model"`

	Load   duration `help:"Ask three times of what can be answered, for so long (5m; a form of seconds: 10s)." placeholder:"TIME" group:"serve"`
	Vanish number   `help:"So many clients go in the middle of their streams (1000)." placeholder:"N" group:"serve"`

	Sessions number `help:"Idle sessions (relay; default 500, with --quick 30)." placeholder:"N"`

	Update    bool   `help:"Write what was measured as the new baselines; needs --why." group:"gate"`
	Why       string `help:"Why the baselines change; it is written beside them." placeholder:"TEXT" group:"gate"`
	Ratios    string `help:"These ratios alone, by the names that --json gives them." placeholder:"NAME,NAME" group:"gate"`
	Baselines string `help:"Folder of baselines (default: those built in; with --update bench/baselines)." placeholder:"DIR" group:"gate"`

	simulated

	Usage helpFlag `name:"help" help:"Print help." short:"h"`

	Scenario string   `arg:"" optional:"" default:"dispatch" help:"What to measure: dispatch, expert, decode, bars, reference, kernels, model, serve, wire, relay, swarm, audit, gate; list names them. report FILE… makes BENCHMARKS.md of what --json has printed; compare OLD NEW sets two runs beside each other."`
	Files    []string `arg:"" optional:"" help:"What --json has printed (report, compare)." placeholder:"FILE"`
}

// Help is printed by kvasir-bench --help.
func (cli) Help() string {
	return `The layer has the dimensions of Qwen3.5-122B-A10B and random weights. dispatch computes every batch here, then by workers behind a gateway and a hub at 0 ms, then at each --rtt, in turns; the largest batch also with several dispatches under way. Answers are compared with the local ones, bit for bit; of those with others under way a thirty-second of the rows in turn, the first and the last whole. expert is the same without a network. kernels computes here alone, beside the peak of int8 and the rate of memory. model runs a whole model beside them, and decode has its experts on workers. wire moves bytes over the path between worker and backbone, beside bare TCP. relay keeps many sessions on it, and restarts the hub under them. swarm simulates swarms of up to 10,000 workers. audit computes with and without answers being checked. gate counts and compares with baselines, and fails where something is worse than it was.

Every flag has an environment variable: KVASIR_BATCH is that of --batch. KVASIR_KERNEL chooses the kernels.

Examples:

    kvasir-bench --batch 512
    kvasir-bench --quick --rtt 80ms
    kvasir-bench --worker stub:gpu --rtt 13ms,50ms,80ms --up 1G --down 1G --only 1,512
    kvasir-bench bars --judge
    kvasir-bench expert --preset qwen3-30b --quant Q5_K
    kvasir-bench kernels
    kvasir-bench decode --rtt 13ms,80ms --sequences 1,8
    kvasir-bench model -m model.gguf --sequences 1,64
    kvasir-bench serve --judge
    kvasir-bench serve --load 5m
    kvasir-bench relay --sessions 500 --judge
    kvasir-bench --json dispatch > figures.json
    kvasir-bench swarm --workers 1000 --rtt 50ms --churn 0.5
    kvasir-bench gate
    kvasir-bench gate --update --why "answers are packed tighter"
    kvasir-bench report figures.json
    kvasir-bench compare old.json new.json
    kvasir-bench list`
}

// own names the flags that say something to a scenario, beside those of every one. On the command line others
// are mistakes; variables may be meant for another run.
var own = map[string][]string{
	bench.DispatchName:  slices.Concat(pathFlags, layerFlags, common),
	bench.ExpertName:    slices.Concat(layerFlags, common),
	bench.DecodeName:    slices.Concat(pathFlags, modelFlags, common, []string{"layers"}),
	bench.BarsName:      {"judge", "plot"},
	bench.ReferenceName: {},
	reportName:          {"plot", "into"},
	compareName:         {},
	bench.KernelsName:   slices.Concat([]string{"batch", "experts", "topk", "hidden", "ffn"}, common),
	bench.ModelName:     slices.Concat(modelFlags, []string{"prefill"}, common),
	bench.ServeName:     {"model", "like", "sequences", "tokens", "seed", "repeat", "budget", "judge", "load", "vanish"},
	bench.WireName:      {"repeat", "budget", "judge"},
	bench.RelayName:     {"sessions", "judge"},
	bench.SwarmName:     slices.Concat(swarmFlags, []string{"batch", "experts", "topk", "hidden", "ffn", "seed", "preset", "judge"}),
	bench.AuditName:     {"batch", "experts", "topk", "hidden", "ffn", "quant", "seed", "preset", "repeat", "budget", "judge"},
	bench.GateName:      slices.Concat(gateFlags, []string{"repeat"}),
}

// pathFlags are those of what lies between workers and backbone.
var pathFlags = []string{"rtt", "jitter", "up", "down", "stall", "workers", "worker", "flights"}

// layerFlags are those of one layer.
var layerFlags = []string{"batch", "only", "experts", "topk", "hidden", "ffn", "quant"}

// gateFlags are those of the gate alone.
var gateFlags = []string{"update", "why", "ratios", "baselines"}

// modelFlags are those of a whole model.
var modelFlags = []string{"model", "like", "sequences", "prompt", "tokens"}

// common are those of most scenarios.
var common = []string{"seed", "preset", "repeat", "budget", "judge", "plot"}

// everywhere are those of every scenario.
var everywhere = []string{"quick", "json", "format", "help"}

// checkForeign refuses flags of other scenarios.
func checkForeign(scenario string, path []*kong.Path) error {
	flags, known := own[scenario]
	if !known {
		return nil // it takes any, or is no scenario
	}
	for _, p := range path {
		if p.Flag != nil && !p.Resolved && !slices.Contains(everywhere, p.Flag.Name) && !slices.Contains(flags, p.Flag.Name) {
			if scenario == bench.ExpertName && slices.Contains(pathFlags, p.Flag.Name) {
				return usagef("--%s is not for expert, which has no network; use dispatch", p.Flag.Name)
			}
			return usagef("--%s is not for %s", p.Flag.Name, scenario)
		}
	}
	return nil
}

// dispatch makes settings of flags, for a layer with or without a network.
func (c *cli) dispatch(alone bool) (bench.Dispatch, error) {
	var d bench.Dispatch
	switch {
	case alone && c.Quick:
		d = bench.QuickExpert()
	case alone:
		d = bench.DefaultExpert()
	case c.Quick:
		d = bench.QuickDispatch()
	default:
		d = bench.DefaultDispatch()
	}
	if c.Preset != "" {
		if err := d.Like(c.Preset); err != nil {
			return d, settings(err)
		}
	}
	c.layer(&d)
	if alone {
		return d, nil // what is said of a path in the environment is for another run
	}
	if c.RTT.given {
		d.RTTs = c.RTT.list
	}
	d.Path, d.Worker = c.path(), c.Worker.Speed
	c.Workers.or(&d.Workers)
	c.Flights.or(&d.Flights)
	return d, nil
}

// layer sets what every scenario of one layer has.
func (c *cli) layer(d *bench.Dispatch) {
	c.Batch.or(&d.Batch)
	if n := len(c.Only.list); n > 0 {
		d.Only, d.Batch = c.Only.list, c.Only.list[n-1]
	}
	if c.Quant.given {
		d.Quant = c.Quant.Format
	}
	c.Repeat.or(&d.Repeat)
	c.Budget.or(&d.Budget)
	c.Experts.or(&d.Experts)
	c.TopK.or(&d.TopK)
	c.Hidden.or(&d.Hidden)
	c.FFN.or(&d.FFN)
	if c.Seed.given {
		d.Seed = uint64(c.Seed.n)
	}
}

// kernels makes settings of flags.
func (c *cli) kernels() (bench.Kernels, error) {
	k := bench.DefaultKernels()
	if c.Quick {
		k = bench.QuickKernels()
	}
	if c.Preset != "" {
		var d bench.Dispatch
		if err := d.Like(c.Preset); err != nil {
			return k, settings(err)
		}
		k.Experts, k.TopK, k.Hidden, k.FFN = d.Experts, d.TopK, d.Hidden, d.FFN
	}
	c.Batch.or(&k.Batch)
	c.Repeat.or(&k.Pairs)
	c.Budget.or(&k.Budget)
	c.Experts.or(&k.Experts)
	c.TopK.or(&k.TopK)
	c.Hidden.or(&k.Hidden)
	c.FFN.or(&k.FFN)
	if c.Seed.given {
		k.Seed = uint64(c.Seed.n)
	}
	return k, nil
}

// wire makes settings of flags.
func (c *cli) wire() bench.Wire {
	w := bench.DefaultWire()
	if c.Quick {
		w = bench.QuickWire()
	}
	c.Repeat.or(&w.Rounds)
	c.Budget.or(&w.Budget)
	return w
}

// gate makes settings of flags.
func (c *cli) gate() (bench.Gate, error) {
	g := bench.DefaultGate()
	c.Repeat.or(&g.Rounds)
	g.Counters, g.Update = c.Quick, c.Update
	if c.Ratios != "" {
		g.Ratios = strings.Split(c.Ratios, ",")
	}
	switch {
	case c.Update && strings.TrimSpace(c.Why) == "":
		return g, usagef("--update needs --why: say what has changed, for who reads the baselines later")
	case !c.Update && c.Why != "":
		return g, usagef("--why is for --update")
	}
	if c.Baselines != "" {
		if info, err := os.Stat(c.Baselines); err != nil || !info.IsDir() {
			return g, usagef("--baselines %s: no such folder", c.Baselines)
		}
		g.Baselines = os.DirFS(c.Baselines)
	}
	return g, nil
}

// model makes settings of flags.
func (c *cli) model() (bench.Model, error) {
	m := bench.DefaultModel()
	if c.Quick {
		m = bench.QuickModel()
	}
	m.Path = c.Model
	if c.Preset != "" {
		if err := m.Preset(c.Preset); err != nil {
			return m, settings(err)
		}
	}
	if c.Like != "" {
		m.Like = c.Like
	}
	if c.Sequences.given {
		m.Sequences = c.Sequences.list
	}
	c.Prompt.or(&m.Prompt)
	c.Tokens.or(&m.Tokens)
	c.Prefill.or(&m.Prefill)
	c.Repeat.or(&m.Pairs)
	c.Budget.or(&m.Budget)
	if c.Seed.given {
		m.Seed = uint64(c.Seed.n)
	}
	return m, nil
}

// serve makes settings of flags. Under load, and for clients that vanish, the built-in model is enough.
func (c *cli) serve() bench.Serve {
	s := bench.DefaultServe()
	if c.Quick {
		s = bench.QuickServe()
	}
	c.Load.or(&s.Load)
	c.Vanish.or(&s.Vanish)
	if s.Path = c.Model; c.Like != "" || s.Load > 0 || s.Vanish > 0 {
		s.Like = c.Like
	}
	if c.Sequences.given {
		s.Sequences = c.Sequences.list
	}
	c.Tokens.or(&s.Tokens)
	c.Repeat.or(&s.Pairs)
	c.Budget.or(&s.Budget)
	if c.Seed.given {
		s.Seed = uint64(c.Seed.n)
	}
	return s
}

// decode makes settings of flags.
func (c *cli) decode() (bench.Decode, error) {
	d := bench.DefaultDecode()
	if c.Quick {
		d = bench.QuickDecode()
	}
	sequences, prompt, budget := d.Sequences, d.Prompt, d.Budget
	m, err := c.model()
	if err != nil {
		return d, err
	}
	if c.Model == "" && c.Like == "" && c.Preset == "" {
		m.Like = d.Like
	}
	d.Model = m
	d.Prefill = 0
	if !c.Sequences.given {
		d.Sequences = sequences
	}
	if !c.Prompt.given {
		d.Prompt = prompt
	}
	if !c.Budget.given {
		d.Budget = budget
	}
	c.Layers.or(&d.Layers)
	if c.RTT.given {
		d.RTTs = c.RTT.list
	}
	d.Line, d.Worker = c.path(), c.Worker.Speed
	c.Workers.or(&d.Workers)
	c.Flights.or(&d.Flights)
	return d, nil
}

// path is what lies between workers and backbone, beside the round trip.
func (c *cli) path() bench.Path {
	return bench.Path{Jitter: c.Jitter.d, Up: c.Up.Rate, Down: c.Down.Rate, Stall: c.Stall.Stall}
}

// helpFlag prints the help, whatever else is on the command line.
type helpFlag bool

// BeforeReset is called by kong before it looks at any value.
func (helpFlag) BeforeReset(ctx *kong.Context) error {
	if err := ctx.PrintUsage(false); err != nil {
		return err
	}
	return errHelp
}

var errHelp = errors.New("help was printed")

// usageError is a command line or an environment variable that is wrong.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// variable is the environment variable of a flag.
func variable(flag string) string {
	return "KVASIR_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// sink remembers the first error of a write: kong drops those of its help.
type sink struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (s *sink) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	if s.err == nil {
		s.err = err
	}
	return n, err
}

// parse reads a command line. After errHelp the help has been printed.
func parse(args []string, stdout io.Writer, getenv func(string) string) (*cli, error) {
	c := &cli{}
	out := &sink{w: stdout}
	k, err := kong.New(c,
		kong.Name("kvasir-bench"),
		kong.Description("Measures what batches of rows cost, here and over a network, and what the kernels make of this machine."),
		kong.NoDefaultHelp(),
		kong.Writers(out, io.Discard),
		kong.Exit(func(int) { panic("BUG: kong must not end the process") }),
		kong.ExplicitGroups([]kong.Group{
			{Key: "path", Title: "Flags of what lies between workers and backbone:"}, {Key: "model", Title: "Flags of model, decode and serve:"},
			{Key: "serve", Title: "Flags of serve:"},
			{Key: "gate", Title: "Flags of gate:"},
			{Key: "swarm", Title: "Flags of swarm:"},
		}),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: bench.Columns}),
		kong.Resolvers(kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, f *kong.Flag) (any, error) {
			if v := getenv(variable(f.Name)); v != "" && f.Name != "help" {
				return v, nil
			}
			return nil, nil // kong's word for: not here
		})),
	)
	if err != nil {
		return nil, fmt.Errorf("internal error: command line grammar: %w", err)
	}
	parsed, err := k.Parse(args)
	switch {
	case out.err != nil:
		return nil, fmt.Errorf("writing standard output: %w", out.err)
	case errors.Is(err, errHelp):
		return nil, errHelp
	case err != nil:
		return nil, explain(err)
	}
	if n := len(c.Files); n > 0 && c.Scenario != reportName && c.Scenario != compareName {
		return nil, usagef("%q is one argument too many", c.Files[0])
	}
	return c, checkForeign(c.Scenario, parsed.Path)
}

// explain turns an error of the parser into one line that names what to do.
func explain(err error) error {
	text := err.Error()
	if flag, rest, ok := strings.Cut(text, ": expected "); ok {
		text = flag + " needs a value"
		if _, got, _ := strings.Cut(rest, `but got "`); strings.HasPrefix(got, "-") {
			got, _, _ = strings.Cut(got, `"`)
			text += ", and " + got + " is a flag"
		}
	} else if arg, ok := strings.CutPrefix(text, "unexpected argument "); ok {
		text = fmt.Sprintf("%q is one argument too many", arg)
	} else if flag, _, ok := strings.Cut(text, ": bool value must be "); ok {
		text = flag + ": want true or false"
	}
	return usagef("%s", text)
}
