package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"kvasir/engine"
)

type inspectCmd struct {
	File    filePath `arg:"" optional:"" help:"Model file in GGUF format. Default: the built-in kvasir-tiny."`
	Tensors bool     `help:"List all tensors."`
	Hashes  bool     `help:"Hash the experts of every layer and list them; reads all weights, about a second a gigabyte."`
	jsonFlag
}

// Help is printed by kvasir model inspect --help.
func (inspectCmd) Help() string {
	return `The routed experts are the part of a model that may live on other machines, layer by layer; the rest is dense and stays on the backbone. Memory is what sequences hold besides the weights. Of a model that is split into parts any one may be given; all must stand in one folder. With --json everything is printed, metadata, tensors and layers too; hashes in full, with --hashes.

Examples:

    kvasir model inspect --tensors model.gguf
    kvasir model inspect --hashes --json model-00001-of-00003.gguf`
}

// Run prints what is in a file.
func (c *inspectCmd) Run(ctx context.Context, a *app) error {
	info, err := c.inspect(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return a.stdout.printJSON(info)
	}
	s := a.stdout
	s.printf("%s\n", s.styled(bold, clean(info.Name)))
	facts(&info).print(s)
	s.printf("\n")
	roles(&info).print(s)
	s.printf("\n")
	formats(&info).print(s)
	if len(info.Files) > 1 {
		s.printf("\n")
		files(&info).print(s)
	}
	if c.Hashes && info.Slices != nil {
		s.printf("\n")
		layers(&info).print(s)
	}
	if c.Tensors {
		s.printf("\n")
		tensors(&info).print(s)
	}
	return nil
}

func (c *inspectCmd) inspect(ctx context.Context) (engine.Info, error) {
	if c.Hashes {
		return engine.InspectHashes(ctx, string(c.File))
	}
	return engine.Inspect(string(c.File))
}

// facts are the lines on top.
func facts(info *engine.Info) *table {
	t := &table{}
	t.add("architecture", fmt.Sprintf("%s, GGUF version %d, %s", info.Architecture, info.Version,
		size(uint64(info.Bytes))))
	if info.Runs {
		t.add("runs here", "yes")
	} else {
		t.add("runs here", "no: "+info.Problem)
	}
	t.style = func(row, column int) style {
		if row == 1 && column == 1 && !info.Runs {
			return red
		}
		return plain
	}
	if x := info.Shape; x != nil {
		shapeFacts(t, x)
	}
	if m := info.Memory; m != nil && info.Shape != nil {
		memoryFacts(t, m, info.Shape)
	}
	if x := info.Slices; x != nil {
		t.add("to spread", fmt.Sprintf("%s in %s, %s or %.1f %% of the weights; about %s each",
			plural(x.Experts, "routed expert"), plural(x.Layers, "layer"), size(uint64(x.Bytes)), 100*x.Share,
			size(uint64(x.ExpertBytes))))
		dense := weights(info) - x.Bytes
		t.add("at home", fmt.Sprintf("%s or %.1f %% of the weights, dense", size(uint64(dense)), 100*(1-x.Share)))
	}
	return t
}

// manySequences is the number of sequences that memory is told for besides one: a full micro-batch.
const manySequences = 512

func memoryFacts(t *table, m *engine.MemoryInfo, x *engine.ShapeInfo) {
	full := m.Fixed + m.PerToken*int64(x.Context)
	formats := "keys and values in " + m.KV
	if x.Recurrent > 0 {
		formats += ", state in " + m.State
	}
	t.add("memory", fmt.Sprintf("%s a sequence and %s a token of it, %s with a full context; %s",
		size(uint64(m.Fixed)), size(uint64(m.PerToken)), size(uint64(full)), formats))
	t.add("", fmt.Sprintf("%d sequences: %s and %s a token of each, %s with full contexts", manySequences,
		size(uint64(manySequences*m.Fixed)), size(uint64(manySequences*m.PerToken)), size(uint64(manySequences*full))))
}

func shapeFacts(t *table, x *engine.ShapeInfo) {
	layers := strconv.Itoa(x.Layers)
	if x.Recurrent > 0 {
		layers += fmt.Sprintf(": %d with gated DeltaNet, %d with attention", x.Recurrent, x.Layers-x.Recurrent)
	}
	if x.MTP > 0 {
		layers += "; " + plural(x.MTP, "MTP block") + ", kept and not run"
	}
	t.add("layers", layers)
	t.add("hidden", decimal(uint64(x.Hidden)))
	t.add("attention", fmt.Sprintf("%s of %d, %s", plural(x.Heads, "head"), x.HeadDim,
		plural(x.KVHeads, "key and value head")))
	experts := fmt.Sprintf("%d a layer, %d a token, FFN %s", x.Experts, x.TopK, decimal(uint64(x.FFN)))
	if x.SharedFFN > 0 {
		experts += ", and a shared one, FFN " + decimal(uint64(x.SharedFFN))
	}
	t.add("experts", experts)
	t.add("vocabulary", decimal(uint64(x.Vocabulary))+" tokens")
	t.add("context", decimal(uint64(x.Context))+" tokens")
}

// weights is the size of all tensors.
func weights(info *engine.Info) int64 {
	sum := int64(0)
	for _, p := range info.Parts {
		sum += p.Bytes
	}
	return sum
}

func roles(info *engine.Info) *table {
	t := &table{head: []string{"role", "tensors", "size", "share"}, right: []bool{false, true, true, true}}
	for _, p := range info.Parts {
		t.add(p.Role, strconv.Itoa(p.Tensors), size(uint64(p.Bytes)), share(p.Bytes, weights(info)))
	}
	return t
}

func formats(info *engine.Info) *table {
	t := &table{head: []string{"format", "tensors", "size", "share"}, right: []bool{false, true, true, true}}
	for _, f := range info.Formats {
		t.add(f.Format, strconv.Itoa(f.Tensors), size(uint64(f.Bytes)), share(f.Bytes, weights(info)))
	}
	return t
}

// files are the parts of a split model.
func files(info *engine.Info) *table {
	t := &table{head: []string{"file", "tensors", "size"}, right: []bool{false, true, true}}
	for _, f := range info.Files {
		t.add(filepath.Base(f.Name), strconv.Itoa(f.Tensors), size(uint64(f.Bytes)))
	}
	return t
}

// shortHash is how many characters of a hash a table shows.
const shortHash = 16

// layers are the slices.
func layers(info *engine.Info) *table {
	t := &table{head: []string{"layer", "experts", "formats", "size", "hash"}, right: []bool{true, true, false, true, false}}
	for _, x := range info.Slices.List {
		layer := strconv.Itoa(x.Layer)
		if x.MTP {
			layer = "MTP " + layer
		}
		t.add(layer, strconv.Itoa(x.Experts), strings.Join(x.Formats, " "), size(uint64(x.Bytes)), x.Hash[:min(shortHash, len(x.Hash))])
	}
	return t
}

// share writes a part of a whole in percent.
func share(part, whole int64) string {
	if whole == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
}

func tensors(info *engine.Info) *table {
	t := &table{
		head:  []string{"tensor", "role", "format", "dimensions", "size"},
		right: []bool{false, false, false, false, true},
	}
	for _, x := range info.Tensors {
		var dims []string
		for _, d := range x.Dims {
			dims = append(dims, strconv.Itoa(d))
		}
		t.add(x.Name, x.Role, x.Format, strings.Join(dims, " x "), size(uint64(x.Bytes)))
	}
	return t
}
