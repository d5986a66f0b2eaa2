package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"

	"kvasir/engine/schedule"
	"kvasir/engine/serve"
	"kvasir/wire/relay"
)

// generator lets engine/serve ask an engine.
type generator struct{ e *Engine }

// Generate is serve.Generator's.
func (g generator) Generate(ctx context.Context, r serve.Request, emit func(string) error) (serve.Result, error) {
	req := Request{Prompt: r.Prompt, Tokens: r.Tokens}
	for _, m := range r.Messages {
		req.Messages = append(req.Messages, Message{Role: m.Role, Content: m.Content})
	}
	if req.Tokens == 0 {
		req.Tokens = g.e.Context()
	}
	res, err := g.e.Generate(ctx, req, Text(emit))
	switch {
	case errors.Is(err, schedule.ErrFull):
		err = fmt.Errorf("%w: %w", serve.ErrBusy, err)
	case err != nil && res.PromptTokens == nil: // it never came to generating
		err = fmt.Errorf("%w: %w", serve.ErrRequest, err)
	}
	first := res.First()
	return serve.Result{Prompt: len(res.PromptTokens), Tokens: len(first.Tokens), Length: first.Stop == StopLength}, err
}

// ServeOptions are for NewServeNode.
type ServeOptions struct {
	BackboneOptions
	Listen string
}

// ServeNode is a backbone with its workers that answers over HTTP.
type ServeNode struct {
	*Backbone
	Addr string // that it listens on

	handler *serve.Handler
	l       net.Listener
}

// NewServeNode listens, opens a model, and begins to take workers. Run is to follow.
func NewServeNode(o ServeOptions) (*ServeNode, error) {
	l, err := relay.Listen(o.Listen)
	if err != nil {
		return nil, err
	}
	b, err := NewBackbone(o.BackboneOptions)
	if err != nil {
		_ = l.Close() // nobody was answered
		return nil, err
	}
	e := b.Engine()
	return &ServeNode{
		Backbone: b, Addr: l.Addr().String(), l: l,
		handler: serve.New(generator{e}, serve.Options{
			Model: e.Name(), Log: o.Log,
			// What waits costs little until it is its turn.
			Requests: cmp.Or(o.Sequences, schedule.DefaultSequences) + schedule.DefaultWaiting,
		}),
	}, nil
}

// Model is the name of what is served.
func (n *ServeNode) Model() string { return n.Engine().Name() }

// Run serves until ctx ends, finishes what is under way, sends the workers away and returns nil; or until
// every hub has refused this backbone for good.
func (n *ServeNode) Run(ctx context.Context) error {
	defer n.close()
	ctx, cancel := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() { // ends with cancel
		select {
		case <-n.Failed():
			cancel()
			failed <- n.Err()
		case <-ctx.Done():
			failed <- nil
		}
	}()
	err := n.handler.Run(ctx, n.l, drainTime)
	cancel()
	return errors.Join(err, <-failed)
}

func (n *ServeNode) close() {
	_ = n.l.Close() // served, it is closed already
	n.Backbone.Close()
}
