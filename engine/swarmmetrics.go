package engine

import (
	"kvasir/batcher"
	"kvasir/wire/link"
)

// Metrics is what a swarm has done and is at. All of it is read at one moment of the swarm; the numbers of
// a worker are read one after the other.
type Metrics struct {
	Workers []WorkerMetrics // present, in the order of joining
	Local   *batcher.Stats  // this machine, for what no worker answers; nil: it computes nothing

	// Left and what follows is what workers have done who are gone: with the present ones it comes to what the
	// swarm has done, which never falls.
	Left       batcher.Counts
	LeftFaults batcher.Faults
	LeftOut    uint64 // bytes to them
	LeftBack   uint64
	Sessions   int64 // of those who are gone

	Plans int64 // made, at joins, at leaves and in between
	Moves int64 // that workers were told to load something
}

// WorkerMetrics is one worker that is present.
type WorkerMetrics struct {
	ID  string // first characters of its key
	Hub string // that it came by
	batcher.Stats
	Lane    batcher.LaneStats // what waits for it, and what is under way
	Session link.Stats        // RTT, bytes each way, rates; RTT is the last, MinRTT the smallest lately
	Experts int               // that it holds
	Moving  bool              // it loads what it was assigned
}

// Metrics returns what the swarm has done and is at. It costs the callers of Experts nothing but a moment's
// lock.
func (s *Swarm) Metrics() Metrics {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.left
	for _, w := range s.parting {
		m.leftWith(w)
	}
	for _, w := range s.present {
		m.Workers = append(m.Workers, WorkerMetrics{
			ID: w.id, Hub: w.hub, Stats: w.member.Stats(), Lane: w.lane.Stats(), Session: w.session.Stats(),
			Experts: w.held.count(), Moving: w.move != nil,
		})
	}
	if local := s.dispatcher.Fallback(); local != nil {
		stats := local.Stats()
		m.Local = &stats
	}
	return m
}

// leftWith adds what a worker has done that has left. Under Swarm.mu.
func (m *Metrics) leftWith(w *attached) {
	stats, session := w.member.Stats(), w.session.Stats()
	m.Left.Add(&stats.Counts)
	m.LeftFaults.Add(&stats.Faults)
	m.LeftOut += session.BytesOut
	m.LeftBack += session.BytesIn
	m.Sessions++
}

// Metrics returns what the workers have done and are at; nothing if there are no hubs.
func (b *Backbone) Metrics() Metrics {
	if b.swarm == nil {
		return Metrics{}
	}
	return b.swarm.Metrics()
}
