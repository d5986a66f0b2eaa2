// Command testcount reads the events of go test -json and says what matters: a line a package, the
// output of what failed, the reason of what was skipped, and how many tests there were.
//
//	go test -json ./... | testcount [-name NAME] [-add FILE]
//	testcount -sum FILE
//
// With -add it appends its counts to a file; with -sum it prints the sum of such a file as one line,
// "N passed, N failed, N skipped". Tests and subtests count alike. A package that fails without a test
// that does, as one that does not build, counts as one failed. Exit status: 0, or 1 if anything failed
// or no test ran.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	name := flag.String("name", "tests", "what these tests are, for the closing line")
	add := flag.String("add", "", "append the counts to this file")
	sum := flag.String("sum", "", "print the sum of this file and read no events")
	flag.Parse()
	if *sum != "" {
		os.Exit(printSum(*sum))
	}
	r := newReport(os.Stdout)
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testcount:", err)
		os.Exit(1)
	}
	fmt.Printf("%s: %d tests passed, %d failed, %d skipped, in %d packages\n",
		*name, r.passed, r.failed, r.skipped, r.packages)
	if *add != "" {
		if err := appendCounts(*add, r); err != nil {
			fmt.Fprintln(os.Stderr, "testcount:", err)
			os.Exit(1)
		}
	}
	if r.failed > 0 || r.passed == 0 {
		os.Exit(1)
	}
}

// event is a line of go test -json; `go doc test2json` tells its fields.
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build-output event, in place of Package
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

type report struct {
	out                               io.Writer
	passed, failed, skipped, packages int

	output     map[string][]string // lines of the tests and packages that have not ended
	failures   map[string]bool     // packages with a test that failed
	noTests    map[string]bool
	fromCaches map[string]bool
}

func newReport(out io.Writer) *report {
	return &report{
		out:        out,
		output:     map[string][]string{},
		failures:   map[string]bool{},
		noTests:    map[string]bool{},
		fromCaches: map[string]bool{},
	}
}

// read takes events until the stream ends. A line that is no event is handed through: the go command
// writes some of its own errors so.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if text := strings.TrimRight(line, "\r\n"); text != "" {
			var e event
			if text[0] != '{' || json.Unmarshal([]byte(text), &e) != nil {
				fmt.Fprintln(r.out, text)
			} else {
				r.event(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) event(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		r.output[key] = append(r.output[key], e.Output)
		if e.Test == "" {
			r.noTests[e.Package] = r.noTests[e.Package] || strings.Contains(e.Output, "[no test files]")
			r.fromCaches[e.Package] = r.fromCaches[e.Package] || strings.Contains(e.Output, "\t(cached)")
		}
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e)
		} else {
			r.endTest(e)
		}
		delete(r.output, key)
	}
}

func (r *report) endTest(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "pass":
		r.passed++
	case "fail":
		r.failed++
		r.failures[e.Package] = true
		fmt.Fprintf(r.out, "--- FAIL %s %s (%.1f s)\n%s", e.Package, e.Test, e.Elapsed, strings.Join(r.output[key], ""))
	case "skip":
		r.skipped++
		fmt.Fprintf(r.out, "skip  %s %s: %s\n", e.Package, e.Test, reason(r.output[key]))
	}
}

// reason picks what a skipped test said out of its output: the lines that the testing package did not
// write, without the file and line before them.
func reason(output []string) string {
	var said []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		if _, text, ok := strings.Cut(line, ".go:"); ok {
			if _, after, ok := strings.Cut(text, ": "); ok {
				line = after
			}
		}
		said = append(said, line)
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " ")
}

func (r *report) endPackage(e event) {
	if r.noTests[e.Package] {
		return
	}
	r.packages++
	note := ""
	if r.fromCaches[e.Package] {
		note = ", cached"
	}
	if e.Action != "fail" {
		fmt.Fprintf(r.out, "ok    %s (%.1f s%s)\n", e.Package, e.Elapsed, note)
		return
	}
	if !r.failures[e.Package] { // it did not build, or a panic or time-out ended it between tests
		r.failed++
		fmt.Fprint(r.out, strings.Join(r.output[e.Package+" "], ""))
	}
	fmt.Fprintf(r.out, "FAIL  %s (%.1f s)\n", e.Package, e.Elapsed)
}

func appendCounts(file string, r *report) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, r.passed, r.failed, r.skipped)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// printSum prints the sum of a file of counts, and returns the exit status.
func printSum(file string) int {
	data, err := os.ReadFile(file)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testcount:", err)
		return 1
	}
	var passed, failed, skipped int
	for line := range strings.Lines(string(data)) {
		var p, f, s int
		if _, err := fmt.Sscan(line, &p, &f, &s); err != nil {
			fmt.Fprintf(os.Stderr, "testcount: %s: %q is not three counts\n", file, line)
			return 1
		}
		passed, failed, skipped = passed+p, failed+f, skipped+s
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	if failed > 0 || passed == 0 {
		return 1
	}
	return 0
}
