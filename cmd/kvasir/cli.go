package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

// cli is the grammar of the command line. Each exported field is a command or a flag; a flag's name
// is also its key in the settings file and, as KVASIR_NAME, its environment variable.
type cli struct {
	Home    filePath `help:"Folder of the settings and state. Default: the folder kvasir in the user's configuration folder." placeholder:"DIR" group:"every"`
	Config  filePath `help:"Settings file. Default: kvasir.toml in the home folder, if it is there." placeholder:"FILE" group:"every"`
	Log     logLevel `help:"Least level to log to standard error: debug, info, warn or error (default ${default})." placeholder:"LEVEL" default:"warn" group:"every"`
	Verbose bool     `help:"Print statistics also where standard error is not a terminal." short:"v" group:"every"`
	Usage   helpFlag `name:"help" help:"Print help." short:"h" group:"every"`

	Demo  demoCmd  `cmd:"" help:"Run a whole swarm on this machine and compare it with local experts."`
	Run   runCmd   `cmd:"" help:"Continue a text, or answer a question with --chat."`
	Chat  chatCmd  `cmd:"" help:"Talk with a model."`
	Batch batchCmd `cmd:"" help:"Answer files of requests."`
	swarmCommands
	Plan    planCmd    `cmd:"" help:"Say who would hold what in a swarm, and how fast it would be."`
	Trace   traceCmd   `cmd:"" help:"Show where the time of a token goes in a swarm, and who is waited for."`
	Model   modelCmd   `cmd:"" help:"Look into model files, measure them, make them."`
	Doctor  doctorCmd  `cmd:"" help:"Check this machine and this build, and say what to do."`
	Version versionCmd `cmd:"" help:"Print the version."`
	Config_ configCmd  `cmd:"" name:"config" help:"Print all settings and where each value comes from."`
}

// Help is printed by kvasir --help.
func (cli) Help() string {
	return `Examples:

    kvasir run "The capital of France is"
    kvasir doctor`
}

// jsonFlag is embedded by every command that prints a table or a result.
type jsonFlag struct {
	JSON bool `name:"json" help:"Print one JSON object."`
}

// modelCmd groups the commands on model files.
type modelCmd struct {
	Inspect inspectCmd `cmd:"" help:"Print what a model file holds and what it costs to run."`
	Profile profileCmd `cmd:"" help:"Measure a model's arithmetic profile and write it beside the file."`
	Synth   synthCmd   `cmd:"" help:"Write a model file with random weights, of any dimensions."`
}

// Help is printed by kvasir model --help.
func (modelCmd) Help() string {
	return `Example:

    kvasir model inspect model.gguf`
}

// filePath is a flag that names a file. In the settings file it is relative to that file's folder;
// there and in the environment a leading ~/ is the user's home folder.
type filePath string

// Decode takes the value as it is. Kong passes strings through JSON, which replaces bytes that are not
// UTF-8, and a file may be named so.
func (p *filePath) Decode(ctx *kong.DecodeContext) error {
	token, err := ctx.Scan.PopValue("file")
	*p = filePath(token.String())
	return err
}

// promptText is the prompt on the command line, if there is one.
type promptText struct {
	text  string
	given bool
}

// Decode takes the value as it is, so that a prompt that is not UTF-8 is noticed.
func (p *promptText) Decode(ctx *kong.DecodeContext) error {
	token, err := ctx.Scan.PopValue("text")
	p.text, p.given = token.String(), true
	return err
}

// count is a number of 1 or more.
type count int

// UnmarshalText checks a count, wherever it comes from.
func (c *count) UnmarshalText(text []byte) error {
	n, err := strconv.ParseInt(string(text), 10, 32)
	if err != nil || n < 1 {
		return fmt.Errorf("want a whole number of 1 or more, got %q", text)
	}
	*c = count(n)
	return nil
}

// logLevel is one of logLevels.
type logLevel string

var logLevels = []string{"debug", "info", "warn", "error"}

// UnmarshalText checks a level, wherever it comes from.
func (l *logLevel) UnmarshalText(text []byte) error {
	if !slices.Contains(logLevels, string(text)) {
		return fmt.Errorf("want debug, info, warn or error, got %q", text)
	}
	*l = logLevel(text)
	return nil
}

// helpFlag prints the help of the command that it stands behind, whatever else is missing there.
type helpFlag bool

// BeforeReset is called by kong before it looks at any value.
func (helpFlag) BeforeReset(ctx *kong.Context) error {
	if err := ctx.PrintUsage(false); err != nil {
		return err
	}
	return errHelp
}

var (
	errHelp      = errors.New("help was printed")
	errShortHelp = errors.New("short help was printed")
)

// description stands on top of the help.
const description = "Kvasir runs mixture-of-experts models and gets the same bits on every machine."

// flagGroups are the titles in the help of commands with many flags.
var flagGroups = []kong.Group{
	{Key: "chat", Title: "Flags of a chat:"},
	{Key: "sampling", Title: "Flags of the choice of tokens:"},
	{Key: "memory", Title: "Flags of memory:"},
	{Key: "batches", Title: "Flags of batch jobs that servers share:"},
	{Key: "swarm", Title: "Flags of a swarm:"},
	{Key: "door", Title: "Flags of who may ask:"},
	{Key: "tls", Title: "Flags of certificates:"},
	{Key: "limits", Title: "Flags of limits:"},
	{Key: "owner", Title: "Flags that leave the machine to its owner:"},
	{Key: "every", Title: "Flags of every command:"},
}

func newParser(c *cli, a *app) (*kong.Kong, error) {
	a.settings = newSettings(a.environ)
	return kong.New(c,
		kong.Name("kvasir"),
		kong.Description(description),
		kong.NoDefaultHelp(),
		kong.Writers(a.stdout, a.stderr),
		kong.Exit(func(int) { panic("BUG: kong must not end the process") }),
		kong.ExplicitGroups(flagGroups),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}),
		kong.ValueFormatter(withVariable),
		kong.WithBeforeResolve(a.settings.load),
		kong.Resolvers(a.settings),
	)
}

// withVariable adds the environment variable to the help of a flag.
func withVariable(v *kong.Value) string {
	if v.Flag == nil || !isSetting(v.Flag) {
		return v.Help
	}
	return v.Help + " [" + variable(v.Name) + "]"
}

// shortHelp is what kvasir without arguments prints.
func (a *app) shortHelp() error {
	s := a.stderr
	s.printf("%s\n\n", description)
	t := table{style: func(_, column int) style {
		if column == 0 {
			return bold
		}
		return plain
	}}
	for _, node := range a.model.Model.Children {
		t.add("  kvasir "+node.Path(), node.Help)
	}
	t.print(s)
	s.printf("\nFirst try:  kvasir run \"The capital of France is\"\nMore:       kvasir COMMAND --help\n")
	return errShortHelp
}

// usageError is a command line, an environment variable or a settings file that is wrong.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// explain turns an error of the parser into one line that names what to do.
func explain(root *kong.Application, err error) error {
	var usage *usageError
	if errors.As(err, &usage) {
		return usage
	}
	node := root.Node
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context != nil {
		if selected := parse.Context.Selected(); selected != nil {
			node = selected
		}
	}
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "unknown flag "); ok {
		name, _, _ = strings.Cut(name, ",")
		text = explainFlag(root, node, name)
	} else if arg, ok := strings.CutPrefix(text, "unexpected argument "); ok {
		arg, _, _ = strings.Cut(arg, ", did you mean")
		text = explainArgument(node, arg)
	} else if strings.HasPrefix(text, "expected ") {
		text = explainMissing(node)
	} else if flag, rest, ok := strings.Cut(text, ": expected "); ok {
		text = flag + " needs a value"
		if _, got, _ := strings.Cut(rest, `but got "`); strings.HasPrefix(got, "-") {
			got, _, _ = strings.Cut(got, `"`)
			if _, err := strconv.ParseFloat(got, 64); err == nil {
				text = fmt.Sprintf("%s needs an equals sign before a number below 0: %[1]s=%s", flag, got)
			} else {
				text += ", and " + got + " is a flag"
			}
		}
	} else if flag, _, ok := strings.Cut(text, ": bool value must be "); ok {
		text = flag + ": want true or false"
	}
	return usagef("%s (see %s --help)", text, node.FullPath())
}

func explainFlag(root *kong.Application, node *kong.Node, name string) string {
	bare := strings.TrimLeft(name, "-")
	if name == "--version" || name == "-V" {
		return "unknown flag " + name + "; use kvasir version"
	}
	var own []string
	for _, group := range node.AllFlags(true) {
		for _, f := range group {
			own = append(own, f.Name)
		}
	}
	var others, holders []string // flags of other commands; those commands that have this very flag
	for _, leaf := range root.Leaves(true) {
		for _, f := range leaf.Flags {
			others = append(others, f.Name)
			if f.Name == bare || len(bare) == 1 && string(f.Short) == bare {
				holders = append(holders, leaf.Path())
			}
		}
	}
	switch {
	case len(holders) > 0 && node == root.Node:
		return fmt.Sprintf("flag %s stands behind its command: kvasir %s %s", name, holders[0], name)
	case len(holders) > 0:
		has := "has"
		if len(holders) > 1 {
			has = "have"
		}
		return fmt.Sprintf("%s has no flag %s; %s %s it", node.Path(), name, enumerate(holders), has)
	}
	near := ""
	if len(bare) > 1 {
		if near = nearest(bare, own); near == "" {
			near = nearest(bare, others)
		}
	}
	if near != "" {
		return fmt.Sprintf("unknown flag %s; did you mean --%s?", name, near)
	}
	return "unknown flag " + name
}

// enumerate writes "a", "a and b", "a, b and c".
func enumerate(words []string) string {
	if n := len(words) - 1; n > 0 {
		return strings.Join(words[:n], ", ") + " and " + words[n]
	}
	return strings.Join(words, "")
}

func explainArgument(node *kong.Node, arg string) string {
	if len(node.Children) > 0 {
		var names []string
		for _, child := range node.Children {
			names = append(names, child.Name)
		}
		text := fmt.Sprintf("unknown command %q", strings.TrimSpace(node.Path()+" "+arg))
		if arg == "help" {
			return text
		}
		if near := nearest(arg, names); near != "" {
			return fmt.Sprintf("%s; did you mean %s?", text, near)
		}
		return text
	}
	if node.Path() == "run" {
		return fmt.Sprintf("run takes one prompt, and %q is one more argument; put the prompt into "+
			"quotes", arg)
	}
	return fmt.Sprintf("%q is one argument too many", arg)
}

func explainMissing(node *kong.Node) string {
	if len(node.Children) > 0 {
		var names []string
		for _, child := range node.Children {
			names = append(names, child.Name)
		}
		if node.Parent == nil {
			return "a command is missing: " + strings.Join(names, ", ")
		}
		return node.Path() + " needs a command: " + strings.Join(names, " or ")
	}
	var names []string
	for _, arg := range node.Positional {
		names = append(names, strings.ToUpper(arg.Name))
	}
	return fmt.Sprintf("%s is missing: kvasir %s %[1]s", strings.Join(names, " "), node.Path())
}

// longestName bounds what is compared with the names of settings and commands.
const longestName = 64

// nearest returns the candidate that is most like word, or "" if none is like it.
func nearest(word string, candidates []string) string {
	if len(word) > longestName {
		return ""
	}
	best, least := "", len(word)/3+2
	for _, c := range candidates {
		d := distance(word, c)
		if len(word) > 1 && (strings.HasPrefix(c, word) || strings.HasPrefix(word, c)) {
			d = min(d, 1)
		}
		if d < least {
			best, least = c, d
		}
	}
	return best
}

// distance counts the single-character edits between a and b, an exchange of neighbours being one
// (Damerau-Levenshtein, optimal string alignment).
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	d := make([][]int, len(x)+1)
	for i := range d {
		d[i] = make([]int, len(y)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(x)][len(y)]
}
