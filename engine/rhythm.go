package engine

import (
	"cmp"
	"time"

	"kvasir/wire/relay"
)

// Rhythm is how often the parties of a swarm speak of work and pay. What is zero is as it should be outside of
// tests, where a night of kills is to fit into minutes.
type Rhythm struct {
	Report time.Duration // a backbone signs what a worker has done; 0: 10 s
	Remind time.Duration // workers and backbones give hubs what no gateway has read; 0: 30 s
	Credit time.Duration // a gateway reads the ledger of a hub; 0: 10 s
	Look   time.Duration // a worker looks whether its work is signed; 0: 5 s
	Retry  time.Duration // after a lost connection, at most; 0: see relay.Backoff
}

const (
	reportEvery = 10 * time.Second
	clerkEvery  = 30 * time.Second
	creditEvery = 10 * time.Second
)

func (r Rhythm) report() time.Duration { return cmp.Or(r.Report, reportEvery) }
func (r Rhythm) remind() time.Duration { return cmp.Or(r.Remind, clerkEvery) }
func (r Rhythm) credit() time.Duration { return cmp.Or(r.Credit, creditEvery) }

// decided is how often it is looked whether the rows of a worker that has left are decided.
func (r Rhythm) decided() time.Duration { return min(r.report(), time.Second) }

func (r Rhythm) backoff() relay.Backoff { return relay.Backoff{Max: r.Retry, Min: r.Retry} }
