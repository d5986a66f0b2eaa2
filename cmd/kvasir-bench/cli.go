package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"kvasir/bench"
	"kvasir/kernels/quant"
)

// cli is the grammar of the command line.
type cli struct {
	Batch   number   `help:"Largest batch; 1, 2, 4 … up to it are measured (default 512, with --quick 64)." placeholder:"N"`
	Only    numbers  `help:"These batches alone, in place of 1, 2, 4 … (dispatch, expert)." placeholder:"N,N"`
	Preset  string   `help:"Dimensions of a model by one word: qwen3.5-122b, qwen3-30b or tiny." placeholder:"NAME"`
	Quick   bool     `help:"A small layer and small batches: done within 15 s. Of the gate its counters."`
	JSON    bool     `name:"json" help:"Print one JSON object; docs/bench-json.md describes it."`
	Judge   bool     `help:"Fail where a bar is missed."`
	Repeat  number   `help:"Rounds of every batch, pairs of every point (default: as many as --budget allows)." placeholder:"N"`
	Budget  duration `help:"Time for the whole run (default 1m50s, kernels 2m30s, model 4m, wire 1m, with --quick 10s)." placeholder:"TIME"`
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

	Model     string  `help:"Model file (model). Default: one with random weights is made, as --like says." short:"m" placeholder:"FILE" group:"model"`
	Like      string  `help:"Dimensions of the model that is made: those of kvasir model synth --like (default anchor)." placeholder:"NAME" group:"model"`
	Sequences numbers `help:"Sequences that decode together, a point for each (default 1,8,64,256,512; none: 0)." placeholder:"N,N" group:"model"`
	Prompt    number  `help:"Tokens of each before those that are counted (default 16)." placeholder:"N" group:"model"`
	Tokens    number  `help:"Tokens of each that are counted (default 16)." placeholder:"N" group:"model"`
	Prefill   number  `help:"Tokens of the prompt that is read in one go (default 512; none: 0)." placeholder:"N" group:"model"`

	Update    bool   `help:"Write what was measured as the new baselines; needs --why." group:"gate"`
	Why       string `help:"Why the baselines change; it is written beside them." placeholder:"TEXT" group:"gate"`
	Baselines string `help:"Folder of baselines (default: those built in; with --update bench/baselines)." placeholder:"DIR" group:"gate"`

	Usage helpFlag `name:"help" help:"Print help." short:"h"`

	Scenario string `arg:"" optional:"" default:"dispatch" help:"What to measure: dispatch, expert, kernels, model, wire, gate. list names them."`
}

// Help is printed by kvasir-bench --help.
func (cli) Help() string {
	return `The layer has the dimensions of Qwen3.5-122B-A10B and random weights. dispatch computes every batch here, then by workers behind a gateway and a hub at 0 ms, then at each --rtt, in turns; the largest batch also with several dispatches under way. Every answer is compared with the local one, bit for bit. expert is the same without a network. kernels computes here alone, beside the peak of int8 and the rate of memory. model runs a whole model beside them. wire moves bytes over the path between worker and backbone, beside bare TCP. gate counts and compares with baselines, and fails where something is worse than it was.

Every flag has an environment variable: KVASIR_BATCH is that of --batch. KVASIR_KERNEL chooses the kernels.

Examples:

    kvasir-bench --batch 512
    kvasir-bench --quick --rtt 80ms
    kvasir-bench --worker stub:gpu --rtt 13ms,50ms,80ms --up 1G --down 1G --only 1,512
    kvasir-bench expert --preset qwen3-30b --quant Q5_K
    kvasir-bench kernels
    kvasir-bench model -m model.gguf --sequences 1,64
    kvasir-bench --json dispatch > figures.json
    kvasir-bench gate
    kvasir-bench gate --update --why "answers are packed tighter"
    kvasir-bench list`
}

// foreign names the flags that say nothing to a scenario. On the command line they are mistakes; variables
// may be meant for another run.
var foreign = map[string][]string{
	bench.DispatchName: slices.Concat(modelFlags, gateFlags),
	bench.ExpertName:   slices.Concat(pathFlags, modelFlags, gateFlags),
	bench.KernelsName:  slices.Concat(pathFlags, modelFlags, gateFlags, []string{"only", "quant"}),
	bench.ModelName:    slices.Concat(pathFlags, layerFlags, gateFlags),
	bench.WireName:     slices.Concat(pathFlags, layerFlags, modelFlags, gateFlags, []string{"seed", "preset"}),
	bench.GateName:     slices.Concat(pathFlags, layerFlags, modelFlags, []string{"seed", "preset", "judge", "budget"}),
}

// pathFlags are those of what lies between workers and backbone.
var pathFlags = []string{"rtt", "jitter", "up", "down", "stall", "workers", "worker", "flights"}

// layerFlags are those of one layer.
var layerFlags = []string{"batch", "only", "experts", "topk", "hidden", "ffn", "quant"}

// gateFlags are those of the gate alone.
var gateFlags = []string{"update", "why", "baselines"}

// modelFlags are those of the scenario model alone.
var modelFlags = []string{"model", "like", "sequences", "prompt", "tokens", "prefill"}

// checkForeign refuses flags of other scenarios.
func checkForeign(scenario string, path []*kong.Path) error {
	for _, p := range path {
		if p.Flag != nil && !p.Resolved && slices.Contains(foreign[scenario], p.Flag.Name) {
			if scenario == bench.ExpertName && slices.Contains(pathFlags, p.Flag.Name) {
				return usagef("--%s is not for expert, which has no network; use dispatch", p.Flag.Name)
			}
			return usagef("--%s is not for %s", p.Flag.Name, scenario)
		}
	}
	return nil
}

// number is a whole number of 0 or more that may be left out. Its limits are those of the setting.
type number struct {
	n     int
	given bool
}

// UnmarshalText reads a number, wherever it comes from.
func (n *number) UnmarshalText(text []byte) error {
	v, err := strconv.ParseInt(string(text), 10, 32)
	if err != nil {
		return fmt.Errorf("want a whole number, got %q", text)
	}
	n.n, n.given = int(v), true
	return nil
}

// or sets dst where the number is given.
func (n number) or(dst *int) {
	if n.given {
		*dst = n.n
	}
}

// numbers is a list of whole numbers that may be left out.
type numbers struct {
	list  []int
	given bool
}

// UnmarshalText reads numbers with commas between them; 0 alone is none.
func (n *numbers) UnmarshalText(text []byte) error {
	n.list, n.given = nil, true
	if string(text) == "0" {
		return nil
	}
	for part := range strings.SplitSeq(string(text), ",") {
		var one number
		if err := one.UnmarshalText([]byte(strings.TrimSpace(part))); err != nil {
			return err
		}
		n.list = append(n.list, one.n)
	}
	return nil
}

// duration is a time that may be left out.
type duration struct {
	d     time.Duration
	given bool
}

// UnmarshalText reads a duration, wherever it comes from.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("want a time such as 13ms or 2m, got %q", text)
	}
	d.d, d.given = v, true
	return nil
}

func (d duration) or(dst *time.Duration) {
	if d.given {
		*dst = d.d
	}
}

// durations is a list of times that may be left out; 0 alone is none.
type durations struct {
	list  []time.Duration
	given bool
}

// UnmarshalText reads times with commas between them.
func (d *durations) UnmarshalText(text []byte) error {
	d.list, d.given = nil, true
	if string(text) == "0" {
		return nil
	}
	for part := range strings.SplitSeq(string(text), ",") {
		var one duration
		if err := one.UnmarshalText([]byte(strings.TrimSpace(part))); err != nil {
			return err
		}
		d.list = append(d.list, one.d)
	}
	return nil
}

// rate, stall, worker and format are read by package bench.
type (
	rate   struct{ bench.Rate }
	stall  struct{ bench.Stall }
	worker struct{ bench.Speed }
	format struct {
		quant.Format
		given bool
	}
)

// UnmarshalText reads bits a second.
func (r *rate) UnmarshalText(text []byte) (err error) {
	r.Rate, err = bench.ParseRate(string(text))
	return err
}

// UnmarshalText reads when a path stands still.
func (s *stall) UnmarshalText(text []byte) (err error) {
	s.Stall, err = bench.ParseStall(string(text))
	return err
}

// UnmarshalText reads what workers are.
func (w *worker) UnmarshalText(text []byte) (err error) {
	w.Speed, err = bench.ParseSpeed(string(text))
	return err
}

// UnmarshalText reads the name of a format of weights.
func (f *format) UnmarshalText(text []byte) (err error) {
	f.Format, err = bench.ParseQuant(string(text))
	f.given = true
	return err
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
	d.Path = bench.Path{Jitter: c.Jitter.d, Up: c.Up.Rate, Down: c.Down.Rate, Stall: c.Stall.Stall}
	d.Worker = c.Worker.Speed
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
	g.Counters = c.Quick
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
			{Key: "path", Title: "Flags of what lies between workers and backbone:"}, {Key: "model", Title: "Flags of model:"},
			{Key: "gate", Title: "Flags of gate:"},
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
