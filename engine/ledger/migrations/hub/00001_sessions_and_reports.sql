-- What a hub has seen: sessions with the counts of its meter, and the reports that backbones signed.
-- Keys and ids are text in the form that the program prints; times are Unix milliseconds.

-- +goose Up
CREATE TABLE sessions (
  id           TEXT   PRIMARY KEY,
  worker       TEXT   NOT NULL,
  backbone     TEXT   NOT NULL,
  grant_text   TEXT   NOT NULL,
  started      BIGINT NOT NULL,
  ended        BIGINT NOT NULL, -- 0: open
  to_worker    BIGINT NOT NULL CHECK (to_worker >= 0),
  to_backbone  BIGINT NOT NULL CHECK (to_backbone >= 0)
);

CREATE INDEX sessions_worker ON sessions (worker);

CREATE TABLE reports (
  id       BIGINT PRIMARY KEY, -- grows by one; what a gateway asks by
  session  TEXT   NOT NULL REFERENCES sessions (id),
  sequence BIGINT NOT NULL CHECK (sequence > 0),
  worker   TEXT   NOT NULL,
  picks    BIGINT NOT NULL CHECK (picks >= 0),
  bytes    BIGINT NOT NULL CHECK (bytes >= 0),
  signed   BYTEA  NOT NULL,
  UNIQUE (session, sequence)
);

CREATE INDEX reports_worker ON reports (worker);
