package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvasir/bench"
)

// smallKernels makes the scenario kernels one of a second.
var smallKernels = []string{"kernels", "--quick", "--experts=4", "--topk=2", "--hidden=256", "--ffn=256", "--batch=3", "--repeat=2"}

func TestKernelsPrintsARowForEveryPoint(t *testing.T) {
	t.Parallel()
	// A variable may be meant for another scenario.
	o := runWith(t, []string{"KVASIR_RTT=1ms"}, append(smallKernels[:8:8], "--judge")...)
	if o.status != statusDone {
		t.Fatalf("exit status %d, standard error %q", o.status, o.stderr)
	}
	wantNarrow(t, o.stdout)
	head, table, ok := strings.Cut(o.stdout, "identical\n")
	if !ok || !strings.Contains(head, "4 experts, top-2, hidden 256, FFN 256") || !strings.Contains(head, "--quick") {
		t.Fatalf("printed %q", o.stdout)
	}
	for _, want := range []string{"\nQ4_K ", "\nQ4_K hot ", "\nQ6_K ", "\nQ8_0 dense ", "of 2        yes\n", "Medians of pairs", "not for this one"} {
		if !strings.Contains(table, want) {
			t.Errorf("%q is not printed:\n%s", want, table)
		}
	}
	if !strings.Contains(o.stderr, "  Q4_K dense at 3 rows\n") || !strings.HasSuffix(o.stderr, "done\n") {
		t.Errorf("progress %q", o.stderr)
	}
}

func TestKernelsPrintsJSON(t *testing.T) {
	t.Parallel()
	o := kvasirBench(t, append(smallKernels[:8:8], "--json")...)
	var r bench.KernelsReport
	d := json.NewDecoder(strings.NewReader(o.stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || d.More() || len(r.Results) < 7 || r.Settings.Scenario != bench.KernelsName || r.Settings.Pairs != 2 {
		t.Fatalf("%v, more: %v\n%s", err, d.More(), o.stdout)
	}
}

// smallModel makes the scenario model one of a second.
var smallModel = []string{"model", "--quick", "--sequences=1,3", "--prompt=2", "--tokens=3", "--prefill=9", "--repeat=1"}

func TestModelPrintsARowForEveryPoint(t *testing.T) {
	t.Parallel()
	o := kvasirBench(t, append(smallModel[:7:7], "--judge")...)
	if o.status != statusDone {
		t.Fatalf("exit status %d, standard error %q", o.status, o.stderr)
	}
	wantNarrow(t, o.stdout)
	head, table, ok := strings.Cut(o.stdout, "identical\n")
	if !ok || !strings.Contains(head, "dimensions of mini: qwen35moe, 4 layers") || !strings.Contains(head, "--quick") {
		t.Fatalf("printed %q", o.stdout)
	}
	for _, want := range []string{"decode      1 ", "\ndecode      3 ", "\nprefill     9 ", "of 1        yes\n", "Loading 0.01 GB"} {
		if !strings.Contains(table, want) {
			t.Errorf("%q is not printed:\n%s", want, table)
		}
	}
	if !strings.Contains(o.stderr, "  3 sequences\n") || !strings.HasSuffix(o.stderr, "done\n") {
		t.Errorf("progress %q", o.stderr)
	}
}

func TestModelPrintsJSON(t *testing.T) {
	t.Parallel()
	o := kvasirBench(t, append(smallModel[:7:7], "--json")...)
	var r bench.ModelReport
	d := json.NewDecoder(strings.NewReader(o.stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || d.More() || len(r.Results) != 3 || r.Settings.Scenario != bench.ModelName || r.Settings.Pairs != 1 {
		t.Fatalf("%v, more: %v\n%s", err, d.More(), o.stdout)
	}
}

func TestServePrintsARowForEveryPoint(t *testing.T) {
	t.Parallel()
	args := []string{"serve", "--quick", "--sequences=1,2", "--tokens=400", "--repeat=1"}
	o := kvasirBench(t, append(args, "--judge")...)
	if o.status != statusDone || !strings.Contains(o.stdout, "kvasir-tiny") || strings.Count(o.stdout, " yes\n") != 2 {
		t.Fatalf("exit status %d, standard output %q, standard error %q", o.status, o.stdout, o.stderr)
	}
	wantNarrow(t, o.stdout)
	o = kvasirBench(t, append(args, "--json")...)
	var r bench.ServeReport
	d := json.NewDecoder(strings.NewReader(o.stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || d.More() || len(r.Results) != 2 || !r.Settings.Apart {
		t.Fatalf("%v, more: %v\n%s", err, d.More(), o.stdout)
	}
	for _, load := range []string{"0s", "1ms"} {
		if o = kvasirBench(t, "serve", "--load", load); o.status != statusUsage || !strings.Contains(o.stderr, "--load "+load+", want 1s to 24h") {
			t.Errorf("%+v", o)
		}
	}
}

func TestDecodePrintsARowForEveryWay(t *testing.T) {
	t.Parallel()
	o := kvasirBench(t, "decode", "--quick", "--sequences=1,2", "--tokens=3", "--rtt=1ms", "--repeat=1")
	if o.status != statusDone || !strings.Contains(o.stdout, "ms/step") || !strings.Contains(o.stdout, "4 of them with their experts on workers") {
		t.Fatalf("exit status %d, standard output %q, standard error %q", o.status, o.stdout, o.stderr)
	}
	wantNarrow(t, o.stdout)
	if n := strings.Count(o.stdout, " yes\n"); n != 8 {
		t.Errorf("%d rows are the same, want 8:\n%s", n, o.stdout)
	}
}

func TestModelThatIsNotThereIsOneLine(t *testing.T) {
	t.Parallel()
	o := kvasirBench(t, "model", "-m", "none.gguf")
	if o.status != statusFailed || o.stdout != "" || strings.Count(o.stderr, "\n") != 1 || !strings.Contains(o.stderr, "none.gguf: ") {
		t.Errorf("%+v", o)
	}
}

func TestAuditPrintsARowForEveryPair(t *testing.T) {
	t.Parallel()
	small := []string{"audit", "--quick", "--experts=4", "--topk=2", "--hidden=256", "--ffn=256", "--batch=512", "--repeat=2"}
	o := kvasirBench(t, small...)
	if o.status != statusDone {
		t.Fatalf("exit status %d, standard error %q", o.status, o.stderr)
	}
	wantNarrow(t, o.stdout)
	for _, want := range []string{"turns of 32768 rows", "rows checked", "at most 1 % of throughput", "too few pairs"} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("%q is not said:\n%s", want, o.stdout)
		}
	}
	var r bench.AuditReport
	o = kvasirBench(t, append(small, "--json")...)
	d := json.NewDecoder(strings.NewReader(o.stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || d.More() || len(r.Results) != 2 || r.Results[0].Checked != 64 || r.Results[1].Checked != 64 {
		t.Errorf("%v, more: %v\n%s", err, d.More(), o.stdout)
	}
}

func TestWirePrintsARowForEveryWay(t *testing.T) {
	t.Parallel()
	o := kvasirBench(t, "wire", "--quick", "--repeat=1")
	if o.status != statusDone {
		t.Fatalf("exit status %d, standard error %q", o.status, o.stderr)
	}
	wantNarrow(t, o.stdout)
	for _, want := range []string{"package ws", "gobwas wsutil", "TLS in frames", "io.Copy", "too few pairs"} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("%q is not said:\n%s", want, o.stdout)
		}
	}
	var r bench.WireReport
	o = kvasirBench(t, "wire", "--quick", "--repeat=1", "--json")
	d := json.NewDecoder(strings.NewReader(o.stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || d.More() || len(r.Results) != 15 || r.Settings.Scenario != bench.WireName {
		t.Errorf("%v, more: %v\n%s", err, d.More(), o.stdout)
	}
}

func TestRelayPrintsARowForEveryFigure(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes seconds, and with the race detector more")
	}
	o := kvasirBench(t, "relay", "--quick", "--sessions=3")
	if o.status != statusDone {
		t.Fatalf("exit status %d, standard error %q", o.status, o.stderr)
	}
	wantNarrow(t, o.stdout)
	for _, want := range []string{"3 sessions through gateway and hub", "goroutines of a session at the gateway", "<= 100  yes", "RST of gateway to hub", "An idle session holds"} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("%q is not said:\n%s", want, o.stdout)
		}
	}
	if o = kvasirBench(t, "relay", "--sessions=0"); o.status != statusUsage || !strings.Contains(o.stderr, "--sessions 0, want 1 to") {
		t.Errorf("%+v", o)
	}
}

func TestSwarmSaysWhatBoundsIt(t *testing.T) {
	t.Parallel()
	args := []string{"swarm", "--preset=tiny", "--workers=10", "--layers=4", "--batch=32", "--simulate=5s"}
	o := kvasirBench(t, args...)
	if o.status != statusDone || !strings.Contains(o.stdout, "tokens/s over all sequences") || !strings.Contains(o.stdout, "Bounded by ") {
		t.Errorf("%+v", o)
	}
	wantNarrow(t, o.stdout)
	var r bench.SwarmReport
	if o = kvasirBench(t, append(args, "--json")...); json.Unmarshal([]byte(o.stdout), &r) != nil || r.Result.Tokens <= 0 || r.Settings.Workers != 10 {
		t.Errorf("%+v", o)
	}
}

// Against baselines of its own, so that it holds on every machine; those of the repository are for CI.
func TestGateSaysEveryCountAndFailsWhatGrew(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it counts for seconds")
	}
	dir := t.TempDir()
	if o := kvasirBench(t, "gate", "--quick", "--baselines", dir, "--update"); o.status != statusUsage {
		t.Errorf("without a reason: %+v", o)
	}
	o := kvasirBench(t, "gate", "--quick", "--baselines", dir, "--update", "--why", "a test")
	if o.status != statusDone || !strings.Contains(o.stdout, "bytes: on the wire: 16008 B, no baseline") {
		t.Fatalf("%+v", o)
	}
	wantNarrow(t, o.stdout)
	file := filepath.Join(dir, "counters.json")
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(old, []byte(`"frame_bytes": 16008`), []byte(`"frame_bytes": 16007`), 1)
	if err := os.WriteFile(file, changed, 0o644); err != nil {
		t.Fatal(err)
	}
	o = kvasirBench(t, "gate", "--quick", "--json", "--baselines", dir)
	var r bench.GateReport
	if err := json.Unmarshal([]byte(o.stdout), &r); err != nil || o.status != statusFailed {
		t.Fatalf("%+v: %v", o, err)
	}
	if want := "kvasir-bench: worse than the baseline: frame of 16,000 bytes: on the wire grew to 16008 B from 16007 B"; !strings.Contains(o.stderr, want) {
		t.Errorf("standard error is %q, want %q in it", o.stderr, want)
	}
}
