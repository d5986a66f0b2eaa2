package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"kvasir/bench"
	"kvasir/bench/pages"
)

// Names of what measures nothing: it names scenarios, or works on results that were printed before.
const (
	listName    = "list"
	reportName  = "report"
	compareName = "compare"
)

// stored reads files of results, all of one machine.
func stored(files []string) ([]*bench.Stored, error) {
	var list []*bench.Stored
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		s, err := bench.ReadStored(name, f)
		_ = f.Close() // it was only read
		if err != nil {
			return nil, err
		}
		if len(list) > 0 {
			if err := bench.Same(list[0], s); err != nil {
				return nil, err
			}
		}
		list = append(list, s)
	}
	return list, nil
}

// report puts results between the marks of BENCHMARKS.md, and draws the plots.
func (a *app) report(c *cli) error {
	if len(c.Files) == 0 {
		return usagef("report needs files of results: kvasir-bench --json kernels > kernels.json; kvasir-bench report kernels.json")
	}
	list, err := stored(c.Files)
	if err != nil {
		return err
	}
	into, plots := or(c.Into, "BENCHMARKS.md"), or(c.Plot, filepath.Join("docs", "benchmarks"))
	text, err := os.ReadFile(into)
	if err != nil {
		return fmt.Errorf("%w; run it in the repository, or give --into", err)
	}
	link, err := seenFrom(into, plots)
	if err != nil {
		return fmt.Errorf("--plot %s, as seen from %s: %w", plots, into, err)
	}
	var made []*pages.Page
	for _, s := range list {
		p, err := pages.Make(s, link)
		if err != nil {
			return err
		}
		made = append(made, p)
	}
	made = pages.Merge(made)
	page, err := pages.Update(string(text), made)
	if err != nil {
		return fmt.Errorf("%s: %w", into, err)
	}
	for _, p := range made {
		if err := pages.Save(plots, p.Plots); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(a.stdout, "%s: %d plots in %s\n", p.Scenario, len(p.Plots), plots); err != nil {
			return err
		}
	}
	return os.WriteFile(into, []byte(page), 0o644)
}

// seenFrom is the way from a page to a folder, as a link has it.
func seenFrom(page, folder string) (string, error) {
	a, err1 := filepath.Abs(filepath.Dir(page))
	b, err2 := filepath.Abs(folder)
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	link, err := filepath.Rel(a, b)
	return filepath.ToSlash(link), err
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// compare sets two runs of a scenario beside each other.
func (a *app) compare(c *cli) error {
	if len(c.Files) != 2 {
		return usagef("compare needs two files of results, the older one first")
	}
	list, err := stored(c.Files)
	if err != nil {
		return err
	}
	differences, err := bench.Compare(list[0], list[1])
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(differences)
	}
	t := bench.NewDifferenceTable(a.stdout)
	if err := t.Head(); err != nil {
		return err
	}
	for _, d := range differences {
		if err := t.Row(d); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(a.stdout, "\n"+bench.Wrap("sure: the intervals of the medians do not touch. Two runs are two moments of a machine; only what was measured in turns is a proof."))
	return err
}

// plot draws what a run has measured, where --plot names a folder.
func (a *app) plot(c *cli, o measured) error {
	if c.Plot == "" || o.Empty() {
		return nil
	}
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	s, err := bench.ReadStored("--plot", bytes.NewReader(data))
	if err != nil {
		return err
	}
	p, err := pages.Make(s, ".")
	if err != nil {
		return err
	}
	if len(p.Plots) == 0 {
		return errors.New("nothing was measured that makes a plot: one needs several batches, or several round trips")
	}
	return pages.Save(c.Plot, p.Plots)
}
