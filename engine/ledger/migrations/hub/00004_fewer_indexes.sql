-- Sums by worker read all rows in any case: an index costs each report a page, and saves them nothing.

-- +goose Up
DROP INDEX reports_worker;
