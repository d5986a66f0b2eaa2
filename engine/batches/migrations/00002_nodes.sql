-- +goose Up
-- Who works on the batches. One that is not seen for some time is dead, and others do its work.
CREATE TABLE nodes (
    id   TEXT PRIMARY KEY,
    seen BIGINT NOT NULL -- by the clock of the database
);

ALTER TABLE batches ADD COLUMN model TEXT NOT NULL DEFAULT '';  -- that computes it
ALTER TABLE batches ADD COLUMN stamp BIGINT NOT NULL DEFAULT 0; -- the second that stands in its answers
ALTER TABLE batches ADD COLUMN turn  BIGINT NOT NULL DEFAULT 0; -- of its first group

-- +goose Down
ALTER TABLE batches DROP COLUMN turn;
ALTER TABLE batches DROP COLUMN stamp;
ALTER TABLE batches DROP COLUMN model;
DROP TABLE nodes;
