-- Who has earned what, and on whose account: double entry. Rows of reports and entries are only ever
-- added. Keys and ids are text in the form that the program prints.

-- +goose Up
CREATE TABLE feeds (
  hub       TEXT   PRIMARY KEY,
  watermark BIGINT NOT NULL CHECK (watermark >= 0) -- all of the hub's entries up to here are dealt with
);

CREATE TABLE accounts (
  id      BIGINT PRIMARY KEY,
  kind    TEXT   NOT NULL CHECK (kind IN ('backbone', 'pending', 'settled')),
  owner   TEXT   NOT NULL, -- key of the backbone, or of the worker
  balance BIGINT NOT NULL, -- nKVR: the sum of the account's entries, kept beside them
  UNIQUE (kind, owner)
);

CREATE TABLE reports (
  id       BIGINT PRIMARY KEY,
  hub      TEXT   NOT NULL, -- whose feed brought it first
  backbone TEXT   NOT NULL,
  session  TEXT   NOT NULL,
  sequence BIGINT NOT NULL CHECK (sequence > 0),
  worker   TEXT   NOT NULL,
  picks    BIGINT NOT NULL CHECK (picks >= 0),
  bytes    BIGINT NOT NULL CHECK (bytes >= 0),
  signed   BYTEA  NOT NULL,
  UNIQUE (backbone, session, sequence)
);

CREATE INDEX reports_worker ON reports (worker);

CREATE TABLE entries (
  id      BIGINT PRIMARY KEY,
  report  BIGINT NOT NULL REFERENCES reports (id),
  account BIGINT NOT NULL REFERENCES accounts (id),
  nkvr    BIGINT NOT NULL, -- below 0: debit
  UNIQUE (report, account)
);

CREATE INDEX entries_account ON entries (account);

CREATE TABLE refusals (
  hub    TEXT   NOT NULL,
  entry  BIGINT NOT NULL, -- its id in the hub's feed
  reason TEXT   NOT NULL,
  PRIMARY KEY (hub, entry)
);
