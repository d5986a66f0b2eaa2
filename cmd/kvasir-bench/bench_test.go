package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"kvasir/bench"
	"kvasir/kernels/variant"
)

// program is the command under test, built once by TestMain.
var program string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "kvasir-bench-test-*")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a leftover in the temporary folder
	program = filepath.Join(dir, "kvasir-bench")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	// Without version control stamps the build needs no git and no repository.
	build := exec.Command("go", "build", "-buildvcs=false", "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// small makes a layer of microseconds, measured in batches of 1, 2 and 3.
var small = []string{"--quick", "--experts=4", "--topk=2", "--hidden=256", "--ffn=256", "--batch=3", "--rtt=1ms", "--repeat=2"}

// command prepares a run that sees nothing of the tester's own settings.
func command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append([]string{"SYSTEMROOT=" + os.Getenv("SYSTEMROOT")}, env...)
	return cmd
}

type outcome struct {
	status         int
	stdout, stderr string
}

func runWith(t *testing.T, env []string, args ...string) outcome {
	t.Helper()
	cmd := command(t, env, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	status := exitStatus(t, cmd.Run())
	return outcome{status, stdout.String(), stderr.String()}
}

func kvasirBench(t *testing.T, args ...string) outcome {
	t.Helper()
	return runWith(t, nil, args...)
}

func exitStatus(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	t.Fatalf("running %s: %v", program, err)
	return -1
}

func wantNarrow(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > bench.Columns {
			t.Errorf("a line of %d columns: %q", n, line)
		}
	}
}

func TestTableHasARowForEveryBatchAndWay(t *testing.T) {
	t.Parallel()
	o := kvasirBench(t, append([]string{"dispatch"}, small...)...)
	if o.status != statusDone {
		t.Fatalf("exit status %d, standard error %q", o.status, o.stderr)
	}
	wantNarrow(t, o.stdout)
	head, table, ok := strings.Cut(o.stdout, "same\n")
	if !ok || !strings.Contains(head, "4 experts, top-2, hidden 256, FFN 256, Q4_K") || !strings.Contains(head, "commit ") {
		t.Fatalf("printed %q", o.stdout)
	}
	table, words, _ := strings.Cut(table, "\n\n")
	var got []string
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		got = append(got, f[0]+" "+f[1]+" "+f[len(f)-1])
	}
	want := []string{"1 local -", "1 0 yes", "1 1 yes", "2 local -", "2 0 yes", "2 1 yes", "3 local -", "3 0 yes", "3 0 yes", "3 1 yes", "3 1 yes"}
	if !slices.Equal(got, want) {
		t.Errorf("rows %q, want %q", got, want)
	}
	for _, want := range []string{"Medians of 2 rounds", "At batch 3", " enough", "A round trip of 1 ms costs", "delivered"} {
		if !strings.Contains(strings.ReplaceAll(words, "\n", " "), want) {
			t.Errorf("%q is not said:\n%s", want, words)
		}
	}
	for _, want := range []string{"making the weights", "batch 1\n", "batch 3\n", "done\n"} {
		if !strings.Contains(o.stderr, want) {
			t.Errorf("progress without %q: %q", want, o.stderr)
		}
	}
}

func TestJSONIsOneObject(t *testing.T) {
	t.Parallel()
	o := runWith(t, []string{"KVASIR_BATCH=3", "KVASIR_JSON=true", "KVASIR_SEED="}, append(small[:5:5], "--rtt=0", "--repeat=1", "--workers=2")...)
	if o.status != statusDone {
		t.Fatalf("exit status %d, standard error %q", o.status, o.stderr)
	}
	var r bench.Report
	d := json.NewDecoder(strings.NewReader(o.stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || d.More() {
		t.Fatalf("%v, more: %v\n%s", err, d.More(), o.stdout)
	}
	if len(r.Results) != 7 || r.Settings.Workers != 2 || r.Settings.Seed != 1 || !slices.Equal(r.Settings.Batches, []int{1, 2, 3}) {
		t.Errorf("%+v", r)
	}
}

// wrong is usage that is refused.
var wrong = []struct {
	name string
	env  []string
	args []string
	want string
}{
	{"no batch", nil, []string{"--batch", "0"}, "--batch 0, want 1 to 4096"},
	{"word for a number", nil, []string{"--batch", "many"}, `--batch: want a whole number, got "many"`},
	{"variable", []string{"KVASIR_BATCH=many"}, nil, `want a whole number, got "many"`},
	{"number for a time", nil, []string{"--rtt", "13"}, `--rtt: want a time such as 13ms or 2m, got "13"`},
	{"more picks than experts", nil, []string{"--quick", "--topk", "17"}, "lower --topk or raise --experts"},
	{"negative round trip", nil, []string{"--rtt=-1ms"}, "--rtt -1ms, want 0 to 10s"},
	{"too large for any memory", nil, []string{"--experts=4096", "--hidden=32768", "--ffn=65536"}, "lower --experts, or use --quick"},
	{"no value", nil, []string{"--batch"}, "--batch needs a value"},
	{"flag for a value", nil, []string{"--batch", "--json"}, "--batch needs a value, and --json is a flag"},
	{"misspelt flag", nil, []string{"--bach", "3"}, "unknown flag --bach"},
	{"unknown scenario", nil, []string{"frobnicate"}, `"frobnicate" is no scenario; kvasir-bench list`},
	{"two scenarios", nil, []string{"dispatch", "list"}, `"list" is one argument too many`},
	{"round trip of kernels", nil, []string{"kernels", "--rtt=1ms"}, "--rtt is not for kernels"},
	{"workers of kernels", nil, []string{"--workers", "1", "kernels"}, "--workers is not for kernels"},
	{"model of dispatch", nil, []string{"-m", "x.gguf"}, "--model is not for dispatch"},
	{"prefill of kernels", nil, []string{"kernels", "--prefill=3"}, "--prefill is not for kernels"},
	{"experts of a model", nil, []string{"model", "--experts=3"}, "--experts is not for model"},
	{"sequences that fall", nil, []string{"model", "--sequences=8,1"}, "--sequences 8,1, want ascending numbers"},
	{"words for sequences", nil, []string{"model", "--sequences=1,x"}, `--sequences: want a whole number, got "x"`},
	{"model like no other", nil, []string{"model", "--like=gpt"}, "--like"},
	{"round trip of the wire", nil, []string{"wire", "--rtt=1ms"}, "--rtt is not for wire"},
	{"round trip of expert", nil, []string{"expert", "--rtt=1ms"}, "--rtt is not for expert; expert has no network"},
	{"batch of bars", nil, []string{"bars", "--batch=3"}, "--batch is not for bars"},
	{"model beyond memory", nil, []string{"decode", "--like=qwen3-235b-a22b"}, "GB are available; use --preset tiny"},
	{"preset of nothing", nil, []string{"--preset=gpt"}, `--preset "gpt", want one of qwen3.5-122b`},
	{"word for a rate", nil, []string{"--up=fast"}, `want bits a second such as 100M or 1G, got "fast"`},
	{"worker of another kind", nil, []string{"--worker=fpga"}, `want cpu, stub:gpu, or a time a batch`},
	{"stub without a row", nil, []string{"--worker=stub:1ms"}, `such as stub:1.45ms+16us`},
	{"stall without a pause", nil, []string{"--stall=1s"}, "such as 1s/30s"},
	{"quant of nothing", nil, []string{"--quant=Q9"}, "want one of F32, F16"},
	{"kernels of no batch", nil, []string{"kernels", "--batch=0"}, "--batch 0, want 1 to 4096"},
	{"word for a switch", nil, []string{"--json=maybe"}, "--json: want true or false"},
	{"update without a reason", nil, []string{"gate", "--update"}, "--update needs --why"},
	{"reason without update", nil, []string{"gate", "--why=x"}, "--why is for --update"},
	{"no folder of baselines", nil, []string{"gate", "--baselines=absent"}, "--baselines absent: no such folder"},
	{"too few pairs", nil, []string{"gate", "--repeat=2"}, "--repeat 2, want 3 to 100 pairs"},
	{"batch of the gate", nil, []string{"gate", "--batch=3"}, "--batch is not for gate"},
	{"update of another", nil, []string{"wire", "--update"}, "--update is not for wire"},
	{"few simulated workers", nil, []string{"swarm", "--workers=9"}, "--workers 9, want 10 to 10000"},
	{"two round trips of a swarm", nil, []string{"swarm", "--rtt=1ms,2ms"}, "swarm takes one --rtt"},
	{"swarm without room", nil, []string{"swarm", "--workers=10", "--memory=1"}, "raise --workers or --memory"},
	{"word for a share", nil, []string{"swarm", "--churn=much"}, `want a number such as 0.5, got "much"`},
	{"churn of dispatch", nil, []string{"--churn=1"}, "--churn is not for dispatch"},
	{"batches of 0", nil, []string{"--only=0"}, "--only 0, want ascending numbers of 1 to 4096"},
	{"batches beyond all", nil, []string{"--only=100000"}, "--only 100000, want ascending numbers"},
	{"batches twice", nil, []string{"--only=1,2", "--batch=1"}, "--only and --batch do not go together"},
	{"model with dimensions", nil, []string{"decode", "--model=x.gguf", "--like=mini"}, "--model and --like do not go together"},
	{"two forms", nil, []string{"--json", "--format=go"}, "--json and --format do not go together"},
	{"number below 0", nil, []string{"--batch", "-1"}, "--batch -1, want 0 or more"},
	{"number beyond all", nil, []string{"--batch=99999999999"}, "want a whole number of at most 2147483647"},
	{"seed below 0", nil, []string{"--seed=-1"}, "--seed: want a whole number of 0 to 18446744073709551615"},
	{"nobody vanishes", nil, []string{"serve", "--vanish=0"}, "--vanish 0, want 1 or more"},
	{"streams of load", nil, []string{"serve", "--load=5s", "--sequences=4"}, "--load and --sequences do not go together"},
	{"a wire in no time", nil, []string{"wire", "--budget=1ms"}, "--budget 1ms, want 1s to 24h"},
	{"workers of a check", nil, []string{"swarm", "--check", "--workers=100"}, "it runs 4 workers"},
	{"batch of a list", nil, []string{"list", "--batch=3"}, "--batch is not for list"},
	{"batch of a model", nil, []string{"decode", "--batch=3"}, "--sequences says how many rows go together"},
	{"model of one layer", nil, []string{"--layers=3"}, "use decode"},
	{"line end", nil, []string{"a\nb"}, "is no scenario"},
}

func TestUsageErrorsAreOneLineThatSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, c := range wrong {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := runWith(t, c.env, c.args...)
			if o.status != statusUsage || o.stdout != "" || strings.Count(o.stderr, "\n") != 1 ||
				!strings.HasPrefix(o.stderr, "kvasir-bench: ") || !strings.Contains(o.stderr, c.want) {
				t.Errorf("exit status %d, standard output %q, standard error %q; want %d, none, a line with %q",
					o.status, o.stdout, o.stderr, statusUsage, c.want)
			}
		})
	}
}

func TestKernelsVerdict(t *testing.T) {
	r := &bench.KernelsReport{
		Results: []bench.KernelsResult{{Batch: 1, Identical: new(true)}},
		Bars:    []bench.BarResult{{Batch: 1, Of: "tokens_per_s", Want: 1200, Got: 900, Verdict: "reported"}},
	}
	if err := verdict(r, true); err != nil {
		t.Errorf("nothing is judged: %v", err)
	}
	r.Bars[0].Verdict = "missed"
	if err := verdict(r, false); err != nil {
		t.Errorf("nobody asked: %v", err)
	}
	if err := verdict(r, true); err == nil || !strings.Contains(err.Error(), "bar 1200 tokens/s") {
		t.Errorf("missed: %v", err)
	}
	r.Results[0].Identical = new(false)
	if err := verdict(r, false); err == nil || !strings.Contains(err.Error(), "different answers") {
		t.Errorf("other bits: %v", err)
	}
}

func TestKernelThatIsNotHereIsOneLine(t *testing.T) {
	t.Parallel()
	for wish, want := range map[string]string{"fast": "unknown kernel variant", absent(t): "not available here"} {
		o := runWith(t, []string{"KVASIR_KERNEL=" + wish}, small...)
		if o.status != statusFailed || o.stdout != "" || strings.Count(o.stderr, "\n") != 1 ||
			!strings.HasPrefix(o.stderr, "kvasir-bench: KVASIR_KERNEL: ") || !strings.Contains(o.stderr, want) {
			t.Errorf("%s: %+v", wish, o)
		}
	}
	o := runWith(t, []string{"KVASIR_KERNEL=portable"}, append(small[:5:5], "--rtt=0", "--batch=1", "--repeat=1")...)
	if o.status != statusDone || !strings.Contains(o.stdout, "portable kernels") {
		t.Errorf("portable: %+v", o)
	}
}

// absent names a variant that no processor has beside those of this one.
func absent(t *testing.T) string {
	t.Helper()
	if slices.Contains(variant.Available(), variant.NEON) {
		return variant.AVX2.String()
	}
	return variant.NEON.String()
}

func TestListNamesTheScenarios(t *testing.T) {
	t.Parallel()
	o := kvasirBench(t, "list")
	if o.status != statusDone || o.stderr != "" || !strings.HasPrefix(o.stdout, "dispatch ") {
		t.Errorf("%+v", o)
	}
	wantNarrow(t, o.stdout)
	var list []bench.About
	if o = kvasirBench(t, "list", "--json"); json.Unmarshal([]byte(o.stdout), &list) != nil || len(list) != len(bench.Scenarios()) {
		t.Errorf("%+v", o)
	}
}

func TestHelpHasExamples(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--help"}, {"-h"}, {"list", "--help"}, {"--batch", "0", "--help"}} {
		o := kvasirBench(t, args...)
		if o.status != statusDone || o.stderr != "" || !strings.Contains(o.stdout, "kvasir-bench --batch 512") ||
			!strings.Contains(o.stdout, "KVASIR_BATCH") {
			t.Errorf("kvasir-bench %s: %+v", args, o)
		}
		wantNarrow(t, o.stdout)
	}
}

// startLong begins a run of many minutes, that prints JSON.
func startLong(t *testing.T) (cmd *exec.Cmd, stdout *bytes.Buffer, progress io.Reader) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot be sent Ctrl-C alone on Windows")
	}
	cmd, stdout = command(t, nil, append(small[:5:5], "--json", "--rtt=0", "--repeat=300", "--batch=4096")...), &bytes.Buffer{}
	cmd.Stdout = stdout
	progress, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, stdout, progress
}

// TestCtrlCLeavesValidJSON stops a run of many minutes once its second batch has begun.
func TestCtrlCLeavesValidJSON(t *testing.T) {
	t.Parallel()
	cmd, stdout, progress := startLong(t)
	stderr := readUntil(t, progress, "batch 2\n")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(progress)
	if err != nil {
		t.Fatal(err)
	}
	stderr += string(rest)
	if status := exitStatus(t, cmd.Wait()); status != statusFailed {
		t.Errorf("exit status %d, want %d", status, statusFailed)
	}
	if !strings.HasSuffix(stderr, "kvasir-bench: "+errInterrupted.Error()+"\n") || strings.Contains(stderr, "goroutine ") {
		t.Errorf("standard error %q", stderr)
	}
	var r bench.Report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil || len(r.Results) < 2 || r.Results[0].Batch != 1 {
		t.Errorf("%v: %s", err, stdout.String())
	}
}

// readUntil reads a stream until it has said something.
func readUntil(t *testing.T, r io.Reader, text string) string {
	t.Helper()
	var seen []byte
	b := make([]byte, 256)
	for !strings.Contains(string(seen), text) {
		n, err := r.Read(b)
		seen = append(seen, b[:n]...)
		if err != nil {
			t.Fatalf("%v after %q", err, seen)
		}
	}
	return string(seen)
}

// timeout, and what else passes signals on, sends them to a process and to its group.
func TestSignalThatComesTwiceIsOne(t *testing.T) {
	t.Parallel()
	cmd, stdout, progress := startLong(t)
	readUntil(t, progress, "batch 1\n")
	for start := time.Now(); time.Since(start) < patience/20; { // until it has seen the first, and long before it asks again
		_ = cmd.Process.Signal(os.Interrupt) // it may be gone
	}
	rest, err := io.ReadAll(progress)
	if err != nil {
		t.Fatal(err)
	}
	status := exitStatus(t, cmd.Wait())
	if status != statusFailed || !strings.HasSuffix(string(rest), errInterrupted.Error()+"\n") || !json.Valid(stdout.Bytes()) {
		t.Errorf("exit status %d, standard error %q, standard output %q", status, rest, stdout.String())
	}
}

func TestFolderForPlotsIsThereBeforeTheRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	o := kvasirBench(t, append([]string{"--plot", file}, small...)...)
	if o.status != statusFailed || o.stdout != "" || strings.Count(o.stderr, "\n") != 1 || !strings.Contains(o.stderr, "--plot: mkdir") {
		t.Errorf("%+v", o)
	}
}

func TestReaderThatLeavesIsNoFailure(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"list"}, {"--help"}, small, append([]string{"--json"}, small...)} {
		cmd := command(t, nil, args...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		if status := exitStatus(t, cmd.Run()); status != statusDone {
			t.Errorf("kvasir-bench %s: exit status %d", args, status)
		}
	}
}

func TestFullDiskIsAFailure(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("no /dev/full on %s to write to", runtime.GOOS)
	}
	defer full.Close() //nolint:errcheck // nothing was written
	for _, args := range [][]string{{"list"}, {"--help"}, small, append([]string{"--json"}, small...)} {
		cmd := command(t, nil, args...)
		var stderr strings.Builder
		cmd.Stdout, cmd.Stderr = full, &stderr
		if status := exitStatus(t, cmd.Run()); status != statusFailed || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("kvasir-bench %s: exit status %d, standard error %q", args, status, stderr.String())
		}
	}
}

func TestOtherBitsFailTheRun(t *testing.T) {
	results := []bench.Result{{Batch: 1}, {Batch: 1, Identical: new(true)}, {Batch: 2, Identical: new(true)}}
	if err := verdict(&bench.Report{Results: results}, true); err != nil {
		t.Error(err)
	}
	results[2].Identical = new(false)
	if err := verdict(&bench.Report{Results: results}, true); err == nil || !strings.Contains(err.Error(), "first at batch 2") {
		t.Errorf("verdict %v", err)
	}
}

func TestBarIsOnATerminalOnly(t *testing.T) {
	for _, terminal := range []bool{true, false} {
		var b strings.Builder
		p := newProgress(&b, terminal)
		p.show(0.25, "batch 4, round 1, local")
		p.hide()
		p.show(0.25, "batch 4, round 1, 13 ms")
		p.end()
		if got := strings.Contains(b.String(), "25%"); got != terminal {
			t.Errorf("terminal %v: %q", terminal, b.String())
		}
		if !terminal && (!strings.HasSuffix(b.String(), " s  batch 4\n") || strings.Count(b.String(), "\n") != 1) {
			t.Errorf("lines: %q", b.String())
		}
	}
}
