package grammar

import (
	"math/rand/v2"
	"sync"
	"testing"
)

// Many texts follow one grammar at once, and each is what it would be alone.
func TestMatchersShareWhatIsKept(t *testing.T) {
	schema := []byte(walkedSchemas["nested"])
	v := testVocab(t, rand.New(rand.NewPCG(3, 3)), []string{`":`, `",`, `"}`}, testAlphabet, 200)
	alone := make([]string, 8)
	for i := range alone {
		g, err := FromSchema(schema)
		if err != nil {
			t.Fatal(err)
		}
		alone[i] = string(walk(t, v, g, rand.New(rand.NewPCG(uint64(i), 4))))
	}
	g, err := FromSchema(schema)
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for i := range alone {
		wait.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 4))
			if text := string(walk(t, v, g, random)); text != alone[i] {
				t.Errorf("text %d is %q, and alone %q", i, text, alone[i])
			}
		})
	}
	wait.Wait()
}
