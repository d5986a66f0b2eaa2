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
	s := LaneStats{Rows: l.core.rows, Bytes: l.core.bytes, Flights: l.busy}
	for _, f := range l.flights {
		if len(f.pieces) > 0 && f.live == 0 { // all have left
			s.Flights--
		}
	}
	return s
}
