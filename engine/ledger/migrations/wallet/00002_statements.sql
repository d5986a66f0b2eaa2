-- What workers say of reports. It moves no money.

-- +goose Up
ALTER TABLE feeds ADD COLUMN hash TEXT NOT NULL DEFAULT '';   -- of the entry at the watermark; '': not known
ALTER TABLE reports ADD COLUMN hash TEXT NOT NULL DEFAULT ''; -- as statements name it; '': entered by an older program

CREATE TABLE statements (
  id       BIGINT PRIMARY KEY,
  hub      TEXT   NOT NULL, -- whose feed brought it first
  worker   TEXT   NOT NULL,
  backbone TEXT   NOT NULL,
  session  TEXT   NOT NULL,
  sequence BIGINT NOT NULL CHECK (sequence > 0),
  hash     TEXT   NOT NULL, -- of the report
  opinion  BIGINT NOT NULL,
  answered BIGINT NOT NULL,
  signed   BYTEA  NOT NULL,
  UNIQUE (backbone, session, sequence, worker)
);
