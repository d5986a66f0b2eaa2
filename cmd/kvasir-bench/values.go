package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"kvasir/bench"
	"kvasir/kernels/quant"
)

// optional is a value that may be left out. Its limits are those of the setting.
type optional[T any] struct {
	v     T
	given bool
}

// set takes what was read, unless that is an error.
func (o *optional[T]) set(v T, err error) error {
	if err == nil {
		o.v, o.given = v, true
	}
	return err
}

// or sets dst where the value is given.
func (o optional[T]) or(dst *T) {
	if o.given {
		*dst = o.v
	}
}

// Values of flags: each reads itself, from the command line or from the environment.
type (
	number    struct{ optional[int] }
	seed      struct{ optional[uint64] }
	decimal   struct{ optional[float64] }
	duration  struct{ optional[time.Duration] }
	numbers   struct{ optional[[]int] }           // 0 alone is none
	durations struct{ optional[[]time.Duration] } // 0 alone is none
	rate      struct{ optional[bench.Rate] }
	stall     struct{ optional[bench.Stall] }
	worker    struct{ optional[bench.Speed] }
	format    struct{ optional[quant.Format] }
)

// formatGo is the Go benchmark format.
const formatGo = "go"

// UnmarshalText reads a whole number.
func (n *number) UnmarshalText(text []byte) error { return n.set(parseNumber(string(text))) }

// UnmarshalText reads a whole number of 0 or more.
func (s *seed) UnmarshalText(text []byte) error {
	v, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		err = fmt.Errorf("want a whole number of 0 to %d, got %q", uint64(math.MaxUint64), text)
	}
	return s.set(v, err)
}

// UnmarshalText reads a number.
func (d *decimal) UnmarshalText(text []byte) error {
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		err = fmt.Errorf("want a number such as 0.5, got %q", text)
	}
	return d.set(v, err)
}

// UnmarshalText reads a time.
func (d *duration) UnmarshalText(text []byte) error { return d.set(parseDuration(string(text))) }

// UnmarshalText reads numbers with commas between them.
func (n *numbers) UnmarshalText(text []byte) error {
	return n.set(parseList(string(text), parseNumber))
}

// UnmarshalText reads times with commas between them.
func (d *durations) UnmarshalText(text []byte) error {
	return d.set(parseList(string(text), parseDuration))
}

// UnmarshalText reads bits a second.
func (r *rate) UnmarshalText(text []byte) error { return r.set(bench.ParseRate(string(text))) }

// UnmarshalText reads when a path stands still.
func (s *stall) UnmarshalText(text []byte) error { return s.set(bench.ParseStall(string(text))) }

// UnmarshalText reads what workers are.
func (w *worker) UnmarshalText(text []byte) error { return w.set(bench.ParseSpeed(string(text))) }

// UnmarshalText reads the name of a format of weights.
func (f *format) UnmarshalText(text []byte) error { return f.set(bench.ParseQuant(string(text))) }

func parseNumber(text string) (int, error) {
	v, err := strconv.ParseInt(text, 10, 32)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("want a whole number of at most %d, got %q", math.MaxInt32, text)
	case err != nil:
		return 0, fmt.Errorf("want a whole number, got %q", text)
	}
	return int(v), nil
}

func parseDuration(text string) (time.Duration, error) {
	v, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("want a time such as 13ms or 2m, got %q", text)
	}
	return v, nil
}

// parseList reads what has commas between it.
func parseList[T any](text string, parse func(string) (T, error)) ([]T, error) {
	list := []T{}
	if text == "0" {
		return list, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		v, err := parse(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}
