-- +goose Up
-- Written for SQLite and for PostgreSQL: only types and phrases that both know.
CREATE TABLE files (
    id       TEXT PRIMARY KEY,
    purpose  TEXT NOT NULL,
    name     TEXT NOT NULL,
    bytes    BIGINT NOT NULL,
    created  BIGINT NOT NULL -- Unix seconds, as all times here
);

CREATE TABLE batches (
    id         TEXT PRIMARY KEY,
    number     BIGINT NOT NULL UNIQUE, -- in the order of creation
    input      TEXT NOT NULL,
    endpoint   TEXT NOT NULL,
    metadata   TEXT NOT NULL,          -- JSON, an object
    status     TEXT NOT NULL,
    created    BIGINT NOT NULL,
    expires    BIGINT NOT NULL,
    ended      BIGINT NOT NULL DEFAULT 0,
    total      BIGINT NOT NULL DEFAULT 0,
    completed  BIGINT NOT NULL DEFAULT 0,
    failed     BIGINT NOT NULL DEFAULT 0,
    output     TEXT NOT NULL DEFAULT '',
    error_file TEXT NOT NULL DEFAULT '',
    errors     TEXT NOT NULL DEFAULT '[]' -- JSON, of validation
);

-- A line is done once its status is not null.
CREATE TABLE lines (
    batch     TEXT NOT NULL REFERENCES batches (id),
    line      BIGINT NOT NULL, -- from 1
    custom_id TEXT NOT NULL,
    start     BIGINT NOT NULL, -- where it begins in the input file
    length    BIGINT NOT NULL,
    status    BIGINT,
    answer    BYTEA,
    PRIMARY KEY (batch, line),
    UNIQUE (batch, custom_id)
);

-- +goose Down
DROP TABLE lines;
DROP TABLE batches;
DROP TABLE files;
