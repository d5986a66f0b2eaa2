package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// batchProgress keeps a line on a terminal that says how far a batch is, and for how long it will go on.
type batchProgress struct {
	a    *app
	pace batchPace
}

func newBatchProgress(a *app) *batchProgress { return &batchProgress{a: a} }

func (p *batchProgress) show(total, completed, failed int) {
	if !p.a.stderr.terminal || total == 0 {
		return
	}
	done := completed + failed
	p.a.stderr.pin(batchLine(total, done, failed, p.pace.see(time.Now(), done), terminalWidth()-1))
}

func (p *batchProgress) end() { p.a.stderr.pin("") }

// batchPace is how quickly lines are done of late. Those that were done before anybody looked do not count.
type batchPace struct {
	from, last batchSight
}

type batchSight struct {
	at   time.Time
	done int
}

// What a pace is taken of: the last half minute to minute, a second at least, and some lines unless they are slow.
const (
	paceLeast = time.Second
	paceMost  = 30 * time.Second
	paceLines = 8
)

// see takes in how many lines are done, and returns lines a second; 0: it is not known yet.
func (p *batchPace) see(now time.Time, done int) float64 {
	s := batchSight{now, done}
	switch {
	case p.from.at.IsZero():
		p.from, p.last = s, s
	case now.Sub(p.last.at) >= paceMost:
		p.from, p.last = p.last, s
	}
	took, n := now.Sub(p.from.at), done-p.from.done
	if took < paceLeast || took < paceMost && n < paceLines {
		return 0
	}
	return float64(n) / took.Seconds()
}

// Columns of the bar; where there is less room there is none.
const (
	barMost  = 30
	barLeast = 8
)

// batchLine says how far a batch is, in so many columns: what matters least is left out first.
func batchLine(total, done, failed int, pace float64, width int) string {
	count, bad, rate, left := fmt.Sprintf("%d of %d", done, total), "", "", ""
	if failed > 0 {
		bad = fmt.Sprintf(", %d failed", failed)
	}
	switch {
	case done == total:
		left = ", answers are being written"
	case pace > 0:
		rate, left = ", "+rateText(pace), ", "+leftText(float64(total-done)/pace)+" left"
	}
	text := count
	for _, t := range []string{
		count + " lines" + bad + rate + left, count + " lines" + bad + left, count + bad + left, count + left,
	} {
		if len(t) <= width {
			text = t
			break
		}
	}
	n := min(barMost, width-len(text)-len("[] "))
	if n < barLeast {
		return clip(text, width)
	}
	full := n * done / total
	return "[" + strings.Repeat("█", full) + strings.Repeat("░", n-full) + "] " + text
}

// rateText is so many a second, or a minute.
func rateText(v float64) string {
	unit := "second"
	if v < 1 {
		v, unit = 60*v, "minute"
	}
	if v < 10 {
		return fmt.Sprintf("%.1f a %s", v, unit)
	}
	return fmt.Sprintf("%.0f a %s", v, unit)
}

// leftText is a time that is left, in words; it is an estimate, and no more exact than that.
func leftText(seconds float64) string {
	const day = 24 * 60 // minutes
	m := int(math.Ceil(min(seconds, math.MaxInt32) / 60))
	switch {
	case seconds < 60:
		return fmt.Sprintf("%.0f s", math.Ceil(seconds))
	case m < 60:
		return fmt.Sprintf("%d min", m)
	case m < day:
		return fmt.Sprintf("%d h %d min", m/60, m%60)
	}
	return "more than a day"
}

// linesText counts lines.
func linesText(n int) string {
	if n == 1 {
		return "1 line"
	}
	return fmt.Sprintf("%d lines", n)
}
