package cpu

import (
	"sync"
	"sync/atomic"
)

// job is work that is cut into tasks, which may run in any order and at the same time.
type job interface {
	// do runs one task. after is the task that this worker will run next, so that its weights can be asked
	// for in good time, or -1.
	do(w *worker, task, after int)
}

// team is a fixed number of workers that share out the tasks of one job at a time. The caller of run is
// one of them; the others are goroutines that live until close.
//
// Tasks are taken one by one, so a core that is slow or busy takes fewer; but for the last few, each worker
// takes its next task before it begins one.
type team struct {
	workers []*worker
	helpers []*waiter      // of all workers but the first
	ended   sync.WaitGroup // their goroutines

	mu    sync.Mutex // held by run
	job   job
	tasks int64
	next  atomic.Int64
	busy  atomic.Int64 // helpers at work
	done  *waiter      // of run, for them
}

func newTeam(n int, newWorker func() *worker) *team {
	t := &team{done: newWaiter()}
	for i := range n {
		w := newWorker()
		w.thread = i
		t.workers = append(t.workers, w)
		if i == 0 {
			continue
		}
		h := newWaiter()
		h.expect()
		t.helpers = append(t.helpers, h)
		t.ended.Go(func() { t.help(i, h) })
	}
	return t
}

// help is the goroutine of worker i, until its waiter is closed.
func (t *team) help(i int, h *waiter) {
	for h.wait() {
		t.work(t.workers[i])
		h.expect()
		if t.busy.Add(-1) == 0 {
			t.done.call()
		}
	}
}

// run runs all tasks of j and returns when they are done.
func (t *team) run(tasks int, j job) {
	if tasks == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.job, t.tasks = j, int64(tasks)
	t.next.Store(0)
	helpers := t.helpers[:min(len(t.helpers), tasks-1)]
	t.busy.Store(int64(len(helpers)))
	t.done.expect()
	for _, h := range helpers {
		h.call()
	}
	t.work(t.workers[0])
	if len(helpers) > 0 {
		t.done.wait()
	}
	t.job = nil
}

func (t *team) work(w *worker) {
	take := func() int64 { return t.next.Add(1) - 1 }
	for task := take(); task < t.tasks; {
		// Near the end nobody takes a task that another worker could begin at once.
		early := t.tasks-task > int64(2*len(t.workers))
		next := t.tasks
		if early {
			next = take()
		}
		after := -1
		if next < t.tasks {
			after = int(next)
		}
		t.job.do(w, int(task), after)
		if !early {
			next = take()
		}
		task = next
	}
}

// close ends the goroutines. Nothing runs any more.
func (t *team) close() {
	for _, h := range t.helpers {
		close(h.wake)
	}
	t.ended.Wait()
}

// Each calls do for 0 to n-1, in any order and at the same time, and returns when all is done. thread, below
// Threads, is the same for calls that follow each other, and another one for those at the same time. do may
// not use the backend.
func (b *Backend) Each(n int, do func(thread, i int)) { b.team.run(n, eachJob(do)) }

// eachJob is the job of Each.
type eachJob func(thread, i int)

func (j eachJob) do(w *worker, task, _ int) { j(w.thread, task) }
