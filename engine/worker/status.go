package worker

import (
	"context"
	"sync"
	"sync/atomic"

	"kvasir/internal/moe"
)

// State is what a worker is about.
type State int

// States.
const (
	Connecting State = iota // on its way to the hub, or back to it
	Waiting                 // in the lobby
	Fetching                // paired, and holds nothing yet
	Working                 // computes what comes
	Paused                  // the owner needs the machine
)

// String returns the state in lower case.
func (s State) String() string {
	return [...]string{"connecting", "waiting", "fetching", "working", "paused"}[s]
}

// Status is what a worker is about and has done.
type Status struct {
	State   State
	Reason  string // why there is no work; "" where there is some
	Session string // "" outside one
	Holds   string // in words

	Rows, Picks int64 // computed since the start
	Output      int64 // bytes of expert output, which is what units are counted in

	// Of the slices that are loaded: 0 of 0 when none is.
	Loaded, Loading int64 // bytes
}

// status is the Status of a worker, kept by several goroutines.
type status struct {
	rows, picks, output atomic.Int64
	hidden              atomic.Int64 // values a row of the session's model
	layers              [moe.MaxLayers]atomic.Int64

	mu sync.Mutex
	s  Status // but for the counters; under mu
}

// Status returns what the worker is about. It is safe for concurrent use.
func (w *Worker) Status() Status {
	s := &w.status
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.s
	now.Rows, now.Picks, now.Output = s.rows.Load(), s.picks.Load(), s.output.Load()
	return now
}

// Picks returns the picks that were computed since the start, by layer. It is safe for concurrent use.
func (w *Worker) Picks() []int64 {
	by := make([]int64, 0, 64)
	for layer := range w.status.layers {
		if n := w.status.layers[layer].Load(); n > 0 {
			by = append(by, make([]int64, layer+1-len(by))...)
			by[layer] = n
		}
	}
	return by
}

func (s *status) set(state State, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.s.State, s.s.Reason = state, reason
}

// begin enters a session.
func (s *status) begin(state State, session string, hidden int) {
	s.hidden.Store(int64(hidden))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.s.State, s.s.Reason, s.s.Session = state, "", session
	if state == Fetching {
		s.s.Reason = noneAssigned
	}
}

const noneAssigned = "nothing is assigned to this worker yet"

// end leaves a session. A pause goes on.
func (s *status) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.s.Session, s.s.Loaded, s.s.Loading = "", 0, 0
	if s.s.State != Paused {
		s.s.State, s.s.Reason = Connecting, ""
	}
}

// holding says that an Assign is in force.
func (s *status) holding(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.s.Holds = what
	if s.s.State == Fetching {
		s.s.State, s.s.Reason = Working, ""
	}
}

// load is the progress of one Assign.
type load struct{ s *status }

func (s *status) loading(layers int) *load {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.s.Loaded, s.s.Loading = 0, 0
	if layers > 0 && s.s.State == Fetching {
		s.s.Reason = "slices are on their way"
	}
	return &load{s}
}

func (l *load) expect(bytes int64) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.s.Loading += bytes
}

func (l *load) add(bytes int64) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.s.Loaded += bytes
}

func (l *load) end() {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.s.Loaded, l.s.s.Loading = 0, 0
}

// meter counts what is computed.
type meter struct {
	next   moe.Experts
	status *status
}

// outputBytes is what a value of an expert's output counts as, however it travels.
const outputBytes = 4

// Forward implements moe.Experts.
func (m *meter) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	err := m.next.Forward(ctx, b, out)
	if err == nil {
		m.status.rows.Add(int64(b.Rows))
		m.status.layers[b.Layer].Add(int64(len(b.Expert))) // Check bounds the layer
		m.status.picks.Add(int64(len(b.Expert)))
		m.status.output.Add(int64(len(b.Expert)) * m.status.hidden.Load() * outputBytes)
	}
	return err
}
