package ledger

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"time"

	"kvasir/wire/seal"
)

// Record is what a backbone knows of a worker by checking its rows.
type Record struct {
	Worker seal.PublicKey
	Good   int64     // rows found right since its probation began, as far as that asks
	Right  int64     // rows found right in all
	At     time.Time // of the last change, whole milliseconds
}

// MaxRecords is how many records an outbox keeps; beyond it those are forgotten that have not changed for the
// longest time.
const MaxRecords = 1 << 14

// code is what tells a record that was kept from one that a disk, or somebody, has changed.
func (r *Record) code(secret *[32]byte) []byte {
	h := hmac.New(sha256.New, secret[:])
	_, _ = fmt.Fprintf(h, "record 1 %s %d %d %d", r.Worker, r.Good, r.Right, r.At.UnixMilli()) // a hash takes all
	return h.Sum(nil)
}

// KeepRecords keeps records, in place of those that there were of the same workers. The secret is the backbone's.
func (o *Outbox) KeepRecords(ctx context.Context, secret [32]byte, list []Record) error {
	return o.file.update(ctx, func(t *tx) error {
		for i := range list {
			r := &list[i]
			err := t.exec(ctx, `INSERT INTO records (worker, good, correct, at, code) VALUES ($1, $2, $3, $4, $5)
				ON CONFLICT (worker) DO UPDATE SET good = excluded.good, correct = excluded.correct, at = excluded.at, code = excluded.code`,
				r.Worker.String(), r.Good, r.Right, r.At.UnixMilli(), r.code(&secret))
			if err != nil {
				return err
			}
		}
		var n int
		if err := t.QueryRowContext(ctx, "SELECT count(*) FROM records").Scan(&n); err != nil || n <= MaxRecords {
			return err
		}
		return t.exec(ctx, "DELETE FROM records WHERE worker IN (SELECT worker FROM records ORDER BY at, worker LIMIT $1)", n-MaxRecords)
	})
}

// Records returns what KeepRecords has kept, the newest last. One that is not as it was kept is in refused, by
// name, and is kept no longer: its worker begins anew.
func (o *Outbox) Records(ctx context.Context, secret [32]byte) (all []Record, refused []error, err error) {
	var drop []any
	err = o.file.each(ctx, func(scan func(...any) error) error {
		var v [5]any // a damaged row may hold anything
		if err := scan(&v[0], &v[1], &v[2], &v[3], &v[4]); err != nil {
			return err
		}
		r, err := readRecord(v, &secret)
		if err != nil {
			o.refused.add(err)
			refused, drop = append(refused, err), append(drop, v[0])
			return nil
		}
		all = append(all, r)
		return nil
	}, "SELECT worker, good, correct, at, code FROM records ORDER BY at, worker LIMIT $1", MaxRecords)
	if err != nil || len(drop) == 0 {
		return all, refused, err
	}
	return all, refused, o.file.update(ctx, func(t *tx) error {
		for _, worker := range drop {
			if err := t.exec(ctx, "DELETE FROM records WHERE worker = $1", worker); err != nil {
				return err
			}
		}
		return nil
	})
}

// readRecord makes a record of a row.
func readRecord(v [5]any, secret *[32]byte) (r Record, err error) {
	name, _ := v[0].(string)
	good, isGood := v[1].(int64)
	right, isRight := v[2].(int64)
	at, isTime := v[3].(int64)
	code, _ := v[4].([]byte)
	r.Worker, err = seal.ParsePublicKey(name)
	if err != nil {
		return r, fmt.Errorf("%w: a record of worker %.80q", ErrDamaged, name)
	}
	r.Good, r.Right, r.At = good, right, time.UnixMilli(at).UTC()
	if !isGood || !isRight || !isTime || !hmac.Equal(code, r.code(secret)) {
		return r, fmt.Errorf("%w: the record of worker %s is not as it was kept", ErrDamaged, r.Worker.Short())
	}
	return r, nil
}
