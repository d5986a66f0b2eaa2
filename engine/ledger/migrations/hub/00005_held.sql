-- What gateways hold back of what was signed for workers, because a backbone's limit is reached.

-- +goose Up
CREATE TABLE held (
  worker TEXT   PRIMARY KEY,
  nkvr   BIGINT NOT NULL CHECK (nkvr > 0)
);
