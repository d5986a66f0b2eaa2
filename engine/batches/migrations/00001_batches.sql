-- +goose Up
CREATE TABLE files (
    id       TEXT PRIMARY KEY,
    purpose  TEXT NOT NULL,
    name     TEXT NOT NULL,
    bytes    INTEGER NOT NULL,
    created  INTEGER NOT NULL -- Unix seconds, as all times here
) STRICT;

CREATE TABLE batches (
    id         TEXT PRIMARY KEY,
    number     INTEGER NOT NULL UNIQUE, -- in the order of creation
    input      TEXT NOT NULL,
    endpoint   TEXT NOT NULL,
    metadata   TEXT NOT NULL,           -- JSON, an object
    status     TEXT NOT NULL,
    created    INTEGER NOT NULL,
    expires    INTEGER NOT NULL,
    ended      INTEGER NOT NULL DEFAULT 0,
    total      INTEGER NOT NULL DEFAULT 0,
    completed  INTEGER NOT NULL DEFAULT 0,
    failed     INTEGER NOT NULL DEFAULT 0,
    output     TEXT NOT NULL DEFAULT '',
    error_file TEXT NOT NULL DEFAULT '',
    errors     TEXT NOT NULL DEFAULT '[]' -- JSON, of validation
) STRICT;

-- A line is done once its status is not null.
CREATE TABLE lines (
    batch     TEXT NOT NULL REFERENCES batches (id),
    line      INTEGER NOT NULL, -- from 1
    custom_id TEXT NOT NULL,
    start     INTEGER NOT NULL, -- where it begins in the input file
    length    INTEGER NOT NULL,
    status    INTEGER,
    answer    BLOB,
    PRIMARY KEY (batch, line),
    UNIQUE (batch, custom_id)
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE lines;
DROP TABLE batches;
DROP TABLE files;
