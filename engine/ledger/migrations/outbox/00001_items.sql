-- What a worker or backbone has signed, until a gateway has read it.

-- +goose Up
CREATE TABLE items (
  id         BIGINT PRIMARY KEY,
  hub        TEXT   NOT NULL,
  session    TEXT   NOT NULL,
  sequence   BIGINT NOT NULL CHECK (sequence > 0),
  grant_text TEXT   NOT NULL, -- of the backbone
  report     BYTEA  NOT NULL,
  statement  BYTEA  NOT NULL, -- empty: a backbone's
  given      BIGINT NOT NULL, -- 1: the hub has had it
  UNIQUE (hub, session, sequence)
);
