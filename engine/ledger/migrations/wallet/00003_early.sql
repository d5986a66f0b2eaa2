-- Reports that came before others of their session, until those come.

-- +goose Up
CREATE TABLE early (
  backbone   TEXT   NOT NULL,
  session    TEXT   NOT NULL,
  sequence   BIGINT NOT NULL CHECK (sequence > 0),
  hub        TEXT   NOT NULL, -- whose feed brought it
  entry      BIGINT NOT NULL, -- its id there
  grant_text TEXT   NOT NULL, -- of the backbone
  signed     BYTEA  NOT NULL,
  PRIMARY KEY (backbone, session, sequence)
);
