package batches

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// groupArgs are lines of a batch, from one number to another, both included.
type groupArgs struct {
	Batch string `json:"batch"`
	From  int    `json:"from"`
	To    int    `json:"to"`
}

// Kind is river.JobArgs'.
func (groupArgs) Kind() string { return "group" }

// endArgs ask for the end of a batch.
type endArgs struct {
	Batch  string `json:"batch"`
	Status string `json:"status"` // that it ends with
}

// Kind is river.JobArgs'.
func (endArgs) Kind() string { return "end" }

// expireArgs ask for the end of what has had its time.
type expireArgs struct{}

// Kind is river.JobArgs'.
func (expireArgs) Kind() string { return "expire" }

const (
	endQueue  = "ends" // so that an end waits for no group
	endPlaces = 2
	expiry    = time.Minute // between looks at what has had its time
	attempts  = 1000        // of a job, by which it is cut off
	pause     = 5 * time.Second
	textsMax  = 64 << 20 // bytes of lines that are held at once
)

// groupQueue is the queue of groups of this node's model.
func (s *Store) groupQueue() string {
	if s.o.Model == "" {
		return river.QueueDefault
	}
	return "model-" + s.o.Model
}

// startQueue starts to work.
func (s *Store) startQueue() error {
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, j *river.Job[groupArgs]) error {
		return s.again(ctx, j.Args.Batch, s.group(ctx, j.Args))
	}))
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, j *river.Job[endArgs]) error {
		return s.again(ctx, j.Args.Batch, s.end(ctx, j.Args.Batch, j.Args.Status))
	}))
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, _ *river.Job[expireArgs]) error { return s.expire(ctx) }))
	var err error
	s.queue, err = river.NewClient(s.db.driver, &river.Config{
		ID: s.id,
		Queues: map[string]river.QueueConfig{
			s.groupQueue(): {MaxWorkers: s.o.Groups}, endQueue: {MaxWorkers: endPlaces},
		},
		// What a dead node has left is put back by nodes, and long before River would.
		Workers: workers, MaxAttempts: attempts, JobTimeout: -1, RescueStuckJobsAfter: 24 * time.Hour,
		RetryPolicy: retry{}, Logger: slog.New(warnings{s.o.Log.Handler()}),
		FetchCooldown: 10 * time.Millisecond, FetchPollInterval: 200 * time.Millisecond,
		PeriodicJobs: []*river.PeriodicJob{river.NewPeriodicJob(river.PeriodicInterval(expiry), func() (river.JobArgs, *river.InsertOpts) {
			return expireArgs{}, &river.InsertOpts{Queue: endQueue}
		}, nil)},
	})
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	if err := s.queue.Start(s.ctx); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}

// again has a job tried once more after a pause, as often as it takes: a full disk may be emptied. What is
// wrong with a line fails that line, and no job.
func (s *Store) again(ctx context.Context, batch string, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	s.o.Log.Warn("a batch is held up, and goes on by itself", "batch", batch, "err", err)
	return river.JobSnooze(pause)
}

// retry waits a second longer with each attempt, up to a minute.
type retry struct{}

// NextRetry is river.ClientRetryPolicy's.
func (retry) NextRetry(job *rivertype.JobRow) time.Time {
	return time.Now().Add(min(time.Duration(len(job.Errors)+1)*time.Second, time.Minute))
}

// group answers those lines of a group that have no answer yet.
func (s *Store) group(ctx context.Context, g groupArgs) error {
	ctx, leave := s.enter(ctx, g.Batch) // first, so that an end after the next line is heard of
	defer leave()
	b, list, err := s.undone(ctx, g)
	switch {
	case ctx.Err() != nil:
		return s.stopped(ctx, g.Batch)
	case err != nil || b.Status != InProgress:
		return err
	}
	in, err := os.Open(s.path(b.Input))
	if errors.Is(err, fs.ErrNotExist) {
		return s.lost(ctx, b.ID, err)
	}
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	defer in.Close() //nolint:errcheck // it is only read
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, p := range list {
		wg.Go(func() { errs[i] = s.answer(ctx, b, in, p) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return s.stopped(ctx, g.Batch)
	}
	return errors.Join(errs...)
}

// undone returns the batch of a group, and those of its lines that have no answer.
func (s *Store) undone(ctx context.Context, g groupArgs) (b *Batch, list []place, err error) {
	if b, err = s.Batch(ctx, g.Batch); err != nil || b.Status != InProgress {
		return b, nil, err
	}
	list, err = s.open(ctx, g)
	return b, list, err
}

// lost ends a batch whose input is no longer what was checked.
func (s *Store) lost(ctx context.Context, batch string, why error) error {
	if ctx.Err() != nil {
		return s.stopped(ctx, batch)
	}
	s.o.Log.Error("a batch ends, since its file is gone or damaged", "batch", batch, "err", why)
	var path *fs.PathError
	if errors.As(why, &path) {
		why = path.Err // where it lies is for the log's readers
	}
	text, err := json.Marshal([]LineError{{Code: codes[Failed], Message: "the input file is gone or damaged: " + why.Error()}})
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	if _, err := s.db.ExecContext(s.ctx, "UPDATE batches SET errors = $1 WHERE id = $2 AND status = $3", string(text), batch, InProgress); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return s.finish(s.ctx, batch, Failed)
}

// enter counts a group of a batch as under way, and returns a context that ends with the batch.
func (s *Store) enter(ctx context.Context, batch string) (context.Context, func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.running[batch]
	if r == nil {
		r = &runs{}
		r.ctx, r.cancel = context.WithCancel(s.ctx)
		s.running[batch] = r
	}
	r.groups++
	ctx, cancel := context.WithCancel(ctx)
	detach := context.AfterFunc(r.ctx, cancel)
	return ctx, func() {
		detach()
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.groups--; r.groups == 0 {
			r.cancel()
			delete(s.running, batch)
		}
	}
}

// open lists the lines of a group that have no answer.
func (s *Store) open(ctx context.Context, g groupArgs) (list []place, err error) {
	rows, err := s.db.QueryContext(ctx,
		"SELECT line, custom_id, start, length FROM lines WHERE batch = $1 AND line BETWEEN $2 AND $3 AND status IS NULL ORDER BY line", g.Batch, g.From, g.To)
	if err != nil {
		return nil, fmt.Errorf("batches: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err tells
	for rows.Next() {
		var p place
		if err := rows.Scan(&p.line, &p.id, &p.start, &p.length); err != nil {
			return nil, fmt.Errorf("batches: %w", err)
		}
		list = append(list, p)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("batches: %w", err)
	}
	return list, nil
}

// tries is how often a line is tried that the server is to blame for; what it could not take is tried
// again for as long as the batch has.
const tries = 3

// answer computes one line and records its answer.
func (s *Store) answer(ctx context.Context, b *Batch, in *os.File, p place) error {
	free, err := s.texts.take(ctx, p.length)
	if err != nil {
		return s.stopped(ctx, b.ID)
	}
	defer free()
	text := make([]byte, p.length)
	_, err = in.ReadAt(text, p.start)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("batches: line %d of %s: %w", p.line, b.Input, err)
	}
	l, wrong := parseLine(text)
	if err != nil || wrong != nil || l.ID != p.id {
		return s.lost(ctx, b.ID, fmt.Errorf("line %d has changed", p.line))
	}
	for failures, wait := 0, time.Second; ; wait = min(2*wait, time.Minute) {
		again, err := s.try(ctx, b, p.line, &l, &failures)
		if !again {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return s.stopped(ctx, b.ID)
		}
	}
}

// try computes a line once, and records its answer unless it is to be tried again. The memory that the
// answer takes is its own until then.
func (s *Store) try(ctx context.Context, b *Batch, n int, l *line, failures *int) (again bool, err error) {
	once, forget := context.WithCancel(WithOwner(ctx, Owner{ID: b.owner}))
	defer forget()
	status, out := s.o.Answerer.Answer(once, l.URL, l.Body, stamp(b, l))
	switch {
	case status == 0:
		return false, s.stopped(ctx, b.ID)
	case status == http.StatusTooManyRequests:
		return true, nil
	case status >= http.StatusInternalServerError:
		if *failures++; *failures < tries {
			return true, nil
		}
	}
	return false, s.record(ctx, b, n, status, out)
}

// stopped says why a line has no answer: nil where its batch has ended, so that its job is done.
func (s *Store) stopped(ctx context.Context, batch string) error {
	if s.ctx.Err() != nil {
		return s.ctx.Err()
	}
	b, err := s.Batch(s.ctx, batch)
	if err != nil {
		return err
	}
	if b.Status != InProgress {
		return nil
	}
	return ctx.Err()
}

// expire ends the batches that have had their time.
func (s *Store) expire(ctx context.Context) error {
	list, err := s.batches(ctx, "WHERE ended = 0 AND expires <= $1", s.now().Unix())
	for _, b := range list {
		err = errors.Join(err, s.finish(ctx, b.ID, Expired))
	}
	return err
}

// codes of lines that a batch ended without.
var codes = map[string]string{
	Expired:   "batch_expired",
	Cancelled: "batch_cancelled",
	Failed:    "input_missing",
}

// outputLine is a line of an output, or of an error file.
type outputLine struct {
	ID       string          `json:"id"`
	CustomID string          `json:"custom_id"`
	Response *outputResponse `json:"response"`
	Error    *outputError    `json:"error"`
}

type outputResponse struct {
	Status  int             `json:"status_code"`
	Request string          `json:"request_id"`
	Body    json.RawMessage `json:"body"`
}

type outputError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}
