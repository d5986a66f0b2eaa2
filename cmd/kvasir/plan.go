package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"kvasir/batcher/place"
)

type planCmd struct {
	Swarm filePath `help:"File that describes the swarm." placeholder:"FILE"`
	jsonFlag
}

// Help is printed by kvasir plan --help.
func (planCmd) Help() string {
	return `Says who would hold which experts, what bounds the whole and how fast it would be, before anybody joins. Everything but the first six keys has a default: no bound, or nothing held.

    [model]
    layers = 48               # or all of these: file = "model.gguf"
    experts = 256             # of a layer
    top_k = 8                 # of a token
    hidden = 3072
    expert_bytes = 5640192

    [backbone]
    layer_ms = 2.5            # its own work in a layer, for one micro-batch
    batch = 512               # rows of a micro-batch
    up_mbit = 1000            # to all workers together
    down_mbit = 1000
    sequences = 2048          # that have room in its memory
    flights = 16              # the most micro-batches under way
    memory_gb = 8             # for experts of its own,
    rows = 20000              # and how many expert-rows a second it computes
    home = 1                  # layers at either end that stay with it
    copies = 2                # how many workers hold a layer, if they can

    [[worker]]
    name = "attic"
    count = 3                 # so many of the kind
    memory_gb = 32
    rows = 200000             # expert-rows a second
    rtt_ms = 13
    up_mbit = 100             # from the worker
    down_mbit = 500           # to the worker
    cached = ["0-15", "16:0-127"]

An expert-row is one pick: a token has top_k of them in a layer.

Examples:

    kvasir plan --swarm swarm.toml
    kvasir plan --swarm swarm.toml --json`
}

// planResult is what kvasir plan --json prints.
type planResult struct {
	Swarm       string `json:"swarm"`
	Layers      int    `json:"layers"`
	Experts     int    `json:"experts_per_layer"`
	TopK        int    `json:"experts_per_token"`
	ExpertBytes int64  `json:"expert_bytes"` // of all
	Batch       int    `json:"batch"`
	place.Plan
}

// Run prints the plan of a swarm.
func (c *planCmd) Run(_ context.Context, a *app) error {
	if c.Swarm == "" {
		return usagef("plan needs the description of a swarm: kvasir plan --swarm FILE (see kvasir plan --help)")
	}
	f, err := readSwarm(string(c.Swarm))
	if err != nil {
		return err
	}
	p := place.Make(f.model, f.base, f.workers)
	r := planResult{
		Swarm: string(c.Swarm), Layers: f.model.Layers, Experts: f.model.Experts, TopK: f.model.TopK,
		ExpertBytes: f.model.Bytes(), Batch: cmp.Or(f.base.Batch, place.DefaultBatch), Plan: p,
	}
	if c.JSON {
		return a.stdout.printJSON(r)
	}
	r.print(a.stdout)
	return nil
}

func (r *planResult) print(s *screen) {
	f := &r.Forecast
	t := &table{}
	t.add("experts", fmt.Sprintf("%d layers of %d, %s", r.Layers, r.Experts, size(uint64(r.ExpertBytes))))
	if len(r.Missing) > 0 {
		t.add("missing", holds(r.Missing, r.Experts)+": nobody has memory for them, so nothing can run")
	} else {
		t.add("tokens/s", fmt.Sprintf("%.4g with %s under way, %.4g with one", f.Tokens, microBatches(f.Flights), f.Serial))
		t.add("bound by", r.bound())
		t.add("to hide all waiting", fmt.Sprintf("%s of %d rows", microBatches(f.Needed), r.Batch))
		t.add("one step", fmt.Sprintf("%v, of which %v round trips; what bounds it works %v of it",
			short(f.Step), short(f.RoundTrips), short(f.Busiest)))
	}
	if len(r.Backbone) > 0 {
		t.add("backbone", holds(r.Backbone, r.Experts))
	}
	t.print(s)
	s.printf("\n")
	w := &table{
		head:  []string{"worker", "size", "to fetch", "busy", "holds"},
		right: []bool{false, true, true, true, false},
	}
	for _, x := range r.Workers {
		if !x.Used {
			w.add(x.Name, "", "", "", x.Why)
			continue
		}
		w.add(x.Name, size(uint64(x.Bytes)), size(uint64(x.Fetch)), strconv.Itoa(int(100*x.Busy+0.5))+" %", holds(x.Ranges, r.Experts))
	}
	w.print(s)
}

// bound says what would have to be more for the swarm to be faster.
func (r *planResult) bound() string {
	f := &r.Forecast
	switch f.Bound {
	case place.ByAttention:
		return "attention: what the backbone computes itself"
	case place.ByMemory:
		return fmt.Sprintf("memory: the backbone has room for %s of %d rows", microBatches(f.Flights), r.Batch)
	case place.ByRoundTrips:
		return fmt.Sprintf("round trips: only %s may be under way", microBatches(f.Flights))
	}
	return fmt.Sprintf("%s of %s", f.Bound, f.Who)
}

func microBatches(n int) string {
	if n == 1 {
		return "1 micro-batch"
	}
	return fmt.Sprintf("%d micro-batches", n)
}

// short writes a duration in three digits.
func short(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d >= 1000*unit {
		unit *= 10
	}
	return d.Round(unit)
}

// holds writes ranges as a person would: "layers 0-15, 31; layer 16: 0-127".
func holds(list []place.Range, experts int) string {
	var layers, parts []string
	for i := 0; i < len(list); i++ {
		r := list[i]
		if r.Lo > 0 || r.Hi < experts {
			if n := len(parts); i > 0 && n > 0 && list[i-1].Layer == r.Layer {
				parts[n-1] += fmt.Sprintf(", %d-%d", r.Lo, r.Hi-1)
			} else {
				parts = append(parts, fmt.Sprintf("layer %d: %d-%d", r.Layer, r.Lo, r.Hi-1))
			}
			continue
		}
		first := r.Layer
		for i+1 < len(list) && list[i+1] == (place.Range{Layer: list[i].Layer + 1, Lo: 0, Hi: experts}) {
			i++
		}
		if last := list[i].Layer; last > first {
			layers = append(layers, fmt.Sprintf("%d-%d", first, last))
		} else {
			layers = append(layers, strconv.Itoa(first))
		}
	}
	if layers != nil {
		parts = append([]string{"layers " + strings.Join(layers, ", ")}, parts...)
	}
	return strings.Join(parts, "; ")
}
