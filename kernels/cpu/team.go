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
	wake    []chan struct{} // of all workers but the first
	ended   sync.WaitGroup  // their goroutines

	mu    sync.Mutex // held by run
	job   job
	tasks int64
	next  atomic.Int64
	busy  sync.WaitGroup
}

func newTeam(n int, newWorker func() *worker) *team {
	t := &team{}
	for i := range n {
		t.workers = append(t.workers, newWorker())
		if i == 0 {
			continue
		}
		wake := make(chan struct{}, 1)
		t.wake = append(t.wake, wake)
		t.ended.Go(func() { t.help(i, wake) })
	}
	return t
}

// help is the goroutine of worker i, until wake is closed.
func (t *team) help(i int, wake <-chan struct{}) {
	for range wake {
		t.work(t.workers[i])
		t.busy.Done()
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
	helpers := t.wake[:min(len(t.wake), tasks-1)]
	t.busy.Add(len(helpers))
	for _, wake := range helpers {
		wake <- struct{}{}
	}
	t.work(t.workers[0])
	t.busy.Wait()
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
	for _, wake := range t.wake {
		close(wake)
	}
	t.ended.Wait()
}
