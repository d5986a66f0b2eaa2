-- What workers say of reports, and how far a gateway has read.

-- +goose Up
ALTER TABLE sessions ADD COLUMN claimed BIGINT NOT NULL DEFAULT 0; -- 1: known by its reports alone, not by the meter

CREATE TABLE statements (
  id       BIGINT PRIMARY KEY, -- in one row of numbers with those of reports
  session  TEXT   NOT NULL REFERENCES sessions (id),
  sequence BIGINT NOT NULL CHECK (sequence > 0),
  signed   BYTEA  NOT NULL,
  UNIQUE (session, sequence)
);

CREATE TABLE readers (
  reader TEXT   PRIMARY KEY,
  entry  BIGINT NOT NULL CHECK (entry >= 0) -- all up to here is in a wallet
);
