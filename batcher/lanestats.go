package batcher

// LaneStats is what a lane is at.
type LaneStats struct {
	Rows    int // that wait for a batch
	Bytes   int // of them
	Flights int // batches under way
}

// Stats returns what the lane is at. It may be called after Close.
func (l *Lane) Stats() LaneStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := LaneStats{Rows: l.core.rows, Bytes: l.core.bytes}
	for _, f := range l.flights {
		if f.live > 0 {
			s.Flights++
		}
	}
	return s
}
