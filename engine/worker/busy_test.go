package worker

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestPressureHasHysteresis plays shares of the processors that others have, one a second.
func TestPressureHasHysteresis(t *testing.T) {
	b := &Busy{High: 0.5, Low: 0.2, Rise: 3 * time.Second, Fall: 4 * time.Second}
	for _, tt := range []struct {
		name   string
		shares []float64
		want   string // after each: . or B
	}{
		{"quiet", []float64{0, .1, .4, .5, .5, .5}, "......"},
		{"a burst", []float64{0, .9, .9, .9, .1, .9, .9, .9}, "........"},
		{"long enough", []float64{0, .9, .9, .9, .9, .9}, "....BB"},
		{"between the two it stays", []float64{0, .9, .9, .9, .9, .3, .3, .3, .3, .3, .3}, "....BBBBBBB"},
		{"and back", []float64{0, .9, .9, .9, .9, .1, .1, .1, .1, .1, .1}, "....BBBBB.."},
		{"a pause of the other", []float64{0, .9, .9, .9, .9, .1, .1, .6, .1, .1, .1, .1, .1}, "....BBBBBBBB."},
	} {
		var p pressure
		all, others, got := time.Duration(0), time.Duration(0), ""
		for i, share := range tt.shares {
			all += 2 * time.Second
			others += time.Duration(share * float64(2*time.Second))
			mark := "."
			if p.add(b, time.Unix(int64(i), 0), all, others) {
				mark = "B"
			}
			got += mark
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	var p pressure // a clock that stands still or runs back says nothing
	for _, all := range []time.Duration{5, 5, 3} {
		if p.add(b, time.Unix(9, 0), all, all) {
			t.Error("busy for no time at all")
		}
	}
}

func TestBusyIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var percent atomic.Int64
		all, others, last := time.Duration(0), time.Duration(0), time.Now()
		b := &Busy{
			Every: time.Second, High: 0.5, Low: 0.2, Rise: 10 * time.Second, Fall: time.Minute,
			Load: func() (time.Duration, time.Duration, error) {
				span := time.Since(last)
				last = time.Now()
				all += span
				others += span * time.Duration(percent.Load()) / 100
				return all, others, nil
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { b.Run(ctx); close(done) }()
		time.Sleep(time.Hour)
		if b.is() {
			t.Error("busy without anybody")
		}
		percent.Store(90)
		from := time.Now()
		if !b.await(ctx, true) {
			t.Error("it never was busy")
		}
		if took := time.Since(from); took < 10*time.Second || took > 12*time.Second {
			t.Errorf("busy after %v, want 10 s", took)
		}
		percent.Store(0)
		from = time.Now()
		if !b.await(ctx, false) {
			t.Error("it was busy for ever")
		}
		if took := time.Since(from); took < time.Minute || took > time.Minute+2*time.Second {
			t.Errorf("quiet after %v, want 1 min", took)
		}
		cancel()
		if b.await(ctx, true) {
			t.Error("busy after the end")
		}
		<-done
	})
}

func TestSystemLoadGrows(t *testing.T) {
	all, others, err := systemLoad()
	if runtime.GOOS != "linux" {
		if _, busyErr := NewBusy(); !errors.Is(err, ErrNoLoad) || !errors.Is(busyErr, ErrNoLoad) {
			t.Errorf("%v, %v; want ErrNoLoad", err, busyErr)
		}
		return
	}
	if err != nil || all <= 0 || others < 0 || others > all {
		t.Errorf("%v of which others have %v, %v", all, others, err)
	}
}

func TestNiceIsSet(t *testing.T) {
	if err := Nice(0); err != nil && runtime.GOOS != "windows" {
		t.Error(err)
	}
}
