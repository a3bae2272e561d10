"""Tables and statements of the durable exchange."""

from typing import NamedTuple

# Ids are never used twice (AUTOINCREMENT): a delivery can never speak for a later record.
TABLES = """
CREATE TABLE record (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    prompt_id TEXT NOT NULL, policy_id TEXT NOT NULL, version INTEGER NOT NULL,
    kind TEXT NOT NULL, position INTEGER NOT NULL, encoded BLOB NOT NULL,
    UNIQUE (prompt_id, policy_id, version, kind, position));
CREATE TABLE delivery (
    receiver TEXT, round INTEGER, record_id INTEGER,
    PRIMARY KEY (receiver, round, record_id)) WITHOUT ROWID;
CREATE TABLE traffic (
    round INTEGER, direction TEXT, policy_id TEXT, kind TEXT,
    records INTEGER NOT NULL, bytes INTEGER NOT NULL,
    PRIMARY KEY (round, direction, policy_id, kind)) WITHOUT ROWID;
CREATE TABLE refusal (reason TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE state (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
"""

INSERT = """
INSERT INTO record (kind, policy_id, version, prompt_id, position, encoded)
VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""

FIND = """
SELECT encoded FROM record
WHERE kind = ? AND policy_id = ? AND version = ? AND prompt_id = ? AND position = ?
"""

CANDIDATES = """
SELECT policy_id, version, kind, position, id, encoded,
       EXISTS (SELECT 1 FROM delivery
               WHERE receiver = :receiver AND round = :round AND record_id = record.id)
FROM record
WHERE prompt_id = :prompt AND policy_id <> :receiver AND version BETWEEN :oldest AND :round
      AND kind IN (:kind0, :kind1, :kind2)
ORDER BY policy_id, version DESC, position, kind
"""

ADD_TRAFFIC = """
INSERT INTO traffic VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET records = records + excluded.records, bytes = bytes + excluded.bytes
"""

ADD_REFUSAL = """
INSERT INTO refusal VALUES (?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count
"""


class Candidate(NamedTuple):
    """A row of CANDIDATES."""

    policy_id: str
    version: int
    kind: str
    position: int
    id: int
    encoded: bytes
    seen: bool


TRAFFIC = """
SELECT * FROM traffic WHERE :round IS NULL OR round = :round
ORDER BY round, direction, policy_id, kind
"""
