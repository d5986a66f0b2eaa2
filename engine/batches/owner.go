package batches

import (
	"context"
	"database/sql"
	"fmt"
)

// Owner is on whose behalf a Store is asked. What belongs to another is not found.
type Owner struct {
	ID  string // of an API key; empty: none was asked for
	All bool   // everybody's things are there for him
}

type ownerKey struct{}

// WithOwner says on whose behalf the store is asked with this context. Without, everything is there.
func WithOwner(ctx context.Context, o Owner) context.Context {
	return context.WithValue(ctx, ownerKey{}, o)
}

// OwnerOf is what WithOwner has said. That of a line is who has begun its batch.
func OwnerOf(ctx context.Context) Owner {
	if o, ok := ctx.Value(ownerKey{}).(Owner); ok {
		return o
	}
	return Owner{All: true}
}

// theirs is a table as the owner of ctx sees it, for FROM, with one more argument if needed.
func theirs(ctx context.Context, table string, args []any) (string, []any) {
	o := OwnerOf(ctx)
	if o.All {
		return table, args
	}
	return fmt.Sprintf("(SELECT * FROM %s WHERE owner = $%d) AS theirs", table, len(args)+1), append(args[:len(args):len(args)], o.ID)
}

// own records to whom something new belongs.
func own(ctx context.Context, tx *sql.Tx, table, id string) error {
	if _, err := tx.ExecContext(ctx, "UPDATE "+table+" SET owner = $1 WHERE id = $2", OwnerOf(ctx).ID, id); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}

// inherit gives a file to who owns the batch that it came of.
func inherit(ctx context.Context, tx *sql.Tx, file, batch string) error {
	_, err := tx.ExecContext(ctx, "UPDATE files SET owner = (SELECT owner FROM batches WHERE id = $1) WHERE id = $2", batch, file)
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}
