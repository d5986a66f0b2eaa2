package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"kvasir/bench"
	"kvasir/kernels/quant"
)

// number is a whole number of 0 or more that may be left out. Its limits are those of the setting.
type number struct {
	n     int
	given bool
}

// UnmarshalText reads a number, wherever it comes from.
func (n *number) UnmarshalText(text []byte) error {
	v, err := strconv.ParseInt(string(text), 10, 32)
	if err != nil {
		return fmt.Errorf("want a whole number, got %q", text)
	}
	n.n, n.given = int(v), true
	return nil
}

// or sets dst where the number is given.
func (n number) or(dst *int) {
	if n.given {
		*dst = n.n
	}
}

// decimal is a number that may be left out.
type decimal struct {
	v     float64
	given bool
}

// UnmarshalText reads a number, wherever it comes from.
func (d *decimal) UnmarshalText(text []byte) error {
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return fmt.Errorf("want a number such as 0.5, got %q", text)
	}
	d.v, d.given = v, true
	return nil
}

func (d decimal) or(dst *float64) {
	if d.given {
		*dst = d.v
	}
}

// numbers is a list of whole numbers that may be left out.
type numbers struct {
	list  []int
	given bool
}

// UnmarshalText reads numbers with commas between them; 0 alone is none.
func (n *numbers) UnmarshalText(text []byte) error {
	n.list, n.given = nil, true
	if string(text) == "0" {
		return nil
	}
	for part := range strings.SplitSeq(string(text), ",") {
		var one number
		if err := one.UnmarshalText([]byte(strings.TrimSpace(part))); err != nil {
			return err
		}
		n.list = append(n.list, one.n)
	}
	return nil
}

// duration is a time that may be left out.
type duration struct {
	d     time.Duration
	given bool
}

// UnmarshalText reads a duration, wherever it comes from.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("want a time such as 13ms or 2m, got %q", text)
	}
	d.d, d.given = v, true
	return nil
}

func (d duration) or(dst *time.Duration) {
	if d.given {
		*dst = d.d
	}
}

// durations is a list of times that may be left out; 0 alone is none.
type durations struct {
	list  []time.Duration
	given bool
}

// UnmarshalText reads times with commas between them.
func (d *durations) UnmarshalText(text []byte) error {
	d.list, d.given = nil, true
	if string(text) == "0" {
		return nil
	}
	for part := range strings.SplitSeq(string(text), ",") {
		var one duration
		if err := one.UnmarshalText([]byte(strings.TrimSpace(part))); err != nil {
			return err
		}
		d.list = append(d.list, one.d)
	}
	return nil
}

// rate, stall, worker and format are read by package bench.
type (
	rate struct {
		bench.Rate
		given bool
	}
	stall  struct{ bench.Stall }
	worker struct {
		bench.Speed
		given bool
	}
	format struct {
		quant.Format
		given bool
	}
)

// UnmarshalText reads bits a second.
func (r *rate) UnmarshalText(text []byte) (err error) {
	r.given = true
	r.Rate, err = bench.ParseRate(string(text))
	return err
}

// UnmarshalText reads when a path stands still.
func (s *stall) UnmarshalText(text []byte) (err error) {
	s.Stall, err = bench.ParseStall(string(text))
	return err
}

// UnmarshalText reads what workers are.
func (w *worker) UnmarshalText(text []byte) (err error) {
	w.given = true
	w.Speed, err = bench.ParseSpeed(string(text))
	return err
}

// UnmarshalText reads the name of a format of weights.
func (f *format) UnmarshalText(text []byte) (err error) {
	f.Format, err = bench.ParseQuant(string(text))
	f.given = true
	return err
}

// formatGo is the Go benchmark format.
const formatGo = "go"
