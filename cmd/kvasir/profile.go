package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/schollz/progressbar/v3"

	"kvasir/engine"
)

type profileCmd struct {
	File filePath `arg:"" help:"Model file in GGUF format."`
	Text filePath `help:"Text that the model reads meanwhile, of some 2,000 tokens or more. Default: a built-in one." placeholder:"FILE"`
	jsonFlag
}

// Help is printed by kvasir model profile --help.
func (profileCmd) Help() string {
	return `The profile tells how finely each layer's sums are kept. It is written to FILE.profile.json and used from then on; all machines that compute for one another must have the same one. A model without a profile runs with a setting that suits most. Give a --text that is like what the model will be used for, if that is unusual.

Example:

    kvasir model profile model.gguf`
}

// maxText bounds the text of a calibration.
const maxText = 64 << 20

// profileResult is what kvasir model profile --json prints.
type profileResult struct {
	Model      string `json:"model"`
	Profile    string `json:"profile"` // the file that was written
	Arithmetic int    `json:"arithmetic"`
	Rows       int    `json:"rows"` // of each layer
	Exponents  []int  `json:"exponents"`
}

// Run measures and writes.
func (c *profileCmd) Run(ctx context.Context, a *app) error {
	request := engine.Calibration{Path: string(c.File)}
	if c.Text != "" {
		text, err := readBounded(string(c.Text), maxText)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Text, pathless(err))
		}
		request.Text = string(text)
	}
	var bar progress
	if a.stderr.terminal {
		bar.screen = a.stderr
		request.Progress = bar.set
	}
	p, err := engine.Calibrate(ctx, request)
	bar.clear()
	if err != nil {
		return err
	}
	name, err := engine.SaveProfile(string(c.File), p)
	if err != nil {
		return fmt.Errorf("the profile could not be written beside the model: %w", err)
	}
	if c.JSON {
		return a.stdout.printJSON(profileResult{p.Model, name, p.Arithmetic, p.Rows, p.Exponents})
	}
	var list []string
	for _, e := range p.Exponents {
		list = append(list, strconv.Itoa(e))
	}
	var t table
	t.add("model", p.Model)
	t.add("rows", decimal(uint64(p.Rows))+" a layer")
	t.add("exponents", strings.Join(list, " "))
	t.add("written to", name)
	t.print(a.stdout)
	return nil
}

// progress draws a bar on a terminal, from its first report on.
type progress struct {
	screen *screen
	bar    *progressbar.ProgressBar
}

// set draws the bar. One that cannot be drawn is no reason to stop.
func (p *progress) set(done, total int) {
	if p.bar == nil {
		p.bar = progressbar.NewOptions(total,
			progressbar.OptionSetWriter(p.screen),
			progressbar.OptionSetDescription("reading"),
			progressbar.OptionSetItsString("tokens"),
			progressbar.OptionShowIts(),
			progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(false),
			progressbar.OptionSetWidth(30),
		)
	}
	_ = p.bar.Set(done)
}

// clear wipes the bar, so that the next line starts on its left.
func (p *progress) clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}
