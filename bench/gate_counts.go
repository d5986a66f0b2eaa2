package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"kvasir/wire/ws"
)

// gateCounter is something that is counted exactly.
type gateCounter struct {
	name string // in baselines
	text string // for people
	unit string
}

// Ways on which a dispatch is counted.
const (
	onSession = "session" // sealed frames over one connection: worker and backbone alone
	onSwarm   = "swarm"   // through gateway and hub
)

// gateCounters lists what is counted, in the order of the report.
func gateCounters() []gateCounter {
	var list []gateCounter
	for _, way := range []string{onSession, onSwarm} {
		for _, rows := range gateRows {
			of := fmt.Sprintf("%s, %d rows: ", way, rows)
			if rows == 1 {
				of = way + ", 1 row: "
			}
			add := func(name, text, unit string) {
				list = append(list, gateCounter{counterName(way, rows, name), of + text, unit})
			}
			add("allocs", "allocations a dispatch, all ends, but for one a read of TLS", "")
			add("heap_bytes", "new memory a dispatch, all ends, likewise", "B")
			add("out_bytes", "to the worker a row", "B")
			add("back_bytes", "from the worker a row", "B")
			add("worker_writes", "writes and frames of the worker a dispatch", "")
			add("worker_reads", "reads of the worker a dispatch", "")
			if way == onSession {
				add("backbone_writes", "writes and frames of the backbone a dispatch", "")
				add("backbone_reads", "reads of the backbone a dispatch", "")
				add("backbone_copied", "answer copied between buffers a dispatch", "B")
			}
		}
		list = append(list, gateCounter{way + "_slab_bytes", way + ": slabs in use after its end", "B"})
	}
	return append(list, []gateCounter{
		{"frame_allocs", "frame of 16,000 bytes: allocations, both ends", ""},
		{"frame_bytes", "frame of 16,000 bytes: on the wire", "B"},
		{"frame_writes", "frame of 16,000 bytes: writes", ""},
		{"frame_reads", "frame of 16,000 bytes: reads", ""},
		{"frame_copied_out", "frame of 16,000 bytes: copied before it is written", "B"},
		{"frame_copied_in", "frame of 16,000 bytes: copied after it is read", "B"},
		{"local_allocs", "64 rows computed here: allocations", ""},
	}...)
}

func counterName(way string, rows int, name string) string {
	return fmt.Sprintf("%s_%d_%s", way, rows, name)
}

// gateDispatches is how often each batch is sent. What a ping, or a timer on a machine that is late, adds now and
// then does not show, and what every dispatch does does.
const gateDispatches = 61

// settled is what a dispatch takes, if list has what each of them took: the lower quartile, or, of reads and what they
// copy, the fewest, since on a busy machine the same bytes come in more of them. The first dispatch is no part of
// that: those before may have left it something.
func settled(name string, list []float64) float64 {
	if (strings.HasSuffix(name, "reads") || strings.HasSuffix(name, "copied")) && len(list) > 1 {
		return slices.Min(list[1:])
	}
	return lowerQuartile(list)
}

func lowerQuartile(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/4]
}

// counters counts everything. With one processor for all goroutines they take turns in an order that does
// not depend on what else the machine does, so that counts repeat.
func (r *gateRun) counters(ctx context.Context) error {
	if len(r.g.Ratios) > 0 {
		return nil
	}
	r.progress("making a layer")
	l, err := newGateLayer(ctx, r.g.sends, r.g.wrap)
	if err != nil {
		return err
	}
	got := gateCounts{}
	r.progress("counting frames")
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if err := countFrames(ctx, r.g.sends, got); err != nil {
		return err
	}
	if err := l.countLocal(ctx, got); err != nil {
		return err
	}
	for way, open := range map[string]func(context.Context) (*gatePath, error){onSession: l.openSession, onSwarm: l.openSwarm} {
		r.progress("counting dispatches, " + way)
		for range gateLooks {
			if err := l.countWay(ctx, way, open, got); err != nil {
				return fmt.Errorf("counting dispatches, %s: %w", way, err)
			}
			if !r.g.Update && !r.grew(way, got) {
				break
			}
		}
	}
	for _, c := range gateCounters() {
		x := r.base.judgeCounter(c, got.least(c.name))
		x.bound = got.median(c.name)
		r.line(x)
	}
	return ctx.Err()
}

// gateLooks is how often a way is counted at most where a count has grown, and always for new baselines: what grew
// does so every time, and what timers add on a busy machine does not.
const gateLooks = 5

// grew reports whether a count of a way is more than its baseline.
func (r *gateRun) grew(way string, got gateCounts) bool {
	return slices.ContainsFunc(gateCounters(), func(c gateCounter) bool {
		return strings.HasPrefix(c.name, way+"_") && r.base.judgeCounter(c, got.least(c.name)).Verdict == grew
	})
}

// gateCounts are what was counted, by name, at each look.
type gateCounts map[string][]float64

func (c gateCounts) note(name string, v float64) { c[name] = append(c[name], v) }

// least is what is judged.
func (c gateCounts) least(name string) float64 { return slices.Min(c[name]) }

// median is what may be the bound of later runs.
func (c gateCounts) median(name string) float64 {
	return slices.Sorted(slices.Values(c[name]))[len(c[name])/2]
}

// countLocal counts what computing allocates.
func (l *gateLayer) countLocal(ctx context.Context, got gateCounts) error {
	rows := slices.Max(gateRows)
	var list []float64
	return undisturbed(func() error {
		for range l.sends {
			before := allocatedNow()
			if err := l.once(ctx, l.x, rows); err != nil {
				return err
			}
			list = append(list, float64(allocatedNow().objects-before.objects))
		}
		got.note("local_allocs", lowerQuartile(list))
		return nil
	})
}

// countWay counts dispatches of every batch over a way, and whether it leaves slabs in use.
func (l *gateLayer) countWay(ctx context.Context, way string, open func(context.Context) (*gatePath, error), got gateCounts) error {
	before := inUse()
	p, err := open(ctx)
	if err != nil {
		return err
	}
	for _, rows := range gateRows {
		if err = l.countDispatches(ctx, p, way, rows, got); err != nil {
			break
		}
	}
	p.close()
	left := way + "_slab_bytes"
	got[left] = []float64{slices.Max(append(got[left], float64(inUse()-before)))} // a leak may be rare
	return err
}

// countDispatches sends batches one by one and notes what each of them takes.
func (l *gateLayer) countDispatches(ctx context.Context, p *gatePath, way string, rows int, got gateCounts) error {
	for range 1 + l.sends/4 { // records, windows and pools grow
		if err := l.once(ctx, p.x, rows); err != nil {
			return err
		}
	}
	lists := map[string][]float64{}
	note := func(name string, v int64, per int) {
		lists[name] = append(lists[name], float64(v)/float64(per))
	}
	made, err := newObjects(l.sends, func() error {
		for range l.sends {
			w0, b0 := p.worker.now(), p.backbone.now()
			if err := l.once(ctx, p.x, rows); err != nil {
				return err
			}
			w, b := p.worker.now(), p.backbone.now()
			note("out_bytes", w.in-w0.in, rows)
			note("back_bytes", w.out-w0.out, rows)
			note("worker_writes", w.writes-w0.writes, 1)
			note("worker_reads", w.reads-w0.reads, 1)
			note("backbone_writes", b.writes-b0.writes, 1)
			note("backbone_reads", b.reads-b0.reads, 1)
			note("backbone_copied", b.copied-b0.copied, 1)
		}
		return nil
	})
	got.note(counterName(way, rows, "allocs"), float64(made.objects))
	got.note(counterName(way, rows, "heap_bytes"), float64(made.bytes))
	for name, list := range lists {
		got.note(counterName(way, rows, name), round(settled(name, list)))
	}
	return err
}

// framesAtOnce fit the buffer of a socket, so that they can be written before the first is read.
const framesAtOnce = 3

// countFrames counts what frames cost that go from one end of a TCP connection to the other.
func countFrames(ctx context.Context, sends int, got gateCounts) error {
	c, s, err := tcpPair(ctx)
	if err != nil {
		return err
	}
	own := make([]byte, ws.Headroom+chunkBytes)
	out, in := &tap{Conn: c, own: own}, &tap{Conn: s}
	client, server := ws.New(out, ws.Client, nil, ws.Options{}), ws.New(in, ws.Server, nil, ws.Options{})
	defer client.CloseNow()
	defer server.CloseNow()
	into := make([]byte, readBytes)
	lists := map[string][]float64{}
	note := func(name string, v int64) { lists[name] = append(lists[name], round(float64(v)/framesAtOnce)) }
	err = undisturbed(func() error {
		for range sends {
			a0, o0, i0 := allocatedNow(), out.now(), in.now()
			for range framesAtOnce {
				if err := client.WriteSlab(ws.Binary, own); err != nil {
					return err
				}
			}
			for range framesAtOnce {
				if _, _, err := server.ReadMessage(into); err != nil {
					return err
				}
			}
			a, o, i := allocatedNow(), out.now(), in.now()
			note("frame_allocs", int64(a.objects-a0.objects))
			note("frame_bytes", i.in-i0.in)
			note("frame_writes", o.writes-o0.writes)
			note("frame_reads", i.reads-i0.reads)
			note("frame_copied_out", o.copied-o0.copied)
			note("frame_copied_in", i.copied-i0.copied)
		}
		return nil
	})
	for name, list := range lists {
		got.note(name, lowerQuartile(list))
	}
	return err
}
