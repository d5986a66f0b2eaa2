package main

import (
	"errors"
	"fmt"
	"io"
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
	Plot    string   `help:"Folder for plots, as SVG (dispatch, expert, decode, bars, kernels, model; of report docs/benchmarks)." placeholder:"DIR"`
	Into    string   `help:"Page that report puts figures into (default BENCHMARKS.md)." placeholder:"FILE"`
	Judge   bool     `help:"Fail where a bar is missed."`
	Repeat  number   `help:"Rounds of every batch, pairs of every point (default: as many as --budget allows)." placeholder:"N"`
	Budget  duration `help:"Time for the whole run (default 1m50s, expert and wire 1m, decode 1m40s, kernels 2m30s, model and serve 4m, audit 5m; with --quick up to 10s)." placeholder:"TIME"`
	Experts number   `help:"Experts of the layer (default 256, with --quick 16)." placeholder:"N"`
	TopK    number   `name:"topk" help:"Experts a row (default 8)." placeholder:"N"`
	Hidden  number   `help:"Values a row (default 3072, with --quick 1024)." placeholder:"N"`
	FFN     number   `name:"ffn" help:"Values between gate and down (default 1024, with --quick 256)." placeholder:"N"`
	Quant   format   `help:"Format of all weights (default Q4_K)." placeholder:"NAME"`
	Seed    seed     `help:"Of weights, rows and picks (default 1)." placeholder:"N"`

	RTT     durations `name:"rtt" help:"Emulated round trips between workers and gateway (default 13ms, of a simulated swarm 30ms; 0: none)." placeholder:"TIME,TIME" group:"path"`
	Jitter  duration  `help:"Each way is half of it shorter or longer (default none)." placeholder:"TIME" group:"path"`
	Up      rate      `help:"Bits a second from each worker, such as 100M or 1G (default no limit, of a simulated swarm 50M)." placeholder:"RATE" group:"path"`
	Down    rate      `help:"Bits a second to each worker (default no limit, of a simulated swarm 250M)." placeholder:"RATE" group:"path"`
	Stall   stall     `help:"The path stands still for a while, again and again: 1s/30s (default never)." placeholder:"FOR/EVERY" group:"path"`
	Workers number    `help:"Workers behind the gateway (default 1), or simulated (default 100)." placeholder:"N" group:"path"`
	Worker  worker    `help:"cpu: workers compute. stub:CALL+ROW: they take so long a batch and a row, such as stub:1.45ms+16us, and compute nothing. stub:gpu: as a GPU was measured (default cpu, of a simulated swarm stub:2ms+200us)." placeholder:"KIND" group:"path"`
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

	Sessions number `help:"Idle sessions (default 500, with --quick 30)." placeholder:"N" group:"relay"`

	Update    bool   `help:"Write what was measured as the new baselines; needs --why." group:"gate"`
	Why       string `help:"Why the baselines change; it is written beside them." placeholder:"TEXT" group:"gate"`
	Ratios    string `help:"These ratios alone, by the names that --json gives them." placeholder:"NAME,NAME" group:"gate"`
	Baselines string `help:"Folder of baselines (default: those built in; with --update bench/baselines)." placeholder:"DIR" group:"gate"`

	Churn    decimal  `help:"Share of the workers that leave in an hour, and come back a minute later (default 0.1)." placeholder:"X" group:"swarm"`
	Spread   decimal  `help:"How much workers differ from the middle one in speed, memory, round trip and lines: two thirds of them by a factor of up to 1 + X (default 0.5)." placeholder:"X" group:"swarm"`
	Memory   decimal  `help:"Of the middle worker, in GB (default 16)." placeholder:"GB" group:"swarm"`
	Backbone duration `help:"That the backbone takes for a layer of a micro-batch (default 4ms)." placeholder:"TIME" group:"swarm"`
	Simulate duration `help:"On the simulated clock (default 1m, with --quick 10s)." placeholder:"TIME" group:"swarm"`
	Check    bool     `help:"Run 4 workers over loopback that take as long and compute nothing, simulate the same, and compare." group:"swarm"`

	Usage helpFlag `name:"help" help:"Print help." short:"h"`

	Scenario string   `arg:"" optional:"" default:"dispatch" help:"What to measure; or list, which names it; report FILE…, which puts what --json has printed into BENCHMARKS.md; compare OLD NEW, which sets two runs beside each other."`
	Files    []string `arg:"" optional:"" help:"What --json has printed (report, compare)." placeholder:"FILE"`
}

// Help is printed by kvasir-bench --help.
func (cli) Help() string {
	var list strings.Builder
	for _, x := range bench.Scenarios() {
		fmt.Fprintf(&list, "    %-10s%s\n", x.Name, x.Text)
	}
	return `Without a scenario it is dispatch: one layer with the dimensions of Qwen3.5-122B-A10B and random weights. Every batch is computed here, by workers behind a gateway and a hub at 0 ms, and by the same at each --rtt, in turns; the largest batch also with several dispatches under way. Answers are compared with those computed here, bit for bit.

Scenarios:

` + list.String() + `
A flag that a scenario has no use for is refused. Every flag has an environment variable: KVASIR_BATCH is that of --batch. KVASIR_KERNEL chooses the kernels. Ctrl-C prints what is finished, also as JSON.

Examples:

    kvasir-bench --batch 512
    kvasir-bench --quick --rtt 80ms
    kvasir-bench --worker stub:gpu --rtt 13ms,50ms,80ms --up 1G --down 1G --only 1,512
    kvasir-bench expert --preset qwen3-30b --quant Q5_K
    kvasir-bench kernels --plot plots
    kvasir-bench decode --rtt 13ms,80ms --sequences 1,8
    kvasir-bench model -m model.gguf --sequences 1,64
    kvasir-bench serve --load 5m --judge
    kvasir-bench relay --sessions 500
    kvasir-bench swarm --workers 1000 --rtt 50ms --churn 0.5
    kvasir-bench gate --update --why "answers are packed tighter"
    kvasir-bench --json > figures.json
    kvasir-bench report figures.json
    kvasir-bench compare old.json new.json`
}

// own names the flags that say something to a scenario, beside those of every one. On the command line others
// are mistakes; variables may be meant for another run.
var own = map[string][]string{
	bench.DispatchName:  slices.Concat(pathFlags, layerFlags, common),
	bench.ExpertName:    slices.Concat(layerFlags, common),
	bench.DecodeName:    slices.Concat(pathFlags, modelFlags, common, []string{"layers"}),
	bench.BarsName:      {"judge", "plot"},
	bench.ReferenceName: {},
	bench.KernelsName:   slices.Concat(shapeFlags, common),
	bench.ModelName:     slices.Concat(modelFlags, []string{"prefill"}, common),
	bench.ServeName:     {"model", "like", "sequences", "tokens", "seed", "repeat", "budget", "judge", "load", "vanish"},
	bench.WireName:      {"repeat", "budget", "judge"},
	bench.RelayName:     {"sessions", "judge"},
	bench.SwarmName:     slices.Concat(swarmFlags, shapeFlags, []string{"seed", "preset", "judge"}),
	bench.AuditName:     slices.Concat(shapeFlags, []string{"quant", "seed", "preset", "repeat", "budget", "judge"}),
	bench.GateName:      {"update", "why", "ratios", "baselines", "repeat"},
	reportName:          {"plot", "into"},
	compareName:         {},
	listName:            {},
}

// Flags of several scenarios.
var (
	pathFlags  = []string{"rtt", "jitter", "up", "down", "stall", "workers", "worker", "flights"} // between workers and backbone
	shapeFlags = []string{"batch", "experts", "topk", "hidden", "ffn"}
	layerFlags = append([]string{"only", "quant"}, shapeFlags...)
	modelFlags = []string{"model", "like", "sequences", "prompt", "tokens"}
	common     = []string{"seed", "preset", "repeat", "budget", "judge", "plot"}
	swarmFlags = []string{
		"rtt", "up", "down", "workers", "worker", "flights", "layers", "churn", "spread", "memory", "backbone", "simulate", "check",
	}
	everywhere = []string{"quick", "json", "format", "help"}
)

// instead says what to do where a flag is not for a scenario that has something like it.
var instead = map[string]string{
	bench.ExpertName + " rtt":      "expert has no network: use dispatch",
	bench.ExpertName + " worker":   "expert has no network: use dispatch",
	bench.ExpertName + " workers":  "expert has no network: use dispatch",
	bench.DecodeName + " batch":    "--sequences says how many rows go together",
	bench.ModelName + " batch":     "--sequences says how many rows go together",
	bench.ServeName + " batch":     "--sequences says how many streams there are",
	bench.ServeName + " preset":    "--like names the dimensions of a model",
	bench.KernelsName + " quant":   "it measures Q4_K, Q5_K, Q6_K and Q8_0: use expert for another",
	bench.DispatchName + " model":  "it has one layer: use decode",
	bench.DispatchName + " layers": "it has one layer: use decode",
	bench.SwarmName + " jitter":    "its lines have none",
	bench.SwarmName + " stall":     "its lines have none",
}

// apart are pairs of flags that do not go together, and why.
var apart = []struct{ a, b, why string }{
	{"only", "batch", "--only names all batches"},
	{"model", "like", "a model file has its own dimensions"},
	{"model", "preset", "a model file has its own dimensions"},
	{"like", "preset", "both name dimensions"},
	{"json", "format", "both say how to print"},
	{"load", "sequences", "as many ask as it takes"},
	{"vanish", "sequences", "as many ask as go"},
	{"check", "workers", "it runs 4 workers"},
	{"check", "layers", "it runs 8 layers"},
	{"check", "batch", "it runs batches of 64 rows"},
	{"check", "hidden", "it runs rows of 512 values"},
	{"check", "flights", "it runs 4 micro-batches"},
	{"check", "churn", "nobody leaves"},
	{"check", "spread", "all workers are alike"},
	{"check", "backbone", "its backbone takes no time"},
	{"check", "simulate", "it simulates 20 s"},
}

// checkFlags refuses flags of other scenarios, and those that do not go together.
func checkFlags(scenario string, path []*kong.Path) error {
	flags, known := own[scenario]
	given := map[string]bool{}
	for _, p := range path {
		if p.Flag == nil || p.Resolved {
			continue
		}
		name := p.Flag.Name
		given[name] = true
		if known && !slices.Contains(everywhere, name) && !slices.Contains(flags, name) {
			if hint := instead[scenario+" "+name]; hint != "" {
				return usagef("--%s is not for %s; %s", name, scenario, hint)
			}
			return usagef("--%s is not for %s", name, scenario)
		}
	}
	for _, x := range apart {
		if given[x.a] && given[x.b] {
			return usagef("--%s and --%s do not go together: %s", x.a, x.b, x.why)
		}
	}
	return nil
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
		kong.Description("Measures what batches of rows cost, here and over a network."),
		kong.NoDefaultHelp(),
		kong.Writers(out, io.Discard),
		kong.Exit(func(int) { panic("BUG: kong must not end the process") }),
		kong.ExplicitGroups([]kong.Group{
			{Key: "path", Title: "Flags of what lies between workers and backbone:"},
			{Key: "model", Title: "Flags of model, decode and serve:"},
			{Key: "serve", Title: "Flags of serve:"},
			{Key: "relay", Title: "Flags of relay:"},
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
	return c, checkFlags(c.Scenario, parsed.Path)
}

// explain turns an error of the parser into one line that names what to do.
func explain(err error) error {
	text := err.Error()
	if flag, rest, ok := strings.Cut(text, ": expected "); ok {
		text = flag + " needs a value"
		_, got, _ := strings.Cut(rest, `but got "`)
		got, _, _ = strings.Cut(got, `"`)
		switch below, isFlag := strings.CutPrefix(got, "-"); {
		case isFlag && below != "" && strings.ContainsRune("0123456789.", rune(below[0])):
			text = fmt.Sprintf("%s %s, want 0 or more", flag, got)
		case isFlag:
			text += ", and " + got + " is a flag"
		}
	} else if arg, ok := strings.CutPrefix(text, "unexpected argument "); ok {
		text = fmt.Sprintf("%q is one argument too many", arg)
	} else if flag, _, ok := strings.Cut(text, ": bool value must be "); ok {
		text = flag + ": want true or false"
	}
	return usagef("%s", text)
}
