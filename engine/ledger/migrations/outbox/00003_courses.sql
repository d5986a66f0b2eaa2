-- How far a backbone's reports of sessions have come that are not over, and the rows that it drew and has not judged.

-- +goose Up
CREATE TABLE courses (
  session TEXT   PRIMARY KEY,
  hub     TEXT   NOT NULL,
  worker  TEXT   NOT NULL,
  model   TEXT   NOT NULL, -- hash
  profile TEXT   NOT NULL, -- hash
  hidden  BIGINT NOT NULL,
  report  BYTEA  NOT NULL, -- the newest; empty: none
  undecided BIGINT NOT NULL, -- rows of the table drawn that there should be
  lost    BIGINT NOT NULL, -- rows that could not be judged, beside those
  at      BIGINT NOT NULL, -- Unix milliseconds, of the last change
  code    BYTEA  NOT NULL  -- authentication code over the above, with a key of the backbone's
);
CREATE INDEX courses_at ON courses (at);
CREATE TABLE drawn (
  session TEXT   NOT NULL,
  id      BIGINT NOT NULL,
  sealed  BYTEA  NOT NULL, -- with a key of the backbone's: it is of somebody's text
  PRIMARY KEY (session, id)
);
