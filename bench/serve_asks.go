package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// asking is a client that asks again and again. As it shares the processor with what it measures, it writes
// requests that were made beforehand on connections of its own, and looks at no more of an answer than it must.
type asking struct {
	job      *clientJob
	requests [][]byte // of each prompt

	mu     sync.Mutex
	idle   []*askConn
	open   map[*askConn]struct{} // idle or not
	over   bool                  // no more are opened
	counts clientCounts
}

// askConn is a connection that was kept.
type askConn struct {
	net.Conn
	r *bufio.Reader
}

// timesMost bounds how many times to a refusal are kept.
const timesMost = 1 << 18

// load asks for as long as the job says, and tells what became of it. What is under way then is given up.
func (j *clientJob) load(ctx context.Context, tell func(clientNews) error) error {
	ctx, cancel := context.WithCancel(ctx) // no deadline: who dials would run into it before it has ended ctx
	defer cancel()
	defer time.AfterFunc(time.Duration(j.Seconds*float64(time.Second)), cancel).Stop()
	a := &asking{job: j, open: map[*askConn]struct{}{}}
	for i := range j.Prompts {
		a.requests = append(a.requests, j.request(i))
	}
	defer context.AfterFunc(ctx, a.leave)()
	defer a.leave()
	if err := tell(clientNews{Begun: true}); err != nil {
		return err
	}
	start, cpu := time.Now(), processCPU()
	if j.Kind == jobClosed {
		a.closed(ctx)
	} else {
		a.opened(ctx)
	}
	return tell(clientNews{Took: time.Since(start), CPU: processCPU() - cpu, Asked: a.counts})
}

// lengths is how many lengths answers have under load.
const lengths = 16

// request is a whole request for a prompt. Answers are from half as long to one and a half times as long as
// the job says: those of one length, once begun together, would end together for ever.
func (j *clientJob) request(prompt int) []byte {
	k := *j
	k.Tokens = max(1, j.Tokens/2+j.Tokens*(prompt*7%lengths)/(lengths-1))
	body := k.body(j.Prompts[prompt])
	head := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", j.Addr, len(body))
	return append([]byte(head), body...)
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

// Bounds of how often it is looked whether more are due. Each look wakes both ends, and while they work on one
// core the model waits for that core on all: so the looks are few, and several requests come at once.
const (
	tickLeast = 20 * time.Millisecond
	tickMost  = 50 * time.Millisecond
)

// fillTime is how long a burst takes to come: all at once would be a stampede, whose refusals wait for one another.
const fillTime = 2 * time.Second

// due is how many requests are to be sent by t after the beginning.
func (j *clientJob) due(t time.Duration) int {
	filled := min(1, t.Seconds()/fillTime.Seconds())
	return int(float64(j.Burst)*filled + t.Seconds()*j.Rate)
}

// opened asks at a rate. Where more are under way than may be, one is left out, and counted.
func (a *asking) opened(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	places := make(chan struct{}, a.job.Clients)
	tick := time.NewTicker(max(tickLeast, min(tickMost, time.Duration(float64(time.Second)/max(a.job.Rate, 1)))))
	defer tick.Stop()
	start, sent := time.Now(), 0
	for {
		for due := a.job.due(time.Since(start)); sent < due; sent++ {
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
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// ask asks once, and counts what comes of it.
func (a *asking) ask(ctx context.Context, n int) {
	start := time.Now()
	status, retry, text, err := a.send(ctx, a.requests[n%len(a.requests)])
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
		if len(c.Times) < timesMost {
			c.Times = append(c.Times, took.Microseconds())
		}
	default:
		if c.Failed++; c.Failed == 1 {
			c.Failure = fmt.Sprintf("status %d: %.100s, %v", status, text, err)
		}
	}
}

// send sends a request, and reads the answer. text is what a refusal says.
func (a *asking) send(ctx context.Context, request []byte) (status int, retry bool, text []byte, err error) {
	c, err := a.take(ctx)
	if err != nil {
		return 0, false, nil, err
	}
	keep := false
	defer func() { a.give(c, keep) }()
	if _, err := c.Write(request); err != nil {
		return 0, false, nil, err
	}
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return 0, false, nil, err
	}
	defer res.Body.Close() //nolint:errcheck // it was only read
	if res.StatusCode != http.StatusOK {
		var b bytes.Buffer
		_, err = b.ReadFrom(io.LimitReader(res.Body, 1<<10))
		text = b.Bytes()
	} else {
		err = finished(res.Body)
	}
	keep = err == nil && !res.Close
	return res.StatusCode, res.Header.Get("Retry-After") != "", text, err
}

// finished reads a stream to its end, which must be that of an answer.
func finished(body io.Reader) error {
	const end = "data: [DONE]\n\n"
	var buf [4 << 10]byte
	last := 0 // bytes at the beginning of buf, of which end would be a part
	for {
		n, err := body.Read(buf[last:])
		n += last
		last = min(n, len(end))
		copy(buf[:last], buf[n-last:n])
		if err == io.EOF {
			if string(buf[:last]) != end {
				return fmt.Errorf("a stream that ends with %q", buf[:last])
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// take returns a connection that nobody uses.
func (a *asking) take(ctx context.Context) (*askConn, error) {
	a.mu.Lock()
	if n := len(a.idle); n > 0 {
		c := a.idle[n-1]
		a.idle = a.idle[:n-1]
		a.mu.Unlock()
		return c, nil
	}
	a.mu.Unlock()
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", a.job.Addr)
	if err != nil {
		return nil, err
	}
	c := &askConn{nc, bufio.NewReader(nc)}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		_ = nc.Close() // nothing was sent
		return nil, net.ErrClosed
	}
	a.open[c] = struct{}{}
	return c, nil
}

// give gives a connection back, to be kept or not.
func (a *asking) give(c *askConn, keep bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if keep && !a.over {
		a.idle = append(a.idle, c)
		return
	}
	delete(a.open, c)
	_ = c.Close() // read to its end, or given up
}

// leave closes all connections.
func (a *asking) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	for c := range a.open {
		_ = c.Close() // ends who reads of it
	}
}
