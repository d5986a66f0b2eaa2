-- What a backbone knows of workers by checking their rows.

-- +goose Up
CREATE TABLE records (
  worker  TEXT   PRIMARY KEY,
  good    BIGINT NOT NULL, -- rows found right since its probation began, as far as that asks
  correct BIGINT NOT NULL, -- rows found right in all
  at      BIGINT NOT NULL, -- Unix milliseconds, of the last change
  code    BYTEA  NOT NULL  -- authentication code over the above, with a key of the backbone's
);
