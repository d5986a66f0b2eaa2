package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

// asking is a client that asks again and again.
type asking struct {
	job  *clientJob
	http *http.Client
	body [][]byte // of each prompt

	mu      sync.Mutex
	counts  clientCounts
	refused []time.Duration // times to a refusal; those beyond samplesMost are left out
}

// samplesMost bounds what is kept of times.
const samplesMost = 1 << 20

// load asks for as long as the job says, and tells what became of it. What is under way then is given up.
func (j *clientJob) load(ctx context.Context, tell func(clientNews) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(j.Seconds*float64(time.Second)))
	defer cancel()
	t := &http.Transport{MaxIdleConnsPerHost: j.Clients, DisableCompression: true}
	defer t.CloseIdleConnections()
	a := &asking{job: j, http: &http.Client{Transport: t}}
	for _, p := range j.Prompts {
		a.body = append(a.body, j.body(p))
	}
	if err := tell(clientNews{Begun: true}); err != nil {
		return err
	}
	start, cpu := time.Now(), processCPU()
	if j.Kind == jobClosed {
		a.closed(ctx)
	} else {
		a.open(ctx)
	}
	slices.Sort(a.refused)
	a.counts.RefusedP50, a.counts.RefusedP99 = milliseconds(quantile(a.refused, 0.5)), milliseconds(quantile(a.refused, 0.99))
	return tell(clientNews{Took: time.Since(start), CPU: processCPU() - cpu, Asked: a.counts})
}

// quantile of a sorted list; 0 of none.
func quantile(list []time.Duration, q float64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	return list[min(int(q*float64(len(list))), len(list)-1)]
}

// closed has clients that ask one thing after another.
func (a *asking) closed(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range a.job.Clients {
		wg.Go(func() {
			for n := i; ctx.Err() == nil; n += a.job.Clients {
				a.ask(ctx, n)
			}
		})
	}
	wg.Wait()
}

// open asks at a rate. Where more are under way than may be, one is left out, and counted.
func (a *asking) open(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	places := make(chan struct{}, a.job.Clients)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	start, sent := time.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for due := int(time.Since(start).Seconds() * a.job.Rate); sent < due; sent++ {
			select {
			case places <- struct{}{}:
				n := sent
				wg.Go(func() {
					a.ask(ctx, n)
					<-places
				})
			default:
				a.mu.Lock()
				a.counts.Unsent++
				a.mu.Unlock()
			}
		}
	}
}

// ask asks once, and counts what comes of it.
func (a *asking) ask(ctx context.Context, n int) {
	start := time.Now()
	status, retry, text, err := a.request(ctx, n)
	took := time.Since(start)
	if ctx.Err() != nil {
		return // it was given up
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := &a.counts
	switch {
	case err == nil && status == http.StatusOK:
		c.Done++
	case err == nil && status == http.StatusTooManyRequests:
		c.Refused++
		if !retry {
			c.Silent++
		}
		if len(a.refused) < samplesMost {
			a.refused = append(a.refused, took)
		}
	default:
		if c.Failed++; c.Failed == 1 {
			c.Failure = fmt.Sprintf("status %d: %.100s, %v", status, text, err)
		}
	}
}

// request sends one, and reads the answer. text is what a refusal says.
func (a *asking) request(ctx context.Context, n int) (status int, retry bool, text []byte, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+a.job.Addr+"/v1/completions", bytes.NewReader(a.body[n%len(a.body)]))
	if err != nil {
		return 0, false, nil, err
	}
	q.Header.Set("Content-Type", "application/json")
	res, err := a.http.Do(q)
	if err != nil {
		return 0, false, nil, err
	}
	defer res.Body.Close() //nolint:errcheck // it was only read
	if res.StatusCode != http.StatusOK {
		text, err = io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return res.StatusCode, res.Header.Get("Retry-After") != "", text, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, false, nil, err
}
