package main

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"kvasir/engine"
	"kvasir/engine/model"
)

// whole is a number of 0 or more.
type whole int

// UnmarshalText checks a number, wherever it comes from.
func (w *whole) UnmarshalText(text []byte) error {
	n, err := strconv.ParseInt(string(text), 10, 32)
	if err != nil || n < 0 {
		return fmt.Errorf("want a whole number of 0 or more, got %q", text)
	}
	*w = whole(n)
	return nil
}

// number is a finite number.
type number float64

// UnmarshalText checks a number, wherever it comes from.
func (n *number) UnmarshalText(text []byte) error {
	v, err := strconv.ParseFloat(string(text), 32)
	if err != nil || math.IsInf(v, 0) || math.IsNaN(v) {
		return fmt.Errorf("want a number, got %q", text)
	}
	*n = number(v)
	return nil
}

// seed is where chance begins.
type seed uint64

// UnmarshalText checks a seed, wherever it comes from.
func (s *seed) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return fmt.Errorf("want a whole number of 0 to 2^64-1, got %q", text)
	}
	*s = seed(n)
	return nil
}

// freeText is any text in UTF-8.
type freeText string

// UnmarshalText checks a text, wherever it comes from.
func (f *freeText) UnmarshalText(text []byte) error {
	if !utf8.Valid(text) {
		return errNotUTF8
	}
	*f = freeText(text)
	return nil
}

// Decode takes the value as it is: see filePath.
func (f *freeText) Decode(ctx *kong.DecodeContext) error {
	token, err := ctx.Scan.PopValue("text")
	if err != nil {
		return err
	}
	return f.UnmarshalText([]byte(token.String()))
}

var errNotUTF8 = errors.New("want text in UTF-8")

// listSeparator stands between texts of a list that comes out of a settings file: neither a command line
// nor an environment can have it in a text.
const listSeparator = "\x00"

// texts is a list of texts. A flag that is given again adds to it.
type texts []string

// UnmarshalText checks texts, wherever they come from.
func (t *texts) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errors.New("want some text")
	}
	if !utf8.Valid(text) {
		return errNotUTF8
	}
	*t = append(*t, strings.Split(string(text), listSeparator)...)
	return nil
}

// Decode takes the value as it is: see filePath.
func (t *texts) Decode(ctx *kong.DecodeContext) error {
	token, err := ctx.Scan.PopValue("text")
	if err != nil {
		return err
	}
	return t.UnmarshalText([]byte(token.String()))
}

// tokenIDs is a list of tokens by their numbers. A flag that is given again adds to it.
type tokenIDs []string

// UnmarshalText checks tokens, wherever they come from.
func (t *tokenIDs) UnmarshalText(text []byte) error {
	for item := range strings.SplitSeq(string(text), listSeparator) {
		if _, err := parseTokenID(item); err != nil {
			return err
		}
		*t = append(*t, item)
	}
	return nil
}

func parseTokenID(text string) (int32, error) {
	var w whole
	if err := w.UnmarshalText([]byte(text)); err != nil {
		return 0, fmt.Errorf("want the number of a token, got %q", text)
	}
	return int32(w), nil
}

func (t tokenIDs) list() (ids []int32) {
	for _, item := range t {
		id, err := parseTokenID(item)
		if err != nil {
			panic("BUG: token " + item + " passed its check")
		}
		ids = append(ids, id)
	}
	return ids
}

// biases is a list of TOKEN=VALUE. A flag that is given again adds to it.
type biases []string

// UnmarshalText checks biases, wherever they come from.
func (b *biases) UnmarshalText(text []byte) error {
	for item := range strings.SplitSeq(string(text), listSeparator) {
		if _, _, err := parseBias(item); err != nil {
			return err
		}
		*b = append(*b, item)
	}
	return nil
}

func parseBias(text string) (id int32, value float32, err error) {
	token, v, ok := strings.Cut(text, "=")
	var n number
	if ok {
		if id, err = parseTokenID(token); err == nil {
			err = n.UnmarshalText([]byte(v))
		}
	}
	if !ok || err != nil {
		return 0, 0, fmt.Errorf("want TOKEN=VALUE, as in 198=-5, got %q", text)
	}
	return id, float32(n), nil
}

// table returns the biases by token; of two for one token the last counts.
func (b biases) table() map[int32]float32 {
	if len(b) == 0 {
		return nil
	}
	m := map[int32]float32{}
	for _, item := range b {
		id, v, err := parseBias(item)
		if err != nil {
			panic("BUG: bias " + item + " passed its check")
		}
		m[id] = v
	}
	return m
}

// byteSize is a number of bytes as people write it.
type byteSize string

// UnmarshalText checks a size, wherever it comes from.
func (b *byteSize) UnmarshalText(text []byte) error {
	_, err := parseBytes(string(text))
	*b = byteSize(text)
	return err
}

// bytes returns the size, or 0 where none was given.
func (b byteSize) bytes() int64 {
	if b == "" {
		return 0
	}
	n, err := parseBytes(string(b))
	if err != nil {
		panic("BUG: size " + string(b) + " passed its check")
	}
	return n
}

var byteUnits = map[string]uint64{
	"B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}

func parseBytes(text string) (int64, error) {
	digits := strings.TrimRight(text, "BKMGTkib ")
	n, err := strconv.ParseUint(digits, 10, 63)
	unit, known := byteUnits[strings.TrimLeft(text[len(digits):], " ")]
	high, low := bits.Mul64(n, unit)
	if err != nil || !known || n == 0 || high != 0 || low > math.MaxInt64 {
		return 0, fmt.Errorf("want a size such as 512MiB or 8GiB, got %q", text)
	}
	return int64(low), nil
}

// kvFormat is a format of keys and values.
type kvFormat string

var kvFormats = map[kvFormat]model.KVFormat{"f16": model.KVF16, "q8_0": model.KVQ8, "f32": model.KVF32}

// UnmarshalText checks a format, wherever it comes from.
func (k *kvFormat) UnmarshalText(text []byte) error {
	*k = kvFormat(strings.ToLower(string(text)))
	if _, ok := kvFormats[*k]; !ok {
		return fmt.Errorf("want f16, q8_0 or f32, got %q", text)
	}
	return nil
}

// stateFormat is a format of the states of DeltaNet layers.
type stateFormat string

var stateFormats = map[stateFormat]model.StateFormat{"f32": model.StateF32, "bf16": model.StateBF16}

// UnmarshalText checks a format, wherever it comes from.
func (s *stateFormat) UnmarshalText(text []byte) error {
	*s = stateFormat(strings.ToLower(string(text)))
	if _, ok := stateFormats[*s]; !ok {
		return fmt.Errorf("want f32 or bf16, got %q", text)
	}
	return nil
}

// modelFlags are embedded by commands that load a model to generate with it.
type modelFlags struct {
	Model  filePath    `short:"m" help:"Model file in GGUF format. Default: the built-in kvasir-tiny." placeholder:"FILE"`
	KV     kvFormat    `name:"kv" help:"Format of keys and values: f16, q8_0 (half of it) or f32 (default ${default})." placeholder:"FORMAT" default:"f16" group:"memory"`
	State  stateFormat `help:"Format of the states of DeltaNet layers: f32, or bf16, which takes half the memory and is LOSSY: states are rounded after every token (default ${default})." placeholder:"FORMAT" default:"f32" group:"memory"`
	Memory byteSize    `help:"Memory for sequences: keys, values and states, as in 8GiB. Default: half of what the machine has left." placeholder:"SIZE" group:"memory"`
}

// options returns how to open the model.
func (m *modelFlags) options() engine.Options {
	return engine.Options{
		Path: string(m.Model), KV: kvFormats[m.KV], State: stateFormats[m.State], Memory: m.Memory.bytes(),
	}
}

// lossy says what the screen is to say of a format that loses bits, or "".
func (m *modelFlags) lossy() string {
	if stateFormats[m.State] == model.StateBF16 {
		return "states in bf16, which is lossy"
	}
	return ""
}

// given reports whether a flag stands on the command line.
func given(parsed *kong.Context, name string) bool {
	for _, p := range parsed.Path {
		if p.Flag != nil && p.Flag.Name == name && !p.Resolved {
			return true
		}
	}
	return false
}

// needs returns an error where one of some flags stands on the command line. In the environment or the
// settings file they may be meant for other commands.
func needs(parsed *kong.Context, what string, names ...string) error {
	for _, name := range names {
		if given(parsed, name) {
			return usagef("--%s is of no use without %s", name, what)
		}
	}
	return nil
}

var errEmptyFile = errors.New("the file is empty")

// maxFlagFile bounds the files that flags name: grammars, schemas, tools.
const maxFlagFile = 4 << 20

// readFlagFile reads the file that a flag names.
func readFlagFile(flag string, path filePath) ([]byte, error) {
	text, err := readBounded(string(path), maxFlagFile)
	if err == nil && len(text) == 0 {
		err = errEmptyFile
	}
	if err != nil {
		return nil, fmt.Errorf("--%s %s: %w", flag, path, pathless(err))
	}
	return text, nil
}
