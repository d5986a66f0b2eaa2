-- What a report settles is found without those that were settled before. Sums over entries read all rows in any
-- case: an index by account costs each of them, and saves nothing.

-- +goose Up
CREATE INDEX reports_pending ON reports (backbone, session, sequence) WHERE verdict = 'pending';
DROP INDEX entries_account;
