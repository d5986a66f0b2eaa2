package schedule

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
)

// TestStepOfManyChoicesIsReadAtOnce has a reader wait for each step of a request. It finds the tokens of all
// choices there when it is woken, and after the last ones the end: so it waits as often as there are steps.
func TestStepOfManyChoicesIsReadAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const choices, steps = 8, 30
		before, next := held()
		s := newFake(t, &fake{before: before}, limits{}, 0)
		r := one(3, steps)
		for len(r.Choices) < choices {
			r.Choices = append(r.Choices, &dice{vocab: fakeVocab, choice: len(r.Choices)})
		}
		st := submit(t, s, r)
		waits, tokens := 0, 0
		over := make(chan error)
		go func() {
			for {
				if !st.Ready() {
					waits++
				}
				if _, err := st.Next(t.Context()); err != nil {
					over <- err
					return
				}
				tokens++
			}
		}()
		for range steps {
			synctest.Wait() // the reader has read all that there is
			next <- nil
		}
		if err := <-over; !errors.Is(err, io.EOF) || waits != steps || tokens != choices*steps {
			t.Errorf("%v, %d tokens, waited %d times; want the end, %d, %d", err, tokens, waits, choices*steps, steps)
		}
	})
}
