-- A transfer is one row with both of its accounts, not three rows with three indexes each: its two entries add up
-- to zero by what they are. What is pending of a session is found behind what its newest report says of the others.
-- Of a transfer whose entries do not fit only what fits is taken over: what is missing is found as before.

-- +goose Up
CREATE TABLE moved (
  report   BIGINT NOT NULL REFERENCES reports (id), -- what is paid
  kind     TEXT   NOT NULL CHECK (kind IN ('credit', 'settle', 'void')),
  debited  BIGINT NOT NULL REFERENCES accounts (id),
  credited BIGINT NOT NULL REFERENCES accounts (id),
  nkvr     BIGINT NOT NULL CHECK (nkvr >= 0),
  PRIMARY KEY (report, kind)
);

INSERT INTO moved (report, kind, debited, credited, nkvr)
SELECT t.report, t.kind, min(d.account), min(c.account), min(c.nkvr)
FROM transfers t
  JOIN entries d ON d.transfer = t.id
  JOIN accounts a ON a.id = d.account AND a.kind = CASE t.kind WHEN 'credit' THEN 'backbone' ELSE 'pending' END
  JOIN entries c ON c.transfer = t.id
  JOIN accounts b ON b.id = c.account AND b.kind = CASE t.kind WHEN 'credit' THEN 'pending' WHEN 'settle' THEN 'settled' ELSE 'backbone' END
WHERE c.nkvr >= 0 AND d.nkvr = -c.nkvr AND EXISTS (SELECT 1 FROM reports r WHERE r.id = t.report)
GROUP BY t.report, t.kind;

DROP TABLE entries;
DROP TABLE transfers;
ALTER TABLE moved RENAME TO transfers;

CREATE VIEW entries AS
  SELECT report, kind, debited AS account, -nkvr AS nkvr FROM transfers
  UNION ALL SELECT report, kind, credited, nkvr FROM transfers;

DROP INDEX reports_pending;
DROP INDEX reports_worker;
CREATE INDEX reports_of_worker ON reports (worker);
