package bench

import (
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"kvasir/internal/machine"
	"kvasir/kernels/cpu"
)

// Report is what a run has measured, and on what. As JSON it is what docs/bench-json.md tells.
type Report struct {
	Machine  Machine   `json:"machine"`
	Settings Settings  `json:"settings"`
	Results  []Result  `json:"results"`
	Bars     []PathBar `json:"bars,omitempty"`

	name  string
	drift float64 // of the int8 peak from the beginning to the end, as a part of it
}

// Machine is the computer and the build that the figures belong to. They are compared with those of the
// same machine only.
type Machine struct {
	CPU      string   `json:"cpu"`
	Cores    int      `json:"cores"`
	Features []string `json:"features"`
	Go       string   `json:"go"`
	Commit   string   `json:"commit,omitempty"` // "+" at its end: with changes since; go run records none

	// Limits of what it can do with all threads, measured at the start; where a run measures them between its
	// points, the medians of these.
	Int8Peak float64 `json:"int8_peak_gops,omitempty"` // 10^9 operations a second; a product is two of them
	Read     float64 `json:"read_gbps,omitempty"`      // 10^9 bytes a second
}

// ReadMachine describes this computer and this build, and measures what it can do where this was not done before.
func ReadMachine() Machine {
	f := machine.Read()
	m := Machine{CPU: f.CPU, Cores: f.Cores, Features: f.Features, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		m.Commit = commit(info.Settings)
	}
	l := startLimits()
	m.atBest([]float64{l.peak}, []float64{l.read})
	return m
}

// startLimitFor is how long each limit is measured at the start.
const startLimitFor = 100 * time.Millisecond

// startLimits measures what the machine can do, once in a process: before its first run.
var startLimits = sync.OnceValue(func() (l limits) {
	b, err := cpu.Default()
	if err != nil {
		return l // who computes has the same error
	}
	return limits{peak: b.PeakRate(startLimitFor), read: machine.ReadRate(b.Threads(), startLimitFor)}
})

// atBest has the machine be what limits say, in products and in bytes a second; without any it stays as it was.
func (m *Machine) atBest(peaks, reads []float64) {
	if v := middle(peaks); v > 0 {
		m.Int8Peak = round(giga(2 * v))
	}
	if v := middle(reads); v > 0 {
		m.Read = round(giga(v))
	}
}

// commit returns what the build has recorded.
func commit(settings []debug.BuildSetting) string {
	var revision, changed string
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+"
		}
	}
	if revision == "" {
		return ""
	}
	return revision + changed
}

// Settings are what was run, defaults filled in, and how it went.
type Settings struct {
	Scenario string         `json:"scenario"`
	Experts  int            `json:"experts"`
	TopK     int            `json:"topk"`
	Hidden   int            `json:"hidden"`
	FFN      int            `json:"ffn"`
	Quant    string         `json:"quant"`
	Seed     uint64         `json:"seed"`
	Model    string         `json:"model,omitempty"` // decode alone
	Layers   int            `json:"layers,omitempty"`
	Remote   int            `json:"layers_remote,omitempty"`
	Prompt   int            `json:"prompt,omitempty"`
	Tokens   int            `json:"tokens,omitempty"`
	Weights  int            `json:"weight_bytes"`
	Kernel   string         `json:"kernel"`
	Threads  int            `json:"threads"` // goroutines that compute one batch
	Workers  int            `json:"workers"`
	Worker   string         `json:"worker,omitempty"`  // cpu: they compute; stub: they take the time that it says
	RTT      float64        `json:"rtt_ms"`            // asked of the emulated path; of several, the first that is not 0
	Got      *Pings         `json:"rtt_got,omitempty"` // what it delivered
	Jitter   float64        `json:"jitter_ms,omitempty"`
	Up       int64          `json:"up_bps,omitempty"` // bits a second from each worker; absent: no limit
	Down     int64          `json:"down_bps,omitempty"`
	Stall    string         `json:"stall,omitempty"`
	Paths    []PathSettings `json:"paths,omitempty"` // of all of them, what they delivered
	Budget   float64        `json:"budget_s,omitempty"`
	Repeat   int            `json:"repeat,omitempty"` // rounds of every batch; absent: as the budget allows
	Batches  []int          `json:"batches"`          // those measured
	Rounds   []int          `json:"rounds"`           // of each of them
	LeftOut  []int          `json:"left_out,omitempty"`
}

// PathSettings is what was asked of an emulated path, and what it delivered.
type PathSettings struct {
	RTT     float64 `json:"rtt_ms"`
	Idle    *Pings  `json:"idle,omitempty"` // at the start, with nothing else on the way
	Got     *Pings  `json:"got,omitempty"`  // during the run
	UpGot   float64 `json:"up_got_bps,omitempty"`
	DownGot float64 `json:"down_got_bps,omitempty"`
}

// Pings are round trips of single bytes over the emulated path, during the run.
type Pings struct {
	Median float64 `json:"median_ms"`
	P95    float64 `json:"p95_ms"`
	Count  int     `json:"count"`
}

// Result is one row of the table: one batch size on one way.
type Result struct {
	Scenario    string   `json:"scenario"`
	Batch       int      `json:"batch"`
	Workers     int      `json:"workers,omitempty"` // absent: computed here, without network
	RTT         *float64 `json:"rtt_ms,omitempty"`  // asked of the emulated path; absent: no network
	Pipelined   *bool    `json:"pipelined,omitempty"`
	Flights     int      `json:"flights,omitempty"` // dispatches under way; absent: one at a time
	TokensPerS  float64  `json:"tokens_per_s"`
	Ms          float64  `json:"ms_per_dispatch"`  // pipelined: from one answer to the next
	MsLow       float64  `json:"ms_low,omitempty"` // the median is between them, at 90 %
	MsHigh      float64  `json:"ms_high,omitempty"`
	XVsBatch1   float64  `json:"x_vs_batch_1,omitempty"`
	RTTOverhead *float64 `json:"rtt_overhead_pct,omitempty"`
	BytesOut    float64  `json:"bytes_out_per_row,omitempty"`
	BytesBack   float64  `json:"bytes_back_per_row,omitempty"`
	Allocs      *float64 `json:"allocs_per_row,omitempty"` // here; absent with a network, or after one round
	Roofline    float64  `json:"roofline_share,omitempty"` // of what the bound allows
	Bound       string   `json:"bound,omitempty"`
	PeakShare   float64  `json:"int8_peak_share,omitempty"`
	ReadShare   float64  `json:"read_share,omitempty"`
	Pairs       int      `json:"pairs,omitempty"`
	Dropped     int      `json:"pairs_dropped,omitempty"` // of them, because the machine changed meanwhile
	Identical   *bool    `json:"identical,omitempty"`
	Measuring   *float64 `json:"measuring_share,omitempty"` // of the processor time in which it was measured

	noisy bool            // too few pairs were kept to judge by
	times []time.Duration // of its rounds, ascending
}

// Name says what the layer is, in words.
func (r *Report) Name() string { return r.name }

// Empty reports whether nothing was measured.
func (r *Report) Empty() bool { return r == nil || len(r.Results) == 0 }

// find returns the result of a batch on a way, one dispatch at a time; nil when there is none. The round trip
// is the first that was asked for.
func (r *Report) find(batch int, k kind) *Result {
	for i := range r.Results {
		x := &r.Results[i]
		if x.Batch == batch && x.kind() == k && !x.piped() && (k != far || *x.RTT == r.Settings.RTT) {
			return x
		}
	}
	return nil
}

// at returns the result of a batch at a round trip; nil when there is none.
func (r *Report) at(batch int, rtt float64, piped bool) *Result {
	for i := range r.Results {
		if x := &r.Results[i]; x.Batch == batch && x.RTT != nil && *x.RTT == rtt && x.piped() == piped {
			return x
		}
	}
	return nil
}

// one returns the result of a single row on the same path, alone; nil when there is none.
func (r *Report) one(rtt *float64) *Result {
	for i := range r.Results {
		x := &r.Results[i]
		if x.Batch == 1 && !x.piped() && (x.RTT == nil) == (rtt == nil) && (rtt == nil || *rtt == *x.RTT) {
			return x
		}
	}
	return nil
}

// piped reports whether several dispatches were under way.
func (r *Result) piped() bool { return r.Pipelined != nil && *r.Pipelined }

// kind is how a batch gets to the experts.
type kind uint8

const (
	local kind = iota // a function call
	near              // over the path at 0 ms
	far               // over the path at the round trip that was asked for
)

func (r *Result) kind() kind {
	switch {
	case r.RTT == nil:
		return local
	case *r.RTT == 0:
		return near
	}
	return far
}

func median(sorted []time.Duration) time.Duration {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// milliseconds keeps microseconds: finer digits say nothing.
func milliseconds(d time.Duration) float64 { return round(float64(d) / float64(time.Millisecond)) }

// round keeps three decimals.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// sorted returns the times of rounds in ascending order.
func sorted(times []time.Duration) []time.Duration {
	s := slices.Clone(times)
	slices.Sort(s)
	return s
}
