package engine

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"time"

	"kvasir/engine/metrics"
	"kvasir/wire/relay"
)

// MetricsOptions say where a hub or a gateway answers /metrics: on a listener of its own, so that no other
// path of it answers without a token. The zero value is nowhere.
type MetricsOptions struct {
	Listen string
	Build  metrics.Build
}

// metricsServer answers /metrics, and nothing else. A nil one is none.
type metricsServer struct {
	l     net.Listener
	srv   *http.Server
	ended chan struct{}
}

// open begins to answer, if somewhere; add adds what is particular to the node.
func (o MetricsOptions) open(log *slog.Logger, add func(*metrics.Registry)) (*metricsServer, error) {
	if o.Listen == "" {
		return nil, nil
	}
	l, err := relay.Listen(o.Listen)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	r := metrics.New(o.Build)
	add(r)
	mux := http.NewServeMux()
	mux.Handle("/metrics", r.Handler())
	s := &metricsServer{l: l, ended: make(chan struct{}), srv: &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelInfo),
	}}
	go func() { // ends with close
		defer close(s.ended)
		if err := s.srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics are not answered any more", "err", err)
		}
	}()
	return s, nil
}

// addr is where it listens; empty: nowhere.
func (s *metricsServer) addr() string {
	if s == nil {
		return ""
	}
	return s.l.Addr().String()
}

// close ends it.
func (s *metricsServer) close() {
	if s == nil {
		return
	}
	soon, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.srv.Shutdown(soon) != nil {
		_ = s.srv.Close() // what is left is cut
	}
	<-s.ended
}

// hubMetrics adds what a hub counts.
func hubMetrics(h *relay.Hub, books func() map[string]uint64) func(*metrics.Registry) {
	return func(r *metrics.Registry) {
		r.Relay("hub", both(h.Counts, books), func() map[string]int {
			s := h.Status()
			return map[string]int{"connections": s.Conns, "waiting_workers": s.Waiting, "backbones": s.Backbones, "sessions": s.Sessions}
		})
	}
}

// gatewayMetrics adds what a gateway counts.
func gatewayMetrics(g *relay.Gateway, books func() map[string]uint64) func(*metrics.Registry) {
	return func(r *metrics.Registry) {
		r.Relay("gateway", both(g.Counts, books), func() map[string]int { return map[string]int{"connections": g.Active()} })
	}
}

// both are the counts of two, whose names differ; the second may be nil.
func both(a, b func() map[string]uint64) func() map[string]uint64 {
	if b == nil {
		return a
	}
	return func() map[string]uint64 {
		all := maps.Clone(a())
		maps.Copy(all, b())
		return all
	}
}
