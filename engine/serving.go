package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"kvasir/engine/access"
	"kvasir/engine/batches"
	"kvasir/engine/chat"
	"kvasir/engine/grammar"
	"kvasir/engine/metrics"
	"kvasir/engine/page"
	"kvasir/engine/sample"
	"kvasir/engine/schedule"
	"kvasir/engine/serve"
	"kvasir/engine/tokenizer"
	"kvasir/wire/relay"
)

// generator lets engine/serve ask an engine.
type generator struct {
	e       *Engine
	metrics *metrics.Requests // nil: none
}

// Generate is serve.Generator's.
func (g generator) Generate(ctx context.Context, r serve.Request, emit func(serve.Piece) error) (serve.Result, error) {
	counts, call := make([]int, r.Choices), access.From(ctx)
	if !r.Batch { // lines of batches have what the others leave, and no places of their key
		if err := call.Take(r.Choices); err != nil {
			return serve.Result{}, tooMany(err, r.All)
		}
		defer call.Give(r.Choices)
	}
	m := g.metrics.Begin(r.Choices, r.Batch, time.Now())
	req := g.request(r)
	req.taken = func(n int) { m.Prompt(n); call.Prompt(n) }
	res, err := g.e.Generate(ctx, req, func(p Piece) error {
		out := serve.Piece{Choice: p.Choice, Text: p.Text, More: p.More}
		switch {
		case p.Last:
			out.End = &serve.Outcome{Tokens: counts[p.Choice], Length: p.Stop == StopLength}
			m.EndChoice(p.Choice, reason(p.Stop))
		case r.Sampling.Logprobs:
			out.Token = g.logprob(p.Token)
			out.Token.At = p.Begin
		}
		if !p.Last {
			counts[p.Choice]++
			m.Token(p.Choice, p.At) // it may have waited for others here
			call.Token()
		}
		return emit(out)
	})
	switch {
	case errors.Is(err, schedule.ErrFull):
		g.metrics.Refused()
		err = fmt.Errorf("%w: %w", serve.ErrBusy, err)
	case err != nil && res.PromptTokens == nil: // it never came to generating
		err = fmt.Errorf("%w: %w", serve.ErrRequest, blame(err, r))
	default:
		m.End(ending(ctx), time.Now())
	}
	out := serve.Result{Prompt: len(res.PromptTokens)}
	for i := range res.Choices {
		c := &res.Choices[i]
		out.Choices = append(out.Choices, serve.Outcome{Tokens: len(c.Tokens), Length: c.Stop == StopLength})
	}
	return out, err
}

// tooMany turns the refusal of a key's sequences into what may be tried again, or never can: all is what the
// request asks for with all its prompts.
func tooMany(err error, all int) error {
	var e *access.SequencesError
	if errors.As(err, &e) && max(e.Asked, all) > e.Limit {
		param := "n"
		if e.Asked <= e.Limit {
			param = "prompt"
		}
		return fmt.Errorf("%w: %w", serve.ErrRequest, &serve.ParamError{Param: param, Err: &access.SequencesError{Asked: all, Limit: e.Limit}})
	}
	return &serve.BusyError{Reason: err.Error(), Retry: time.Second}
}

// reason is why a choice ended, in the words of the metrics.
func reason(stop string) metrics.Reason {
	if stop == StopLength {
		return metrics.Length
	}
	return metrics.Stop
}

// ending is why choices ended that did not end by themselves.
func ending(ctx context.Context) metrics.Reason {
	if ctx.Err() != nil {
		return metrics.Abort
	}
	return metrics.Failed
}

// Reply is serve.Generator's.
func (g generator) Reply(r serve.Request) (chat.ReplyOptions, error) {
	o, err := g.e.replyOptions(g.request(r))
	if err != nil {
		err = fmt.Errorf("%w: %w", serve.ErrRequest, blame(err, r))
	}
	return o, err
}

func (g generator) request(r serve.Request) Request {
	req := Request{
		Prompt: r.Prompt, Messages: r.Messages, Template: r.Template, Tokens: r.Tokens, Choices: r.Choices,
		Sampling: &r.Sampling, Stop: r.Stop, Format: Format{Schema: r.Schema, JSON: r.JSON}, Calls: r.Calls, Batch: r.Batch,
	}
	if req.Tokens == 0 {
		req.Tokens = g.e.Context()
	}
	return req
}

// logprob puts text to a token.
func (g generator) logprob(t sample.Token) *serve.Logprob {
	l := &serve.Logprob{Text: g.e.tokens.AppendToken(nil, t.ID), Logprob: t.Logprob}
	for _, c := range t.Top {
		l.Top = append(l.Top, serve.Logprob{Text: g.e.tokens.AppendToken(nil, c.ID), Logprob: c.Logprob})
	}
	return l
}

// blame names the parameter that an error is about, where it is one of a request's.
func blame(err error, r serve.Request) error {
	var named *serve.ParamError
	var long *LengthError
	var option *chat.OptionError
	text := "prompt"
	if len(r.Messages) > 0 {
		text = "messages"
	}
	switch {
	case errors.As(err, &named):
		return err
	case errors.As(err, &long):
		return &serve.ParamError{Param: text, Code: "context_length_exceeded", Err: err}
	case errors.Is(err, ErrEmptyPrompt), errors.Is(err, tokenizer.ErrTooLong):
		return &serve.ParamError{Param: text, Err: err}
	case errors.Is(err, grammar.ErrSchema), errors.Is(err, grammar.ErrSyntax), errors.Is(err, grammar.ErrLimit):
		return &serve.ParamError{Param: "response_format", Err: err}
	case errors.Is(err, sample.ErrStop):
		return &serve.ParamError{Param: "stop", Err: err}
	case errors.As(err, &option):
		return &serve.ParamError{Param: map[string]string{"Tools": "tools", "Extra": "chat_template_kwargs"}[option.Option], Err: err}
	case errors.Is(err, chat.ErrInput), errors.Is(err, chat.ErrRaised), errors.Is(err, chat.ErrLimit):
		return &serve.ParamError{Param: "messages", Err: err}
	}
	return err
}

// ServeOptions are for NewServeNode.
type ServeOptions struct {
	BackboneOptions
	Listen string
	Door   DoorOptions
	Build  metrics.Build // what the metrics say of this program

	// Embedded is where workers come to a hub and a gateway that are part of this node; empty: it has none.
	// Hubs are to be empty then.
	Embedded string

	// Database, the address of a PostgreSQL database, and Files, a folder, are what the serving nodes share
	// that work on the same batch jobs. Both empty: batch jobs are this node's own, in the home folder.
	Database string
	Files    string
}

// ServeNode is a backbone with its workers that answers over HTTP.
type ServeNode struct {
	*Backbone
	Addr string // that it listens on
	TLS  bool   // it speaks that
	Keys bool   // it asks for API keys

	handler *serve.Handler
	metrics *metrics.Registry
	batches *batches.Store // nil: none
	unlock  func()         // of their folder
	l       net.Listener

	since    time.Time
	embedded *embedded // nil: hubs are elsewhere, or there are none
}

// NewServeNode listens, opens a model, and begins to take workers. Run is to follow.
func NewServeNode(o ServeOptions) (*ServeNode, error) {
	l, err := relay.Listen(o.Listen)
	if err != nil {
		return nil, err
	}
	d, err := o.Door.open(l, o.Home, o.Log)
	if err != nil {
		_ = l.Close() // nobody was answered
		return nil, err
	}
	var own *embedded
	if o.Embedded != "" {
		if own, err = newEmbedded(o.Embedded, &o.BackboneOptions); err != nil {
			_ = l.Close() // nobody was answered
			return nil, err
		}
	}
	b, err := NewBackbone(o.BackboneOptions)
	if err != nil {
		_ = l.Close() // nobody was answered
		return nil, errors.Join(err, own.close())
	}
	e := b.Engine()
	m, f := metrics.New(o.Build), access.NewForecast(nil)
	n := &ServeNode{
		Backbone: b, Addr: l.Addr().String(), TLS: d.tls, Keys: d.keys, l: d.l, unlock: func() {}, embedded: own,
		since: time.Now(), metrics: m,
		handler: serve.New(generator{e, m.Requests(e.Name())}, serve.Options{
			Model: e.Name(), Log: o.Log,
			// What waits costs little until it is its turn.
			Requests: cmp.Or(o.Sequences, schedule.DefaultSequences) + cmp.Or(o.Waiting, schedule.DefaultWaiting),
			Retry:    f.Wait, Free: f.Free,
		}),
	}
	n.handler.Handle(TracePath, http.HandlerFunc(n.ServeTrace))
	if err := n.openBatches(o, d.guard); err != nil {
		return nil, errors.Join(err, n.close())
	}
	n.handler.Mount(page.New(n.status, nil), page.Patterns...)
	n.observe()
	n.handler.Wrap(d.guard.Around)
	return n, nil
}

// Busy is how many requests are being answered.
func (n *ServeNode) Busy() int { return n.handler.Busy() }

// Model is the name of what is served.
func (n *ServeNode) Model() string { return n.Engine().Name() }

// Run serves until ctx ends, finishes what is under way, sends the workers away and returns nil; or until
// every hub has refused this backbone for good.
func (n *ServeNode) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	failed := make(chan error, 2)
	go func() { // ends with cancel
		select {
		case <-n.Failed():
			cancel()
			failed <- n.Err()
		case <-ctx.Done():
			failed <- nil
		}
	}()
	go func() { // likewise
		err := n.embedded.failed(ctx)
		cancel()
		failed <- err
	}()
	err := n.handler.Run(ctx, n.l, drainTime)
	cancel()
	return errors.Join(err, <-failed, <-failed, n.close())
}

// close ends what is left. Workers, and the work that is signed for, are done with before their hub is.
func (n *ServeNode) close() error {
	_ = n.l.Close() // served, it is closed already
	if n.batches != nil {
		_ = n.batches.Close() // its lines are computed again the next time
	}
	n.unlock()
	n.Backbone.Close()
	return n.embedded.close()
}
