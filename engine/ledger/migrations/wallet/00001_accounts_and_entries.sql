-- Who has earned what, and on whose account: double entry. Rows of transfers and entries are only ever
-- added. Keys and ids are text in the form that the program prints; times are Unix milliseconds.

-- +goose Up
CREATE TABLE feeds (
  hub       TEXT   PRIMARY KEY,
  watermark BIGINT NOT NULL CHECK (watermark >= 0) -- all of the hub's entries up to here are dealt with
);

CREATE TABLE rates (
  since BIGINT PRIMARY KEY CHECK (since >= 0), -- of reports signed from then on
  nkvr  BIGINT NOT NULL CHECK (nkvr >= 0)      -- a byte of output
);

INSERT INTO rates (since, nkvr) VALUES (0, 7);

CREATE TABLE limits (
  backbone TEXT   PRIMARY KEY,
  nkvr     BIGINT NOT NULL CHECK (nkvr >= 0) -- that it may owe
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
  at       BIGINT NOT NULL, -- when it was signed
  picks    BIGINT NOT NULL CHECK (picks >= 0),
  bytes    BIGINT NOT NULL CHECK (bytes >= 0),
  nkvr     BIGINT NOT NULL CHECK (nkvr >= 0), -- bytes by the rate of its time
  funded   BIGINT NOT NULL CHECK (funded IN (0, 1)), -- 0: the backbone's limit is reached
  verdict  TEXT   NOT NULL CHECK (verdict IN ('pending', 'settled', 'voided')),
  said_by  BIGINT NOT NULL, -- report that settled or voided it; 0: none
  signed   BYTEA  NOT NULL,
  UNIQUE (backbone, session, sequence)
);

CREATE INDEX reports_worker ON reports (worker, verdict);
CREATE INDEX reports_unfunded ON reports (backbone, id) WHERE funded = 0;

CREATE TABLE transfers (
  id     BIGINT PRIMARY KEY,
  report BIGINT NOT NULL REFERENCES reports (id), -- what is paid
  kind   TEXT   NOT NULL CHECK (kind IN ('credit', 'settle', 'void')),
  UNIQUE (report, kind)
);

CREATE TABLE entries (
  id       BIGINT PRIMARY KEY,
  transfer BIGINT NOT NULL REFERENCES transfers (id),
  account  BIGINT NOT NULL REFERENCES accounts (id),
  nkvr     BIGINT NOT NULL, -- below 0: debit
  UNIQUE (transfer, account)
);

CREATE INDEX entries_account ON entries (account);

CREATE TABLE refusals (
  hub    TEXT   NOT NULL,
  entry  BIGINT NOT NULL, -- its id in the hub's feed
  reason TEXT   NOT NULL,
  PRIMARY KEY (hub, entry)
);
