"""The durable exchange: one SQLite file that survives the process and can be replayed."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import groupby
from os import PathLike
from sqlite3 import Connection
from typing import Any, Self, TypeVar

import msgpack

from mrl.exchange import sql
from mrl.exchange.admission import OPEN, UNKNOWN, Admission
from mrl.exchange.batches import Sealed, accept, decode_all, encode_all
from mrl.exchange.database import Database
from mrl.exchange.framing import intact
from mrl.exchange.records import RECORD_TYPES, Record, decode
from mrl.exchange.request import (
    ExchangeError,
    Limit,
    Request,
    absent,
    checked_records,
    round_to_wait_for,
    whole_number,
)
from mrl.exchange.traffic import PUBLISHED, Refusals, Traffic, TrafficRow, by_sender

T = TypeVar("T")

_SNAPSHOT = "mrl-sqlite-exchange-2"
_LOOK_SECONDS = 0.02  # between looks for what other processes closed: a file calls nobody


class SQLiteExchange:
    """An exchange in a file: see `Exchange`. What was acknowledged survives a kill at any moment.

    Parameters
    ----------
    path : path-like
        The file; made if it is not there. Its folder must exist.
    admission : Admission
        What it lets in; by default every valid record.
    keep_history : bool
        Keep what `drop_before` hides, so that a finished run's experience can be replayed and
        an earlier checkpoint finds its stale peers again.

    Raises
    ------
    ExchangeError
        If the file cannot be opened or written, or is not an exchange.

    Notes
    -----
    Write-ahead log with full synchronisation: each publish or collect is one transaction on
    disk when it returns. Several processes may hold the same file, threads may share one object.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        admission: Admission = OPEN,
        *,
        keep_history: bool = False,
    ) -> None:
        self._admission = admission
        self._keep_history = keep_history
        self._file = Database(path)

    def publish(self, records: Iterable[Record], /) -> int:
        """See `Exchange.publish`."""
        return self._store(encode_all(checked_records(records)), Counter(), None)

    def publish_encoded(self, encoded: Iterable[bytes], /, *, sender: str | None = None) -> int:
        """See `Exchange.publish_encoded`."""
        return self._store(*accept(encoded), sender)

    def _store(self, sent: list[Sealed], damaged: Counter[str], sender: str | None, /) -> int:
        refused: Counter[tuple[str, str]] = Counter()
        for damage, count in damaged.items():
            refused[self._admission.counted_for(sender), damage] += count
        traffic, stored = Traffic(), 0
        with self._file.writing() as db:
            floor = self._file.state("floor")
            room: dict[tuple[str, int], float] = {}
            for record, key, encoded in sent:
                policy = self._admission.counted_for(key.policy_id if sender is None else sender)
                reason = self._admission.refusal(record, sender, floor)
                if reason is not None:
                    refused[policy, reason] += 1
                    continue
                source = key.policy_id, key.version
                if source not in room:
                    room[source] = self._room(db, *source)
                if room[source] > 0 and db.execute(sql.INSERT, [*key, encoded]).rowcount:
                    room[source] -= 1
                    stored += 1
                    traffic.add(key.version, key.policy_id, PUBLISHED, key.kind, len(encoded))
                elif (known := db.execute(sql.FIND, key).fetchone()) is None:
                    refused[policy, "quota"] += 1
                elif known != (encoded,) and decode(*known) != record:
                    refused[policy, "conflict"] += 1
            db.executemany(sql.ADD_REFUSAL, ((*key, count) for key, count in refused.items()))
            db.executemany(sql.ADD_TRAFFIC, traffic.rows())
        return stored

    def _room(self, db: Connection, policy: str, version: int, /) -> float:
        """Return how many records of a version a policy may still publish."""
        quota = self._admission.quota_of(policy)
        if quota == math.inf:
            return quota
        return quota - db.execute(sql.PUBLISHED, [version, policy]).fetchone()[0]

    def close_round(self, policy: str, round: int, /) -> None:
        """See `Exchange.close_round`."""
        whole_number("round", round)
        with self._file.writing() as db:
            if self._admission.knows(policy):
                db.execute(sql.CLOSE, [policy, round])
            else:
                db.execute(sql.ADD_REFUSAL, [UNKNOWN, "policy", 1])

    def wait_round(self, round: int, policies: Iterable[str], timeout: float, /) -> frozenset[str]:
        """See `Exchange.wait_round`."""
        round_to_wait_for(round, timeout)
        expected, end = frozenset(policies), time.monotonic() + timeout
        while True:
            with self._file.reading() as db:
                closed = dict(db.execute("SELECT policy_id, round FROM closed"))
            missing, left = absent(closed, round, expected), end - time.monotonic()
            if not missing or left <= 0:
                return missing
            time.sleep(min(_LOOK_SECONDS, left))

    def collect(
        self,
        receiver: str,
        prompt_ids: Iterable[str],
        needs: AbstractSet[str],
        limit: Limit = None,
        max_staleness: int = 0,
        *,
        round: int,
    ) -> list[Record]:
        """See `Exchange.collect`."""
        request = Request.of(receiver, prompt_ids, needs, limit, max_staleness, round)
        return self._deliver(request, decode_all)

    def collect_encoded(
        self,
        receiver: str,
        prompt_ids: Iterable[str],
        needs: AbstractSet[str],
        limit: Limit = None,
        max_staleness: int = 0,
        *,
        round: int,
    ) -> list[bytes]:
        """See `Exchange.collect_encoded`."""
        request = Request.of(receiver, prompt_ids, needs, limit, max_staleness, round)
        return self._deliver(request, lambda encoded: [intact(data) for data in encoded])

    def _deliver(self, request: Request, read: Callable[[list[bytes]], list[T]], /) -> list[T]:
        receiver, round = request.receiver, request.round
        with self._file.writing() as db:
            fresh = [row for row in self._matching(db, request) if not row.seen]
            traffic = Traffic()
            for row in fresh:
                traffic.add(round, row.policy_id, receiver, row.kind, len(row.encoded))
            deliveries = ((receiver, round, row.id) for row in fresh)
            db.executemany("INSERT INTO delivery VALUES (?, ?, ?)", deliveries)
            db.executemany(sql.ADD_TRAFFIC, traffic.rows())
            # Read inside the transaction: a damaged file must not count as a delivery.
            return read([row.encoded for row in fresh])

    def _matching(self, db: Connection, request: Request, /) -> Iterator[sql.Candidate]:
        """Yield what the request asks for, delivered before or not."""
        kinds = [kind if kind in request.needs else None for kind in RECORD_TYPES]
        arguments: Mapping[str, Any] = {
            "receiver": request.receiver,
            "round": request.round,
            "oldest": max(request.oldest, self._file.state("floor")),
            **{f"kind{i}": kind for i, kind in enumerate(kinds)},
        }
        for prompt in request.prompts:
            rows = map(
                sql.Candidate._make,
                db.execute(sql.CANDIDATES, {**arguments, "prompt": prompt}),
            )
            for peer, theirs in groupby(rows, key=lambda row: row.policy_id):
                _, newest = next(groupby(theirs, key=lambda row: row.version))
                positions = request.positions(peer)
                yield from (row for row in newest if row.position < positions)

    def traffic(self, round: int | None = None) -> list[TrafficRow]:
        """See `Exchange.traffic`."""
        every = round is None
        with self._file.reading() as db:
            rows = db.execute(sql.TRAFFIC) if every else db.execute(sql.TRAFFIC_OF_ROUND, [round])
            return [TrafficRow(*row) for row in rows]

    def refused(self) -> Refusals:
        """See `Exchange.refused`."""
        with self._file.reading() as db:
            return by_sender({(name, why): n for name, why, n in db.execute(sql.REFUSALS)})

    def drop_before(self, round: int, /) -> None:
        """See `Exchange.drop_before`; with `keep_history` the records stay in the file."""
        whole_number("round", round)
        with self._file.writing() as db:
            floor = max(self._file.state("floor"), round)
            self._file.set_state("floor", floor)
            if not self._keep_history:
                self._file.set_state("purged", floor)
                db.execute("DELETE FROM record WHERE version < ?", [floor])
                db.execute("DELETE FROM delivery WHERE round < ?", [floor])

    def rollback(self, round: int, /) -> None:
        """See `Exchange.rollback`."""
        whole_number("round", round)
        with self._file.writing() as db:
            for name in ("floor", "purged"):
                self._file.set_state(name, min(self._file.state(name), round))
            db.execute("DELETE FROM record WHERE version >= ?", [round])
            db.execute("DELETE FROM delivery WHERE round >= ?", [round])
            db.execute("DELETE FROM traffic WHERE round >= ?", [round])
            db.execute("UPDATE closed SET round = ? WHERE round >= ?", [round - 1, round])

    def snapshot(self) -> bytes:
        """Return the position in the file, which itself is the state, and what was refused."""
        with self._file.reading() as db:
            position = [self._file.state("file"), self._file.state("floor"), self._last_id(db)]
            refused = db.execute(sql.REFUSALS).fetchall()
        return msgpack.packb([_SNAPSHOT, *position, refused])

    def restore(self, snapshot: bytes, /) -> None:
        """Check that the file is the snapshot's and lacks nothing; see `Exchange.restore`.

        What `drop_before` has hidden since comes back if the history was kept. What was
        published and delivered since is forgotten by `rollback`, which a resume calls next.
        """
        try:
            name, file, floor, last_id, refused = msgpack.unpackb(snapshot)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ExchangeError(f"the snapshot cannot be read: {error}") from error
        with self._file.writing() as db:
            same = name == _SNAPSHOT and file == self._file.state("file")
            if not same or last_id > self._last_id(db):
                raise ExchangeError(
                    f"the snapshot was not taken of {self._file.path}, or the file has lost "
                    "records since; resume with the exchange file that the checkpoint was made with"
                )
            self._file.set_state("floor", max(floor, self._file.state("purged")))
            db.execute("DELETE FROM refusal")
            db.executemany(sql.ADD_REFUSAL, refused)

    def _last_id(self, db: Connection, /) -> int:
        row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'record'").fetchone()
        return row[0] if row else 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
