-- +goose Up
-- Id of the API key that made it; empty: no key was asked for.
ALTER TABLE files   ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE batches ADD COLUMN owner TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE batches DROP COLUMN owner;
ALTER TABLE files   DROP COLUMN owner;
