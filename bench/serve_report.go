package bench

import (
	"fmt"
	"io"
	"strconv"
)

// ServeReport is what Serve has measured, and on what. As JSON it is what docs/bench-json.md tells.
type ServeReport struct {
	Machine  Machine       `json:"machine"`
	Settings ServeSettings `json:"settings"`
	Results  []ServeResult `json:"results"`
	Load     *ServeLoad    `json:"load,omitempty"`
	Vanish   *ServeVanish  `json:"vanish,omitempty"`
	Bars     []ServeBar    `json:"bars,omitempty"`
}

// ServeSettings are what was run, defaults filled in.
type ServeSettings struct {
	Scenario string  `json:"scenario"`
	Model    string  `json:"model"`
	Tokens   int     `json:"tokens"`
	Seed     uint64  `json:"seed"`
	Kernel   string  `json:"kernel"`
	Threads  int     `json:"threads"`
	Budget   float64 `json:"budget_s,omitempty"`
	Pairs    int     `json:"repeat,omitempty"` // rounds of every point; absent: as many as it takes
	Apart    bool    `json:"client_apart"`     // in a process of its own
}

// ServeResult is one row of the table: so many streams at once.
type ServeResult struct {
	Scenario  string   `json:"scenario"`
	Streams   int      `json:"streams"`
	Direct    float64  `json:"direct_tokens_per_s"` // the engine called, without HTTP
	HTTP      float64  `json:"http_tokens_per_s"`
	Ratio     float64  `json:"ratio"`                         // of both, median of rounds
	Door      *float64 `json:"door_us_per_token,omitempty"`   // processor time of the server, before a model that costs nothing
	Beyond    *float64 `json:"beyond_us_per_token,omitempty"` // that of the server beyond the engine's, of rounds: their noise is in it
	Client    *float64 `json:"client_us_per_token,omitempty"` // of the client, on the same cores
	Pairs     int      `json:"pairs"`                         // rounds
	Dropped   int      `json:"pairs_dropped"`                 // of them, because the machine changed meanwhile
	Identical *bool    `json:"identical"`                     // a prompt had the same text both ways, every time
}

// ServeVanish is what was left of clients that went.
type ServeVanish struct {
	Clients int       `json:"clients"`
	Before  ServeLeft `json:"when_they_went"`
	After   ServeLeft `json:"left"`
	Seconds float64   `json:"seconds"`
	Clean   bool      `json:"clean"` // nothing was left after so long
}

// ServeLeft is what a node holds for requests.
type ServeLeft struct {
	Places     int   `json:"places"`
	Queued     int   `json:"queued"` // of the scheduler, that run or wait
	Sequences  int   `json:"sequences"`
	Memory     int64 `json:"memory_bytes"` // of sequences, without what is kept of prefixes
	Goroutines int   `json:"goroutines"`
}

// noisy reports whether too few rounds are left to judge.
func (x *ServeResult) noisy() bool { return x.Pairs-x.Dropped < min(pairsKept, x.Pairs) }

// serveColumns of the table of Serve. With two spaces between them they fit Columns.
var serveColumns = []column[ServeResult]{
	{"streams", 7, func(r *ServeResult) string { return strconv.Itoa(r.Streams) }},
	{"direct tokens/s", 15, func(r *ServeResult) string { return digits(r.Direct) }},
	{"HTTP tokens/s", 13, func(r *ServeResult) string { return digits(r.HTTP) }},
	{"ratio", 7, func(r *ServeResult) string { return percent(100 * r.Ratio) }},
	{"door us/token", 13, func(r *ServeResult) string { return given(r.Door) }},
	{"client", 6, func(r *ServeResult) string { return given(r.Client) }},
	{"rounds", 7, func(r *ServeResult) string { return fmt.Sprintf("%d of %d", r.Pairs-r.Dropped, r.Pairs) }},
	{"identical", 9, func(r *ServeResult) string { return yes(r.Identical) }},
}

// given writes a number that may be absent, and below zero.
func given(v *float64) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatFloat(*v, 'f', 1, 64)
}

// NewServeTable returns a table of the results of Serve that prints to w.
func NewServeTable(w io.Writer) *Table[ServeResult] { return &Table[ServeResult]{w, serveColumns} }

// Empty reports whether nothing was measured.
func (r *ServeReport) Empty() bool {
	return r == nil || len(r.Results) == 0 && r.Load == nil && r.Vanish == nil
}

// Mistaken says where the same prompt had different texts; empty: nowhere.
func (r *ServeReport) Mistaken() string {
	if bad := r.Different(); len(bad) > 0 {
		return fmt.Sprintf("a prompt had different texts through HTTP and directly, first at %s; run kvasir doctor", streams(bad[0]))
	}
	return ""
}

// Different returns the numbers of streams at which a prompt did not always have the same text.
func (r *ServeReport) Different() []int {
	var list []int
	for i := range r.Results {
		if x := &r.Results[i]; x.Identical != nil && !*x.Identical {
			list = append(list, x.Streams)
		}
	}
	return list
}

// Remarks says what has to be known beside the table.
func (r *ServeReport) Remarks() []string {
	if r.Empty() {
		return nil
	}
	var lines []string
	if len(r.Results) > 0 {
		where := "The client is another process, and its time is not the server's; it is woken for 16 KiB of a stream and for its end, not for each token"
		if !r.Settings.Apart {
			where = "The client is part of this process, so processor time is not told apart"
		}
		where += ". The door is all that is between a token and its connection, measured before a model that costs nothing and steps every 10 ms"
		lines = append(lines, "Medians of rounds: both ways in turns, counted from when all streams have begun to the end of the first. "+where+
			"; all share the cores of this machine.")
	}
	if x := r.Load; x != nil {
		lines = append(lines, x.words()...)
	}
	if x := r.Vanish; x != nil {
		lines = append(lines, x.words()...)
	}
	return lines
}

func (x *ServeVanish) words() []string {
	a, b := &x.Before, &x.After
	return []string{fmt.Sprintf("%d clients went in the middle of their streams, with %d sequences, %.1f MB, %d places and %d goroutines. After %.3f s there were %d, %.1f, %d and %d.",
		x.Clients, a.Sequences, float64(a.Memory)/1e6, a.Places, a.Goroutines, x.Seconds, b.Sequences, float64(b.Memory)/1e6, b.Places, b.Goroutines)}
}
