package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Reason is why a sequence ended.
type Reason uint8

// Reasons.
const (
	Stop   Reason = iota // the model, or a stop text
	Length               // the asked number of tokens, or the context is full
	Abort                // the client left
	Failed               // it could not be finished

	reasons
)

// String is the word that stands in finished_reason, vLLM's.
func (r Reason) String() string { return [reasons]string{"stop", "length", "abort", "error"}[r] }

// latencies are the limits of histograms of seconds, and lengths those of tokens.
var (
	latencies = []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 50, 100, 200, 500}
	lengths   = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000}
)

// Requests counts what goes through a model. It is safe for concurrent use.
type Requests struct {
	first, between, perToken, whole prometheus.Histogram
	prompts, answers                prometheus.Histogram
	prompt, generated               prometheus.Counter
	ended                           [reasons]prometheus.Counter
	refused                         prometheus.Counter
}

// Requests adds the metrics of requests to a model.
func (r *Registry) Requests(model string) *Requests {
	m := prometheus.Labels{"model_name": model}
	histogram := func(name, help string, limits []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: m, Buckets: limits})
		r.reg.MustRegister(h)
		return h
	}
	count := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: m})
		r.reg.MustRegister(c)
		return c
	}
	q := &Requests{
		first:     histogram("vllm:time_to_first_token_seconds", "From a request to its first token.", latencies),
		between:   histogram("vllm:inter_token_latency_seconds", "From a token of a sequence to the next.", latencies),
		perToken:  histogram("vllm:request_time_per_output_token_seconds", "Mean time of a sequence from token to token.", latencies),
		whole:     histogram("vllm:e2e_request_latency_seconds", "From a request to its end.", latencies),
		prompts:   histogram("vllm:request_prompt_tokens", "Tokens of prompts.", lengths),
		answers:   histogram("vllm:request_generation_tokens", "Tokens of answers.", lengths),
		prompt:    count("vllm:prompt_tokens_total", "Tokens of prompts."),
		generated: count("vllm:generation_tokens_total", "Tokens generated."),
		refused:   count("kvasir_requests_refused_total", "Requests that were told to come again later, because too much waits."),
	}
	ended := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vllm:request_success_total", Help: "Sequences that have ended, by the reason.", ConstLabels: m,
	}, []string{"finished_reason"})
	r.reg.MustRegister(ended)
	for i := range q.ended {
		q.ended[i] = ended.WithLabelValues(Reason(i).String())
	}
	return q
}

// Refused counts a request that was told to come again later.
func (m *Requests) Refused() {
	if m != nil {
		m.refused.Inc()
	}
}

// Request is one that is under way. It is for one goroutine.
type Request struct {
	m         *Requests
	patient   bool // nobody waits for it: its times say nothing
	begun     time.Time
	started   bool // there was a token
	sequences []sequence
}

type sequence struct {
	tokens      int
	first, last time.Time
	over        bool
}

// Begin notes a request with so many choices. A patient one is that of a batch job: its tokens count, and
// not how long they took. Of nil Requests it returns nil, which counts nothing.
func (m *Requests) Begin(choices int, patient bool, now time.Time) *Request {
	if m == nil {
		return nil
	}
	return &Request{m: m, patient: patient, begun: now, sequences: make([]sequence, choices)}
}

// Prompt notes that the request was taken, with so many tokens of prompt.
func (r *Request) Prompt(tokens int) {
	if r == nil {
		return
	}
	r.m.prompt.Add(float64(tokens))
	r.m.prompts.Observe(float64(tokens))
}

// Token notes a token of a choice. It allocates nothing.
func (r *Request) Token(choice int, now time.Time) {
	if r == nil {
		return
	}
	r.m.generated.Inc()
	s := &r.sequences[choice]
	if s.tokens++; s.tokens == 1 {
		s.first = now
	} else if !r.patient {
		r.m.between.Observe(now.Sub(s.last).Seconds())
	}
	s.last = now
	if !r.started && !r.patient {
		r.m.first.Observe(now.Sub(r.begun).Seconds())
	}
	r.started = true
}

// EndChoice notes the end of a choice.
func (r *Request) EndChoice(choice int, why Reason) {
	if r == nil {
		return
	}
	s := &r.sequences[choice]
	if s.over {
		return
	}
	s.over = true
	r.m.ended[why].Inc()
	r.m.answers.Observe(float64(s.tokens))
	if s.tokens > 1 && !r.patient {
		r.m.perToken.Observe(s.last.Sub(s.first).Seconds() / float64(s.tokens-1))
	}
}

// End notes the end of the request, and why those of its choices ended that had not yet.
func (r *Request) End(why Reason, now time.Time) {
	if r == nil {
		return
	}
	for i := range r.sequences {
		r.EndChoice(i, why)
	}
	if !r.patient {
		r.m.whole.Observe(now.Sub(r.begun).Seconds())
	}
}
