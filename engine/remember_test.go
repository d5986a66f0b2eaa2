package engine

import (
	"testing"

	"kvasir/wire/seal"
)

func TestWorkersThatHaveLeftAreBounded(t *testing.T) {
	var list []WorkerStats
	picks := int64(0)
	for i := range 3 * maxGone {
		key := seal.PublicKey{byte(i), byte(i >> 8)}
		for n := range int64(2) { // each comes twice
			list = remember(list, WorkerStats{ID: key.Short(), Key: key, Picks: n + 1, Rows: 1, BytesOut: 5})
			picks += n + 1
		}
	}
	sum, rows := int64(0), int64(0)
	for _, w := range list {
		sum += w.Picks
		rows += w.Rows
	}
	if len(list) != maxGone || sum != picks || rows != 6*maxGone || list[0].ID != "others" || list[len(list)-1].Picks != 3 {
		t.Errorf("%d workers with %d picks of %d and %d rows, first %q, last with %d picks",
			len(list), sum, picks, rows, list[0].ID, list[len(list)-1].Picks)
	}
}
