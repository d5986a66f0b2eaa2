package ledger

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kvasir/wire/seal"
)

func openOutbox(t *testing.T, path string) *Outbox {
	t.Helper()
	o, err := OpenOutbox(t.Context(), path, nil)
	must(t, err)
	t.Cleanup(func() { _ = o.Close() })
	return o
}

// TestDamagedRecordsAreRefusedByName changes each column of a record, puts in what is no record at all, and asks
// with the secret of another backbone.
func TestDamagedRecordsAreRefusedByName(t *testing.T) {
	s := newSwarm(t, 2)
	secret := [32]byte{1}
	good := []Record{{s.workers[0], 512, 700, epoch}, {s.workers[1], 7, 7, epoch.Add(time.Second)}}
	for _, spoil := range []string{
		"UPDATE records SET good = 511 WHERE good = 512",
		"UPDATE records SET good = 'x' WHERE good = 512",
		"UPDATE records SET good = 511.5 WHERE good = 512",
		"UPDATE records SET correct = 9223372036854775807 WHERE good = 512",
		"UPDATE records SET at = -1 WHERE good = 512",
		"UPDATE records SET code = x'' WHERE good = 512",
		"UPDATE records SET code = 'nonsense' WHERE good = 512",
		"UPDATE records SET code = (SELECT code FROM records WHERE good = 7) WHERE good = 512",
		"UPDATE records SET worker = 'nobody' WHERE good = 512",
		"UPDATE records SET worker = x'0102' WHERE good = 512",
		fmt.Sprintf("UPDATE records SET worker = '%s' WHERE good = 512", seal.NewKey().Public()),
	} {
		path := filepath.Join(t.TempDir(), "outbox.db")
		o := openOutbox(t, path)
		must(t, o.KeepRecords(t.Context(), secret, good))
		all, refused, err := o.Records(t.Context(), secret)
		must(t, err)
		if !slices.Equal(all, good) || len(refused) != 0 {
			t.Fatalf("kept %+v, got %+v; refused %v", good, all, refused)
		}
		_, err = o.file.db.ExecContext(t.Context(), spoil)
		must(t, err)
		for _, want := range []int{1, 0} { // it is said once
			all, refused, err = o.Records(t.Context(), secret)
			must(t, err)
			if !slices.Equal(all, good[1:]) || len(refused) != want {
				t.Fatalf("%s: got %+v; refused %v, want %d", spoil, all, refused, want)
			}
			for _, why := range refused {
				wantError(t, why, ErrDamaged)
				if !strings.Contains(why.Error(), "worker ") || strings.Contains(why.Error(), "\n") {
					t.Errorf("%s: %v names nobody", spoil, why)
				}
			}
		}
		if n := o.Counts()["refused_ledger_damaged"]; n != 1 {
			t.Errorf("%s: %d are counted", spoil, n)
		}
		must(t, o.KeepRecords(t.Context(), secret, good)) // and it begins anew
		must(t, o.Close())
		all, _, err = openOutbox(t, path).Records(t.Context(), secret)
		must(t, err)
		if !slices.Equal(all, good) {
			t.Fatalf("kept again %+v, got %+v", good, all)
		}
	}
	o := openOutbox(t, filepath.Join(t.TempDir(), "outbox.db"))
	must(t, o.KeepRecords(t.Context(), secret, good))
	if all, refused, err := o.Records(t.Context(), [32]byte{2}); err != nil || len(all) != 0 || len(refused) != 2 {
		t.Errorf("another backbone: %+v, refused %v, error %v", all, refused, err)
	}
}

// TestRecordsAreBounded keeps more than there is room for, and one of them twice.
func TestRecordsAreBounded(t *testing.T) {
	o := openOutbox(t, filepath.Join(t.TempDir(), "outbox.db"))
	var list []Record
	for i := range MaxRecords + 3 {
		list = append(list, Record{Worker: seal.PublicKey{byte(i), byte(i >> 8), 1}, Good: 1, Right: 1, At: epoch.Add(time.Duration(i) * time.Second)})
	}
	must(t, o.KeepRecords(t.Context(), [32]byte{}, list[:MaxRecords]))
	list[0].At = epoch.Add(1000 * time.Hour)
	must(t, o.KeepRecords(t.Context(), [32]byte{}, append(list[MaxRecords:], list[0])))
	all, refused, err := o.Records(t.Context(), [32]byte{})
	must(t, err)
	if len(all) != MaxRecords || len(refused) != 0 || all[0] != list[4] || all[len(all)-1] != list[0] {
		t.Errorf("%d records, the first %+v, the last %+v; refused %v", len(all), all[0], all[len(all)-1], refused)
	}
}
