package bench

import (
	"context"
	"fmt"
	"time"

	"kvasir/wire/relay"
)

// RelayName is the name of the scenario Relay.
const RelayName = "relay"

// Limits of Relay.
const (
	relaySessionsMost = 5000
	relayAddresses    = 100 // of loopback, that workers dial from
	relayTripsLeast   = 100 // fewer have no p99
	relayIdleLeast    = 200 // sessions, fewer hide behind what is there once
)

// Relay measures what stands between workers and a backbone when there are many: what sessions cost that are
// only there, how they come, come back when the hub begins again, and end when a hop dies; and how long control
// takes beside full streams. Gateway, hub, backbone and all workers are in this process, with TLS on real sockets.
type Relay struct {
	Sessions int           // idle ones
	Idle     time.Duration // how long they are watched
	Trips    int           // control round trips that are measured
	Beside   time.Duration // for which streams are full before these
	Deaths   int           // sessions that stand when a hop dies
	Pace     float64       // handshakes a second that the hub takes when it begins again; 0: its default
}

// DefaultRelay takes less than a minute and one GiB.
func DefaultRelay() Relay {
	return Relay{Sessions: 500, Idle: 5 * time.Second, Trips: 200, Beside: 4 * time.Second, Deaths: 8}
}

// QuickRelay shows that everything works.
func QuickRelay() Relay {
	return Relay{Sessions: 30, Idle: 500 * time.Millisecond, Trips: 20, Beside: time.Second, Deaths: 3}
}

// Name says what is measured, in words.
func (x Relay) Name() string {
	return fmt.Sprintf("%d sessions through gateway and hub, with TLS, all ends on this machine", x.Sessions)
}

// relayFiles is how many files a session takes: a socket at each of six ends of TCP connections.
const relayFiles = 6

// Check returns an error, wrapping ErrSettings, that names the flag to change.
func (x Relay) Check() error {
	if x.Sessions < 1 || x.Sessions > relaySessionsMost {
		return fmt.Errorf("%w: --sessions %d, want 1 to %d", ErrSettings, x.Sessions, relaySessionsMost)
	}
	const others = 200 // files of the process and of the hub's and the backbone's own connections
	if most := filesMost(); most > 0 && x.Sessions*relayFiles+others > most {
		return fmt.Errorf("%w: --sessions %d need %d open files, and this process may have %d; ask for %d, or raise ulimit -n", ErrSettings,
			x.Sessions, x.Sessions*relayFiles+others, most, max(0, (most-others)/relayFiles))
	}
	return nil
}

// relayRun is a Run under way. One goroutine owns it.
type relayRun struct {
	x      Relay
	o      Observer[RelayReport, RelayResult]
	report RelayReport
}

// Run measures. When ctx ends it returns what is finished together with ctx's error.
func (x Relay) Run(ctx context.Context, o Observer[RelayReport, RelayResult]) (*RelayReport, error) {
	if err := x.Check(); err != nil {
		return nil, err
	}
	r := &relayRun{x: x, o: o}
	r.report = RelayReport{Machine: ReadMachine(), Results: []RelayResult{}, Settings: RelaySettings{
		Scenario: RelayName, Sessions: x.Sessions, Idle: x.Idle.Seconds(), Trips: x.Trips,
		Up: relayUp, RTT: milliseconds(relayRTT), Deaths: x.Deaths,
	}}
	o.begin(&r.report)
	for _, part := range []func(context.Context) error{r.many, r.control, r.deaths} {
		err := part(ctx)
		if ctx.Err() != nil {
			err = ctx.Err() // whatever else ended with it
		}
		if err != nil {
			return &r.report, err
		}
	}
	return &r.report, nil
}

// add judges a figure and keeps it.
func (r *relayRun) add(x RelayResult) {
	x.Scenario, x.Got = RelayName, round(x.Got)
	x.judge()
	r.report.Results = append(r.report.Results, x)
	r.o.row(x)
}

// unhurried is limits of a hub that many come to at once, without being sent away.
func unhurried() relay.Limits { return relay.Limits{Pace: -1} }
