"""Tables and statements of the durable exchange."""

from typing import NamedTuple

# Ids are never used twice (AUTOINCREMENT): a delivery can never speak for a later record.
# The version comes second in the key: a collect then reads its window and no history.
TABLES = """
CREATE TABLE record (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    prompt_id TEXT NOT NULL, policy_id TEXT NOT NULL, version INTEGER NOT NULL,
    kind TEXT NOT NULL, position INTEGER NOT NULL, encoded BLOB NOT NULL,
    UNIQUE (prompt_id, version, policy_id, kind, position));
CREATE TABLE delivery (
    receiver TEXT, round INTEGER, record_id INTEGER,
    PRIMARY KEY (receiver, round, record_id)) WITHOUT ROWID;
CREATE TABLE traffic (
    round INTEGER, source TEXT, receiver TEXT, kind TEXT,
    records INTEGER NOT NULL, bytes INTEGER NOT NULL,
    PRIMARY KEY (round, source, receiver, kind)) WITHOUT ROWID;
CREATE TABLE refusal (
    policy_id TEXT, reason TEXT, count INTEGER NOT NULL,
    PRIMARY KEY (policy_id, reason)) WITHOUT ROWID;
CREATE TABLE closed (policy_id TEXT PRIMARY KEY, round INTEGER NOT NULL) WITHOUT ROWID;
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
WHERE prompt_id = :prompt AND version BETWEEN :oldest AND :round AND policy_id <> :receiver
      AND kind IN (:kind0, :kind1, :kind2)
ORDER BY policy_id, version DESC, position, kind
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


PUBLISHED = """
SELECT COALESCE(SUM(records), 0) FROM traffic WHERE round = ? AND source = ? AND receiver = ''
"""

ADD_TRAFFIC = """
INSERT INTO traffic VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET records = records + excluded.records, bytes = bytes + excluded.bytes
"""

TRAFFIC = "SELECT * FROM traffic ORDER BY round, source, receiver, kind"
TRAFFIC_OF_ROUND = "SELECT * FROM traffic WHERE round = ? ORDER BY source, receiver, kind"

ADD_REFUSAL = """
INSERT INTO refusal VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count
"""
REFUSALS = "SELECT policy_id, reason, count FROM refusal"

CLOSE = """
INSERT INTO closed VALUES (?, ?) ON CONFLICT DO UPDATE SET round = MAX(round, excluded.round)
"""
