package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Relay adds what a hub or a gateway counts: the counts of relay.Hub and relay.Gateway by name, and how
// many there are of what now.
func (r *Registry) Relay(role string, counts func() map[string]uint64, open func() map[string]int) {
	var (
		events  = counter("kvasir_relay_events_total", "What came: connections accepted, workers, backbones, pairs, splices.", "role", "event")
		refused = counter("kvasir_relay_refused_total", "Connections refused, by the reason.", "role", "reason")
		ended   = counter("kvasir_relay_ended_total", "Splices cut, and workers that left unpaired, by the reason.", "role", "reason")
		bytes   = counter("kvasir_relay_bytes_total", "Bytes passed on, by the direction.", "role", "direction")
		now     = gauge("kvasir_relay_open", "How many there are now, by what.", "role", "what")
	)
	r.reg.MustRegister(collector(func(to chan<- prometheus.Metric) {
		for name, n := range counts() {
			d, label := events, name
			for _, p := range []struct {
				prefix string
				d      desc
			}{{"refused_", refused}, {"cut_", ended}, {"left_", ended}, {"ended_", ended}, {"bytes_", bytes}} {
				if rest, ok := strings.CutPrefix(name, p.prefix); ok {
					if d, label = p.d, rest; p.prefix == "left_" {
						label = name // not to be taken for a cut
					}
					break
				}
			}
			d.put(to, float64(n), role, label)
		}
		for what, n := range open() {
			now.put(to, float64(n), role, what)
		}
	}))
}
