"""The durable exchange: one SQLite file that survives the process and can be replayed."""

import secrets
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from itertools import groupby
from os import PathLike, fspath
from typing import Any, Self

import msgpack

from mrl.exchange import sql
from mrl.exchange.framing import RecordError
from mrl.exchange.records import RECORD_TYPES, Record, decode
from mrl.exchange.request import (
    ExchangeError,
    Limit,
    Request,
    checked_records,
    decode_all,
    whole_number,
)
from mrl.exchange.traffic import Traffic, TrafficRow

_APPLICATION_ID = 0x4D524C45  # "MRLE" in the file's header: this is an exchange and nothing else
_LAYOUT = 1
_SNAPSHOT = "mrl-sqlite-exchange-1"
_WAIT_SECONDS = 30.0


class SQLiteExchange:
    """An exchange in a file: see `Exchange`. What was acknowledged survives a kill at any moment.

    Parameters
    ----------
    path : path-like
        The file; made if it is not there. Its folder must exist.
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

    def __init__(self, path: str | PathLike[str], *, keep_history: bool = False) -> None:
        self._path = fspath(path)
        self._keep_history = keep_history
        self._lock = threading.RLock()
        try:
            # isolation_level None: transactions are opened and closed by _transaction alone.
            self._db = sqlite3.connect(
                self._path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._failure(error) from error
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error as error:
            raise self._failure(error) from error
        with self._transaction() as db:
            (tables,) = db.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()
            if not tables:
                for statement in sql.TABLES.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                db.execute(f"PRAGMA user_version = {_LAYOUT}")
                values = {"floor": 0, "purged": 0, "file": secrets.token_hex(16)}
                db.executemany("INSERT INTO state VALUES (?, ?)", values.items())
            (application,) = db.execute("PRAGMA application_id").fetchone()
            (layout,) = db.execute("PRAGMA user_version").fetchone()
            if (application, layout) != (_APPLICATION_ID, _LAYOUT):
                raise ExchangeError(
                    f"{self._path} is a database but not an exchange of layout {_LAYOUT}; "
                    "choose another file"
                )

    def _failure(self, error: Exception, /) -> ExchangeError:
        return ExchangeError(
            f"exchange file {self._path}: {error}; expected a folder that exists and a file and "
            "disk that can be written, held open by this exchange"
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything inside happens on disk, or nothing of it does."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                    self._db.execute("COMMIT")
                except BaseException:
                    if self._db.in_transaction:  # a full disk may have ended it already
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._failure(error) from error
            except RecordError as error:
                raise ExchangeError(
                    f"exchange file {self._path} holds a damaged record: {error}"
                ) from error

    def _state(self, name: str, /) -> Any:
        (value,) = self._db.execute("SELECT value FROM state WHERE name = ?", [name]).fetchone()
        return value

    def _set_state(self, name: str, value: Any, /) -> None:
        self._db.execute("UPDATE state SET value = ? WHERE name = ?", [value, name])

    def publish(self, records: Iterable[Record], /) -> int:
        """See `Exchange.publish`."""
        return self._store(checked_records(records), Counter())

    def publish_encoded(self, encoded: Iterable[bytes], /) -> int:
        """See `Exchange.publish_encoded`."""
        return self._store(*decode_all(encoded))

    def _store(self, records: list[Record], refused: Counter[str], /) -> int:
        traffic, stored = Traffic(), 0
        with self._transaction() as db:
            floor = self._state("floor")
            for record in records:
                key, encoded = record.key, record.encode()
                if key.version < floor:
                    refused["expired"] += 1
                elif db.execute(sql.INSERT, [*key, encoded]).rowcount:
                    stored += 1
                    traffic.add(key.version, "published", key.policy_id, key.kind, len(encoded))
                elif db.execute(sql.FIND, key).fetchone() != (encoded,):
                    refused["conflict"] += 1
            db.executemany(sql.ADD_REFUSAL, refused.items())
            db.executemany(sql.ADD_TRAFFIC, traffic.rows())
        return stored

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
        with self._transaction() as db:
            fresh = [row for row in self._matching(request) if not row.seen]
            traffic = Traffic()
            for row in fresh:
                traffic.add(round, "delivered", receiver, row.kind, len(row.encoded))
            deliveries = ((receiver, round, row.id) for row in fresh)
            db.executemany("INSERT INTO delivery VALUES (?, ?, ?)", deliveries)
            db.executemany(sql.ADD_TRAFFIC, traffic.rows())
            # Decoded inside the transaction: a damaged file must not count as a delivery.
            return [decode(row.encoded) for row in fresh]

    def _matching(self, request: Request, /) -> Iterator[sql.Candidate]:
        """Yield what the request asks for, delivered before or not."""
        kinds = [kind if kind in request.needs else None for kind in RECORD_TYPES]
        arguments: Mapping[str, Any] = {
            "receiver": request.receiver,
            "round": request.round,
            "oldest": max(request.oldest, self._state("floor")),
            **{f"kind{i}": kind for i, kind in enumerate(kinds)},
        }
        for prompt in request.prompts:
            rows = map(
                sql.Candidate._make,
                self._db.execute(sql.CANDIDATES, {**arguments, "prompt": prompt}),
            )
            for peer, theirs in groupby(rows, key=lambda row: row.policy_id):
                _, newest = next(groupby(theirs, key=lambda row: row.version))
                positions = request.positions(peer)
                yield from (row for row in newest if row.position < positions)

    def traffic(self, round: int | None = None) -> list[TrafficRow]:
        """See `Exchange.traffic`."""
        with self._transaction() as db:
            return [TrafficRow(*row) for row in db.execute(sql.TRAFFIC, {"round": round})]

    def refused(self) -> dict[str, int]:
        """See `Exchange.refused`."""
        with self._transaction() as db:
            return dict(db.execute("SELECT reason, count FROM refusal ORDER BY reason"))

    def drop_before(self, round: int, /) -> None:
        """See `Exchange.drop_before`; with `keep_history` the records stay in the file."""
        whole_number("round", round)
        with self._transaction() as db:
            floor = max(self._state("floor"), round)
            self._set_state("floor", floor)
            if not self._keep_history:
                self._set_state("purged", floor)
                db.execute("DELETE FROM record WHERE version < ?", [floor])
                db.execute("DELETE FROM delivery WHERE round < ?", [floor])

    def rollback(self, round: int, /) -> None:
        """See `Exchange.rollback`."""
        whole_number("round", round)
        with self._transaction() as db:
            for name in ("floor", "purged"):
                self._set_state(name, min(self._state(name), round))
            db.execute("DELETE FROM record WHERE version >= ?", [round])
            db.execute("DELETE FROM delivery WHERE round >= ?", [round])
            db.execute("DELETE FROM traffic WHERE round >= ?", [round])

    def snapshot(self) -> bytes:
        """Return the position in the file: the file itself is the state."""
        with self._transaction():
            position = [self._state("file"), self._state("floor"), self._last_id()]
        return msgpack.packb([_SNAPSHOT, *position])

    def restore(self, snapshot: bytes, /) -> None:
        """Check that the file is the snapshot's and lacks nothing; see `Exchange.restore`.

        What `drop_before` has hidden since comes back if the history was kept. What was
        published and delivered since is forgotten by `rollback`, which a resume calls next.
        """
        try:
            name, file, floor, last_id = msgpack.unpackb(snapshot)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ExchangeError(f"the snapshot cannot be read: {error}") from error
        with self._transaction():
            if name != _SNAPSHOT or file != self._state("file") or last_id > self._last_id():
                raise ExchangeError(
                    f"the snapshot was not taken of {self._path}, or the file has lost records "
                    "since; resume with the exchange file that the checkpoint was made with"
                )
            self._set_state("floor", max(floor, self._state("purged")))

    def _last_id(self) -> int:
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'record'").fetchone()
        return row[0] if row else 0

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
