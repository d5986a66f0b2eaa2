package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"kvasir/engine"
	"kvasir/engine/ledger"
	"kvasir/engine/worker"
)

// workerView shows what a worker is about: one line that is kept fresh on a terminal, a line of the log
// every 30 seconds elsewhere, or events for a program.
type workerView struct {
	a    *app
	json bool

	mu     sync.Mutex
	reason string // said last; under mu
}

func newWorkerView(a *app, json bool) *workerView { return &workerView{a: a, json: json} }

// workerEvent is what kvasir worker --json prints after workerReady, one a line.
type workerEvent struct {
	Event   string `json:"event"` // waiting, working, holding, lost, status
	Session string `json:"session,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Holds   string `json:"holds,omitempty"`
	WaitMS  int64  `json:"wait_ms,omitempty"`

	State       string  `json:"state,omitempty"`
	RowsPerSec  float64 `json:"rows_per_s,omitempty"`
	Rows        int64   `json:"rows,omitempty"`
	Picks       int64   `json:"picks,omitempty"`
	Units       float64 `json:"units,omitempty"`
	PendingNKVR int64   `json:"pending_nkvr,omitempty"` // signed since the start
	SettledNKVR int64   `json:"settled_nkvr,omitempty"`
	VoidedNKVR  int64   `json:"voided_nkvr,omitempty"`
	HeldNKVR    int64   `json:"held_nkvr,omitempty"` // that gateways hold back, for a backbone's limit is reached
	Checked     string  `json:"checked,omitempty"`   // sampled, probation, unverified
	Disputed    int64   `json:"disputed,omitempty"`  // reports of backbones, since the start
	Dispute     string  `json:"dispute,omitempty"`   // what is wrong with the last of them
	Unread      int     `json:"unread,omitempty"`    // reports that no gateway has read yet
	Loaded      int64   `json:"loaded_bytes,omitempty"`
	Loading     int64   `json:"loading_bytes,omitempty"`
}

func (v *workerView) event(e workerEvent) {
	if !v.json {
		return
	}
	text, err := json.Marshal(e)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	_, _ = v.a.stdout.Write(append(text, '\n')) // app.finish tells of a screen that fails
}

// waiting says why there is no work, when that changes.
func (v *workerView) waiting(reason string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if reason != v.reason {
		v.reason = reason
		v.a.log.Info("waiting", "why", reason)
		v.event(workerEvent{Event: "waiting", Reason: reason})
	}
}

func (v *workerView) working(session string) {
	v.mu.Lock()
	v.reason = ""
	v.mu.Unlock()
	v.a.log.Info("working", "session", session)
	v.event(workerEvent{Event: "working", Session: session})
}

func (v *workerView) holding(what string) {
	v.a.log.Info("holding", "what", what)
	v.event(workerEvent{Event: "holding", Holds: what})
}

// lost logs a connection that was lost, or did not come about.
func (v *workerView) lost(err error, wait time.Duration) {
	why := "ended"
	if err != nil {
		why = oneLine(err.Error())
	}
	v.a.log.Warn("no connection, trying again", "wait", wait.Round(time.Millisecond), "why", why)
	v.event(workerEvent{Event: "lost", Reason: why, WaitMS: wait.Milliseconds()})
}

// run shows the status until ctx ends.
func (v *workerView) run(ctx context.Context, n *engine.WorkerNode) {
	every := statusLog
	if v.a.stderr.terminal {
		every = statusLine
	}
	defer v.a.stderr.pin("")
	tick := time.NewTicker(every)
	defer tick.Stop()
	last, at := n.Status(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s, now := n.Status(), time.Now()
		rate := float64(s.Rows-last.Rows) / now.Sub(at).Seconds()
		last, at = s, now
		v.show(s, rate)
	}
}

// show shows one status.
func (v *workerView) show(s engine.WorkerStatus, rate float64) {
	v.event(workerEvent{
		Event: "status", State: s.State.String(), Session: s.Session, Reason: s.Reason, Holds: s.Holds,
		RowsPerSec: round(rate, 10), Rows: s.Rows, Picks: s.Picks, Units: float64(s.Output) / ledger.UnitBytes,
		PendingNKVR: int64(s.Pending), SettledNKVR: int64(s.Settled), VoidedNKVR: int64(s.Voided), HeldNKVR: int64(s.Held), Checked: checkedText(s),
		Disputed: s.Disputed, Dispute: s.Trouble, Unread: s.Unread, Loaded: s.Loaded, Loading: s.Loading,
	})
	if v.a.stderr.terminal {
		v.a.stderr.pin(clip(statusText(s, rate), terminalWidth()-1))
		return
	}
	attrs := []any{"state", s.State.String(), "rows_per_s", round(rate, 10), "units", ledger.FormatUnits(s.Output),
		"pending_nkvr", int64(s.Pending), "settled_nkvr", int64(s.Settled), "unsigned_units", ledger.FormatUnits(s.Unsaid)}
	if text := checkedText(s); text != "" {
		attrs = append(attrs, "checked", text)
	}
	if s.Voided > 0 {
		attrs = append(attrs, "voided_nkvr", int64(s.Voided))
	}
	if s.Held > 0 {
		attrs = append(attrs, "held_back_nkvr", int64(s.Held), "why_held", "the backbone's limit is reached")
	}
	if s.Disputed > 0 {
		attrs = append(attrs, "disputed", s.Disputed, "dispute", s.Trouble)
	}
	if s.Unread > 0 {
		attrs = append(attrs, "unread", s.Unread)
	}
	if s.Reason != "" {
		attrs = append(attrs, "why", s.Reason)
	}
	if s.Loading > 0 {
		attrs = append(attrs, "loaded", size(uint64(s.Loaded)), "of", size(uint64(s.Loading)))
	}
	v.a.log.Info("status", attrs...)
}

// statusText is the status in one line.
func statusText(s engine.WorkerStatus, rate float64) string {
	state := s.State.String()
	if s.State == worker.Working {
		state = fmt.Sprintf("%.0f rows/s", rate)
	} else if s.Reason != "" {
		state += ": " + clean(s.Reason)
	}
	return joinWords(state, bar(s.Loaded, s.Loading), ledger.FormatUnits(s.Output)+" units",
		fmt.Sprintf("pending %v", s.Pending), fmt.Sprintf("settled %v", s.Settled), void(s.Voided), held(s.Held), whyPending(s.Mode), dispute(s))
}

func dispute(s engine.WorkerStatus) string {
	if s.Disputed == 0 {
		return ""
	}
	return fmt.Sprintf("disputes %d receipts: %s", s.Disputed, s.Trouble)
}

func void(n ledger.NKVR) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("void %v: a row was wrong", n)
}

// held says what of all that was signed no gateway has credited.
func held(n ledger.NKVR) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("held back %v: the backbone's limit is reached", n)
}

// whyPending says why nothing settles, where that is not just a matter of time.
func whyPending(m ledger.Mode) string {
	switch m {
	case ledger.Probation:
		return "probation: paid when it ends"
	case ledger.Unverified:
		return "nobody checks the work: it stays pending"
	}
	return ""
}

// checkedText is how the worker is checked; "" while nothing was signed.
func checkedText(s engine.WorkerStatus) string {
	if s.Mode == 0 {
		return ""
	}
	return s.Mode.String()
}

// barWidth is how many characters a bar has.
const barWidth = 20

// bar draws how much of something is there; "" where there is nothing to come.
func bar(done, total int64) string {
	if total <= 0 {
		return ""
	}
	done = min(max(done, 0), total)
	full := int(barWidth * float64(done) / float64(total))
	return fmt.Sprintf("[%s%s] %d %% of %s", strings.Repeat("#", full), strings.Repeat(".", barWidth-full),
		int(100*float64(done)/float64(total)), size(uint64(total)))
}

// clip cuts a text to a width.
func clip(text string, width int) string {
	if r := []rune(text); len(r) > width && width > 0 {
		return string(r[:width])
	}
	return text
}

// terminalWidth is that of standard error, or what is usual.
func terminalWidth() int {
	if w, _, err := term.GetSize(int(os.Stderr.Fd())); err == nil && w > 0 {
		return w
	}
	return maxColumns
}
