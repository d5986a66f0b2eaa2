package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"kvasir/batcher/place"
	"kvasir/engine"
)

const (
	maxSwarmFile    = 1 << 20
	maxSwarmWorkers = 1000
)

// swarmFile reads a description of a swarm. Whatever is wrong with it is told with its key and line.
type swarmFile struct {
	path string
	meta toml.MetaData

	hidden  int
	file    string
	expert  int64 // bytes of one expert
	model   place.Model
	base    place.Backbone
	workers []place.Worker
}

// readSwarm reads a description.
func readSwarm(path string) (*swarmFile, error) {
	text, err := readBounded(path, maxSwarmFile)
	if err != nil {
		return nil, usagef("swarm file %s: %v", path, pathless(err))
	}
	f := &swarmFile{path: path}
	var top map[string]toml.Primitive
	if f.meta, err = toml.Decode(string(text), &top); err != nil {
		var parse toml.ParseError
		if errors.As(err, &parse) {
			return nil, usagef("%s: %s", position(path, parse.Position.Line), parse.Message)
		}
		return nil, usagef("swarm file %s: %v", path, err)
	}
	if err := f.tables(top); err != nil {
		return nil, err
	}
	return f, f.complete()
}

// setter takes the value of a key, or says what it must be.
type setter func(value any) error

func (f *swarmFile) tables(top map[string]toml.Primitive) error {
	fields := map[string]setter{"model": nil, "backbone": nil, "worker": nil}
	for _, name := range f.sorted(top) {
		if _, ok := fields[name]; !ok {
			return f.unknown(name, top[name], fields)
		}
		if name == "worker" {
			continue
		}
		var values map[string]toml.Primitive
		err := f.meta.PrimitiveDecode(top[name], &values)
		if value, _ := f.decode(top[name]); err != nil || !isTable(value) {
			return usagef("%s: %s must be a table, as in [%s]", f.place(top[name]), name, name)
		}
		into := f.modelFields()
		if name == "backbone" {
			into = f.backboneFields()
		}
		if err := f.table(name, values, into); err != nil {
			return err
		}
	}
	if _, ok := top["worker"]; !ok {
		return nil
	}
	var list []map[string]toml.Primitive
	err := f.meta.PrimitiveDecode(top["worker"], &list)
	if value, _ := f.decode(top["worker"]); err != nil || !isTables(value) {
		return usagef("%s: worker must be a list of tables, as in [[worker]]", f.place(top["worker"]))
	}
	for _, values := range list {
		if err := f.worker(values); err != nil {
			return err
		}
	}
	return nil
}

func isTable(value any) bool {
	_, ok := value.(map[string]any)
	return ok
}

func isTables(value any) bool {
	_, ok := value.([]map[string]any)
	return ok
}

// worker adds one table of workers.
func (f *swarmFile) worker(values map[string]toml.Primitive) error {
	w, count := place.Worker{Name: fmt.Sprintf("worker-%d", len(f.workers)+1)}, 1
	if err := f.table("worker", values, workerFields(&w, &count)); err != nil {
		return err
	}
	if len(f.workers)+count > maxSwarmWorkers {
		return usagef("%s: more than %d workers", f.path, maxSwarmWorkers)
	}
	for i := range count {
		one := w
		if count > 1 {
			one.Name = fmt.Sprintf("%s-%d", w.Name, i+1)
		}
		if slices.ContainsFunc(f.workers, func(o place.Worker) bool { return o.Name == one.Name }) {
			return usagef("%s: two workers are named %s", f.path, one.Name)
		}
		f.workers = append(f.workers, one)
	}
	return nil
}

func (f *swarmFile) modelFields() map[string]setter {
	return map[string]setter{
		"file":         readText(&f.file),
		"layers":       readWhole(&f.model.Layers, 1, 1024),
		"experts":      readWhole(&f.model.Experts, 1, 4096),
		"top_k":        readWhole(&f.model.TopK, 1, 64),
		"hidden":       readWhole(&f.hidden, 1, 1<<15),
		"expert_bytes": readBytes(&f.expert),
	}
}

func (f *swarmFile) backboneFields() map[string]setter {
	b := &f.base
	return map[string]setter{
		"batch":     readWhole(&b.Batch, 1, 4096),
		"layer_ms":  readMillis(&b.Layer),
		"up_mbit":   readNumber(&b.Up, mbit),
		"down_mbit": readNumber(&b.Down, mbit),
		"sequences": readWhole(&b.Sequences, 1, 1<<20),
		"flights":   readWhole(&b.Flights, 1, 1<<10),
		"memory_gb": readGB(&b.Memory),
		"rows":      readNumber(&b.Rows, 1),
		"home":      readWhole(&b.Home, 0, 1024),
		"copies":    readWhole(&b.Copies, 1, maxSwarmWorkers),
	}
}

func workerFields(w *place.Worker, count *int) map[string]setter {
	return map[string]setter{
		"name":      readText(&w.Name),
		"count":     readWhole(count, 1, maxSwarmWorkers),
		"memory_gb": readGB(&w.Memory),
		"rows":      readNumber(&w.Rows, 1),
		"rtt_ms":    readMillis(&w.RTT),
		"up_mbit":   readNumber(&w.Up, mbit),
		"down_mbit": readNumber(&w.Down, mbit),
		"held":      readRanges(&w.Held),
		"cached":    readRanges(&w.Cached),
	}
}

// table sets the fields of one table, in the order of the file, so that the first mistake is told.
func (f *swarmFile) table(name string, values map[string]toml.Primitive, fields map[string]setter) error {
	for _, key := range f.sorted(values) {
		set, ok := fields[key]
		if !ok {
			return f.unknown(key, values[key], fields)
		}
		value, _ := f.decode(values[key])
		if err := set(value); err != nil {
			return usagef("%s: %s in [%s] must be %v", f.place(values[key]), key, name, err)
		}
	}
	return nil
}

// sorted returns the keys of a table by their lines.
func (f *swarmFile) sorted(values map[string]toml.Primitive) []string {
	lines := map[string]int{}
	var keys []string
	for key, p := range values {
		_, lines[key] = f.decode(p)
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(lines[a], lines[b]), cmp.Compare(a, b))
	})
	return keys
}

func (f *swarmFile) unknown(key string, p toml.Primitive, fields map[string]setter) error {
	var names []string
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	if near := nearest(key, names); near != "" {
		return usagef("%s: unknown key %s; did you mean %s?", f.place(p), key, near)
	}
	return usagef("%s: unknown key %s; here are %s", f.place(p), key, enumerate(names))
}

// decode returns the value of a key and its line.
func (f *swarmFile) decode(p toml.Primitive) (value any, line int) {
	s := settingsFile{meta: f.meta}
	return s.decode(p)
}

func (f *swarmFile) place(p toml.Primitive) string {
	_, line := f.decode(p)
	return position(f.path, line)
}

// complete fills in what follows from the rest, and says what is missing.
func (f *swarmFile) complete() error {
	m := &f.model
	if f.file != "" {
		if err := f.fromModel(); err != nil {
			return err
		}
	}
	for _, k := range []struct {
		name string
		is   bool
	}{
		{"layers", m.Layers > 0}, {"experts", m.Experts > 0}, {"top_k", m.TopK > 0}, {"hidden", f.hidden > 0},
		{"expert_bytes", f.expert > 0 || m.ExpertBytes != nil},
	} {
		if !k.is {
			return usagef("%s: [model] lacks %s; give it, or file = \"model.gguf\"", f.path, k.name)
		}
	}
	if f.expert > 0 {
		m.ExpertBytes = []int64{f.expert}
	}
	if m.TopK > m.Experts {
		return usagef("%s: top_k is %d, and a layer has %d experts", f.path, m.TopK, m.Experts)
	}
	// DESIGN section 5: int8 and a scale every 256 values out, about 13 bits a value back.
	blocks := math.Ceil(float64(f.hidden) / 256)
	m.RowBytes = float64(f.hidden) + 4*blocks + 6*float64(m.TopK)
	m.PartialBytes = 13*float64(f.hidden)/8 + blocks + 1
	if len(f.workers) == 0 {
		return usagef("%s: there is no worker; describe one in a table [[worker]]", f.path)
	}
	for _, w := range f.workers {
		for _, r := range slices.Concat(w.Held, w.Cached) {
			if r.Layer >= m.Layers {
				return usagef("%s: worker %s: layer %d, and the model has %d", f.path, w.Name, r.Layer, m.Layers)
			}
			if r.Hi > m.Experts && r.Hi <= lastExpert {
				return usagef("%s: worker %s: expert %d of layer %d, which has %d", f.path, w.Name, r.Hi-1, r.Layer, m.Experts)
			}
		}
	}
	return nil
}

// fromModel takes what the file does not say from a model file.
func (f *swarmFile) fromModel() error {
	name := expandHome(f.file)
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(f.path), name)
	}
	info, err := engine.Inspect(name)
	if err != nil {
		return fmt.Errorf("model of %s: %w", f.path, err)
	}
	x, s := info.Shape, info.Slices
	if x == nil || s == nil {
		return fmt.Errorf("model of %s: %s has no routed experts that Kvasir knows", f.path, name)
	}
	m := &f.model
	m.Layers, m.Experts = cmp.Or(m.Layers, x.Layers), cmp.Or(m.Experts, x.Experts)
	m.TopK, f.hidden = cmp.Or(m.TopK, x.TopK), cmp.Or(f.hidden, x.Hidden)
	for _, l := range s.List {
		if !l.MTP && l.Experts > 0 {
			m.ExpertBytes = append(m.ExpertBytes, l.Bytes/int64(l.Experts))
		}
	}
	return nil
}

// mbit is bytes a second of 1 Mbit/s.
const mbit = 1e6 / 8

// readNumber takes a number above 0 and multiplies it.
func readNumber(into *float64, unit float64) setter {
	return func(value any) error {
		x, ok := asFloat(value)
		if !ok || !(x > 0) || x > 1e15 {
			return errors.New("a number above 0, up to 1e15")
		}
		*into = x * unit
		return nil
	}
}

func asFloat(value any) (float64, bool) {
	switch v := value.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

func readWhole(into *int, lo, hi int) setter {
	return func(value any) error {
		x, ok := value.(int64)
		if !ok || x < int64(lo) || x > int64(hi) {
			return fmt.Errorf("a whole number from %d to %d", lo, hi)
		}
		*into = int(x)
		return nil
	}
}

// maxExpertBytes is such that no model within the other limits has more bytes than can be counted.
const maxExpertBytes = 1e12

func readBytes(into *int64) setter {
	return func(value any) error {
		x, ok := asFloat(value)
		if !ok || !(x >= 1) || x > maxExpertBytes {
			return errors.New("a number of bytes from 1 to 1e12")
		}
		*into = int64(x)
		return nil
	}
}

func readGB(into *int64) setter {
	return func(value any) error {
		x, ok := asFloat(value)
		if !ok || !(x >= 0) || x > 1e6 {
			return errors.New("a number of GB, up to 1000000")
		}
		*into = int64(x * 1e9)
		return nil
	}
}

func readMillis(into *time.Duration) setter {
	return func(value any) error {
		x, ok := asFloat(value)
		if !ok || !(x >= 0) || x > 1e6 {
			return errors.New("a number of milliseconds, up to 1000000")
		}
		*into = time.Duration(x * float64(time.Millisecond))
		return nil
	}
}

func readText(into *string) setter {
	return func(value any) error {
		x, ok := value.(string)
		if !ok || x == "" || len(x) > 4096 {
			return errors.New(`text in quotes, as in "…"`)
		}
		*into = x
		return nil
	}
}

// lastExpert is what a whole layer ends with, whatever the model: one more than the last that any has.
const lastExpert = 4096

// readRanges takes a list such as ["0-23", "24:0-127"]: whole layers, and experts of one layer.
func readRanges(into *[]place.Range) setter {
	return func(value any) error {
		wrong := errors.New(`a list of layers, or of experts of a layer, as in ["0-23", "24:0-127"]`)
		list, ok := value.([]any)
		if !ok {
			return wrong
		}
		for _, item := range list {
			word, _ := item.(string)
			layers, experts, divided := strings.Cut(word, ":")
			lo, hi, ok := fromTo(layers, 1024)
			if !ok || divided && lo != hi {
				return wrong
			}
			first, last := 0, lastExpert
			if divided {
				if first, last, ok = fromTo(experts, lastExpert); !ok {
					return wrong
				}
			}
			for l := lo; l <= hi; l++ {
				*into = append(*into, place.Range{Layer: l, Lo: first, Hi: last + 1})
			}
		}
		return nil
	}
}

// fromTo reads "3" or "3-5".
func fromTo(word string, limit int) (lo, hi int, ok bool) {
	first, last, is := strings.Cut(word, "-")
	lo, err := strconv.Atoi(first)
	if hi = lo; is && err == nil {
		hi, err = strconv.Atoi(last)
	}
	return lo, hi, err == nil && 0 <= lo && lo <= hi && hi < limit
}
