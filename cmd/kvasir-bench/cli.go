package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"kvasir/bench"
)

// cli is the grammar of the command line.
type cli struct {
	Batch   number   `help:"Largest batch; 1, 2, 4 … up to it are measured (default 512, with --quick 64)." placeholder:"N"`
	RTT     duration `name:"rtt" help:"Emulated round trip between workers and gateway (default 13ms)." placeholder:"TIME"`
	Workers number   `help:"Workers behind the gateway (default 1)." placeholder:"N"`
	Quick   bool     `help:"A small layer and small batches: done within 15 s."`
	JSON    bool     `name:"json" help:"Print one JSON object; docs/bench-json.md describes it."`
	Judge   bool     `help:"Fail where a bar is missed (kernels, model, wire)."`
	Repeat  number   `help:"Rounds of every batch, pairs of every point (default: as many as --budget allows)." placeholder:"N"`
	Budget  duration `help:"Time for the whole run (default 1m50s, kernels 2m30s, model 4m, wire 1m, with --quick 10s)." placeholder:"TIME"`
	Experts number   `help:"Experts of the layer (default 256, with --quick 16)." placeholder:"N"`
	TopK    number   `name:"topk" help:"Experts a row (default 8)." placeholder:"N"`
	Hidden  number   `help:"Values a row (default 3072, with --quick 1024)." placeholder:"N"`
	FFN     number   `name:"ffn" help:"Values between gate and down (default 1024, with --quick 256)." placeholder:"N"`
	Seed    number   `help:"Of weights, rows and picks (default 1)." placeholder:"N"`

	Model     string  `help:"Model file (model). Default: one with random weights is made, as --like says." short:"m" placeholder:"FILE" group:"model"`
	Like      string  `help:"Dimensions of the model that is made: those of kvasir model synth --like (default anchor)." placeholder:"NAME" group:"model"`
	Sequences numbers `help:"Sequences that decode together, a point for each (default 1,8,64,256,512; none: 0)." placeholder:"N,N" group:"model"`
	Prompt    number  `help:"Tokens of each before those that are counted (default 16)." placeholder:"N" group:"model"`
	Tokens    number  `help:"Tokens of each that are counted (default 16)." placeholder:"N" group:"model"`
	Prefill   number  `help:"Tokens of the prompt that is read in one go (default 512; none: 0)." placeholder:"N" group:"model"`

	Usage helpFlag `name:"help" help:"Print help." short:"h"`

	Scenario string `arg:"" optional:"" default:"dispatch" help:"What to measure, or list: dispatch, kernels, model, wire."`
}

// Help is printed by kvasir-bench --help.
func (cli) Help() string {
	return `The layer has the dimensions of Qwen3.5-122B-A10B and random weights. dispatch computes every batch here, then by workers behind a gateway and a hub at 0 ms, then at --rtt, in turns; every answer is compared with the local one, bit for bit. kernels computes here alone, beside the peak of int8 and the rate of memory. model runs a whole model beside them. wire moves bytes over the path between worker and backbone, beside bare TCP.

Every flag has an environment variable: KVASIR_BATCH is that of --batch. KVASIR_KERNEL chooses the kernels.

Examples:

    kvasir-bench --batch 512
    kvasir-bench --quick --rtt 80ms
    kvasir-bench kernels
    kvasir-bench model -m model.gguf --sequences 1,64
    kvasir-bench --json dispatch > figures.json
    kvasir-bench list`
}

// foreign names the flags that say nothing to a scenario. On the command line they are mistakes; variables
// may be meant for another run.
var foreign = map[string][]string{
	bench.DispatchName: append([]string{"judge"}, modelFlags...),
	bench.KernelsName:  append([]string{"rtt", "workers"}, modelFlags...),
	bench.ModelName:    {"rtt", "workers", "batch", "experts", "topk", "hidden", "ffn"},
	bench.WireName:     append([]string{"rtt", "workers", "batch", "experts", "topk", "hidden", "ffn", "seed"}, modelFlags...),
}

// modelFlags are those of the scenario model alone.
var modelFlags = []string{"model", "like", "sequences", "prompt", "tokens", "prefill"}

// checkForeign refuses flags of other scenarios.
func checkForeign(scenario string, path []*kong.Path) error {
	for _, p := range path {
		if p.Flag != nil && !p.Resolved && slices.Contains(foreign[scenario], p.Flag.Name) {
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

// dispatch makes settings of flags.
func (c *cli) dispatch() bench.Dispatch {
	d := bench.DefaultDispatch()
	if c.Quick {
		d = bench.QuickDispatch()
	}
	c.Batch.or(&d.Batch)
	c.RTT.or(&d.RTT)
	c.Workers.or(&d.Workers)
	c.Repeat.or(&d.Repeat)
	c.Budget.or(&d.Budget)
	c.Experts.or(&d.Experts)
	c.TopK.or(&d.TopK)
	c.Hidden.or(&d.Hidden)
	c.FFN.or(&d.FFN)
	if c.Seed.given {
		d.Seed = uint64(c.Seed.n)
	}
	return d
}

// kernels makes settings of flags.
func (c *cli) kernels() bench.Kernels {
	k := bench.DefaultKernels()
	if c.Quick {
		k = bench.QuickKernels()
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
	return k
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

// model makes settings of flags.
func (c *cli) model() bench.Model {
	m := bench.DefaultModel()
	if c.Quick {
		m = bench.QuickModel()
	}
	m.Path = c.Model
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
	return m
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
		kong.ExplicitGroups([]kong.Group{{Key: "model", Title: "Flags of model:"}}),
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
