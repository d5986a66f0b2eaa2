package serve

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Limits of a connection before its request is read.
const (
	headTime  = 10 * time.Second
	headBytes = 16 << 10
	bodyTime  = 30 * time.Second // head and body together
	idleTime  = 2 * time.Minute
	copyTime  = 30 * time.Second // for each step of an answer
)

// Run answers on l until ctx ends. Then it takes no more, lets what is under way finish for as long as
// drain, cuts the rest and returns nil.
func (h *Handler) Run(ctx context.Context, l net.Listener, drain time.Duration) error {
	live, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	srv := &http.Server{
		Handler: h.front, ReadHeaderTimeout: headTime, ReadTimeout: bodyTime, IdleTimeout: idleTime, MaxHeaderBytes: headBytes,
		BaseContext: func(net.Listener) context.Context { return live },
		ErrorLog:    slog.NewLogLogger(h.o.Log.Handler(), slog.LevelInfo),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lingering{l}) }() // ends with Shutdown or Close
	select {
	case err := <-served:
		return errors.Join(err, srv.Close())
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	if srv.Shutdown(limit) != nil {
		cut()
		_ = srv.Close() // what is left is cut
	}
	err := <-served
	// Handlers of cut connections may still be on their way out; each holds a place.
	for range cap(h.places) {
		h.places <- struct{}{}
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
