-- 32 random bytes of each entry of the feed, by which it is known again: an entry that is lost with the file, and
-- is entered again, is another one. NULL: of an older program.

-- +goose Up
ALTER TABLE reports ADD COLUMN mark BYTEA;
ALTER TABLE statements ADD COLUMN mark BYTEA;
