package engine

import "time"

// Measure has it that so many picks a second were measured of each worker, by its memory, just now.
func (s *Swarm) Measure(picks func(memory int64) float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.present {
		m := &w.session.speed
		m.mu.Lock()
		m.perPick, m.n, m.at = 1/picks(w.memory), speedMin, time.Now()
		m.mu.Unlock()
	}
}
