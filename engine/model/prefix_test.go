package model_test

import (
	"path/filepath"
	"slices"
	"testing"

	"kvasir/engine/model"
)

// TestSavedStateLeavesRoomForTheSequenceThatMadeIt has a budget of one sequence: the state that is saved
// in mid-prompt must go again when the sequence itself needs the room.
func TestSavedStateLeavesRoomForTheSequenceThatMadeIt(t *testing.T) {
	n := openNode(t, filepath.Join(mini, "mini35-q8_0.gguf"), nil, false)
	const length = 12 * model.PagePositions // a state is as large as four pages and a bit
	n.memory = n.NewMemory(n.SequenceBytes(length))
	first := randomTokens(1, length)
	feedAll := func(tokens []int32, chunk int) {
		t.Helper()
		s, err := n.memory.Resume(tokens)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Free()
		if got, want := feed(t, n, s, tokens[s.Len():], chunk), aloneElsewhere(t, n, tokens); got != want {
			t.Errorf("logits %08x, want %08x", got, want)
		}
	}
	feedAll(first, length)
	for i := range 3 {
		feedAll(append(slices.Clone(first[:32]), randomTokens(uint64(2+i), length-32)...), 32)
	}
}
