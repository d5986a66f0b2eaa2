package main

import (
	"log/slog"
	"time"

	"github.com/lmittmann/tint"
)

// newLogger writes tinted lines for a person, JSON for a machine. At the default level nothing is
// logged that is also returned as an error: a failure stays one line.
func newLogger(s *screen, l logLevel) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l)); err != nil {
		panic("BUG: log level " + string(l) + " passed its check")
	}
	if !s.terminal {
		return slog.New(slog.NewJSONHandler(s, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(tint.NewTextHandler(s, &tint.Options{
		Level: level, TimeFormat: time.TimeOnly, NoColor: !s.colour,
	}))
}
