package wan

import (
	"testing"
	"time"
)

// BenchmarkRoundTrip reports the round trip of a small message through a proxy on loopback.
func BenchmarkRoundTrip(b *testing.B) {
	for _, rtt := range []time.Duration{0, time.Millisecond, 13 * time.Millisecond, 50 * time.Millisecond} {
		b.Run(rtt.String(), func(b *testing.B) {
			_, c := proxied(b, Profile{RTT: rtt}, echoServer(b), 1)
			trips, err := ping(c[0], b.N, 0)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(quantile(trips, 0.5).Seconds()*1000, "p50-ms")
			b.ReportMetric(quantile(trips, 0.95).Seconds()*1000, "p95-ms")
		})
	}
}
