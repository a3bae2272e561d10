"""What a finished run left in its exchange file: read for an audit, or replayed to another run.

A stored file is opened read-only and stays as it is: a collect would count as a delivery in it.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import msgpack

from mrl.exchange import sql
from mrl.exchange.exchange import Exchange
from mrl.exchange.framing import RecordError
from mrl.exchange.records import RECORD_TYPES, Record, decode
from mrl.exchange.request import ExchangeError, Limit, Request
from mrl.exchange.traffic import Refusals, TrafficRow, by_sender

ALL = "SELECT encoded FROM record WHERE kind = ? ORDER BY version, policy_id, prompt_id, position"
OF_PROMPT = """
SELECT encoded FROM record
WHERE prompt_id = :prompt AND policy_id IN (SELECT value FROM json_each(:policies))
      AND version BETWEEN :oldest AND :round AND kind IN (:kind0, :kind1, :kind2)
ORDER BY policy_id, version, kind, position
"""
_SNAPSHOT = "mrl-replay-exchange-1"


def stored_records(path: Path, kind: str, /) -> list[Record]:
    """All records of a kind in an exchange file, older versions first.

    Parameters
    ----------
    path : Path
        ``exchange.sqlite`` of a run's folder.
    kind : str
        `Record.KIND`.

    Raises
    ------
    ExchangeError
        If the file cannot be read, is no exchange, or holds a damaged record.
    """
    with _reading(path), closing(_connect(path)) as database:
        return [decode(encoded) for (encoded,) in database.execute(ALL, [kind])]


def stored_traffic(path: Path, /) -> tuple[list[TrafficRow], Refusals]:
    """What went through the exchange of a file, and what it refused.

    Raises
    ------
    ExchangeError
        If the file cannot be read or is no exchange of this version.
    """
    with _reading(path), closing(_connect(path)) as database:
        rows = [TrafficRow(*row) for row in database.execute(sql.TRAFFIC)]
        refused = {(name, why): count for name, why, count in database.execute(sql.REFUSALS)}
    return rows, by_sender(refused)


def first_round_kept(path: Path, /) -> int:
    """First round whose records an exchange file still holds.

    Raises
    ------
    ExchangeError
        If the file cannot be read or is no exchange.
    """
    with _reading(path), closing(_connect(path)) as database:
        return int(_state(database, "purged"))


class ReplayExchange:
    """An exchange in which policies of a finished run stand in as peers; see `Exchange`.

    Before a collect, what the stored policies published on the prompts asked for is put into the
    exchange that it wraps, at the round in which it was published then. From there on a stored
    record is a record like any other: limits, staleness, at most one delivery a round, traffic and
    resume are those of the wrapped exchange.

    Parameters
    ----------
    inner : Exchange
        Where this run's policies publish and collect.
    path : Path
        ``exchange.sqlite`` of the finished run; opened read-only.
    policies : iterable of str
        Its policies that stand in; none may have the name of one of this run.
    codecs : mapping of str to SegmentEncoder
        Their tokens, where they are known: for ratios on aligned blocks.

    Raises
    ------
    ExchangeError
        If the file cannot be read or is no exchange.
    """

    def __init__(
        self,
        inner: Exchange,
        path: Path,
        policies: Iterable[str],
        /,
        codecs: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.codecs = codecs
        self._inner, self._path = inner, path
        self._policies = json.dumps(sorted(policies))
        with _reading(path):
            self._database = _connect(path)
            self._file = _state(self._database, "file")

    def publish(self, records: Iterable[Record], /) -> int:
        """See `Exchange.publish`."""
        return self._inner.publish(records)

    def publish_encoded(self, encoded: Iterable[bytes], /, *, sender: str | None = None) -> int:
        """See `Exchange.publish_encoded`."""
        return self._inner.publish_encoded(encoded, sender=sender)

    def close_round(self, policy: str, round: int, /) -> None:
        """See `Exchange.close_round`."""
        self._inner.close_round(policy, round)

    def wait_round(self, round: int, policies: Iterable[str], timeout: float, /) -> frozenset[str]:
        """See `Exchange.wait_round`; stored policies close no rounds and are not to be expected."""
        return self._inner.wait_round(round, policies, timeout)

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
        """See `Exchange.collect`; stored records count as published in the round they name."""
        request = Request.of(receiver, prompt_ids, needs, limit, max_staleness, round)
        self._stand_in(request)
        return self._inner.collect(
            receiver, request.prompts, needs, limit, max_staleness, round=round
        )

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
        """See `Exchange.collect_encoded`; stored records as for `collect`."""
        request = Request.of(receiver, prompt_ids, needs, limit, max_staleness, round)
        self._stand_in(request)
        return self._inner.collect_encoded(
            receiver, request.prompts, needs, limit, max_staleness, round=round
        )

    def _stand_in(self, request: Request, /) -> None:
        """Publish the stored records in the window of a request."""
        with _reading(self._path):
            self._inner.publish(list(self._matching(request)))

    def _matching(self, request: Request, /) -> Iterator[Record]:
        """Yield the stored records in the window of a request."""
        kinds = [kind if kind in request.needs else None for kind in RECORD_TYPES]
        arguments: Mapping[str, Any] = {
            "policies": self._policies,
            "oldest": request.oldest,
            "round": request.round,
            **{f"kind{i}": kind for i, kind in enumerate(kinds)},
        }
        for prompt in request.prompts:
            for (encoded,) in self._database.execute(OF_PROMPT, {**arguments, "prompt": prompt}):
                yield decode(encoded)

    def traffic(self, round: int | None = None) -> list[TrafficRow]:
        """See `Exchange.traffic`."""
        return self._inner.traffic(round)

    def refused(self) -> Refusals:
        """See `Exchange.refused`."""
        return self._inner.refused()

    def drop_before(self, round: int, /) -> None:
        """See `Exchange.drop_before`; the stored file keeps what it has."""
        self._inner.drop_before(round)

    def rollback(self, round: int, /) -> None:
        """See `Exchange.rollback`."""
        self._inner.rollback(round)

    def snapshot(self) -> bytes:
        """Return the wrapped exchange's snapshot, and which file was replayed."""
        return msgpack.packb([_SNAPSHOT, self._file, self._inner.snapshot()])

    def restore(self, snapshot: bytes, /) -> None:
        """Check that the same file is replayed; see `Exchange.restore`."""
        name, file, inner = _parts(snapshot)[:3]
        if name != _SNAPSHOT or file != self._file:
            raise ExchangeError(
                f"the snapshot was taken while another file than {self._path} was replayed; "
                "resume with the exchange.replay that the checkpoint was made with"
            )
        self._inner.restore(inner)

    def close(self) -> None:
        """Close both files."""
        self._database.close()
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def unwrapped(snapshot: bytes, /) -> bytes:
    """Return the snapshot of the exchange that a ReplayExchange wraps; any other as it is.

    Raises
    ------
    ExchangeError
        If it is damaged.
    """
    name, *_, inner = _parts(snapshot)
    return inner if name == _SNAPSHOT else snapshot


def _parts(snapshot: bytes, /) -> list[Any]:
    try:
        parts = msgpack.unpackb(snapshot)
    except (ValueError, msgpack.UnpackException) as error:
        raise ExchangeError(f"the snapshot cannot be read: {error}") from error
    if not isinstance(parts, list) or len(parts) < 3:
        raise ExchangeError("the snapshot cannot be read: it is not a list of at least 3 parts")
    return parts


def _connect(path: Path, /) -> sqlite3.Connection:
    # Reading a write-ahead log makes files beside it. Without one, which is how a run that has
    # ended leaves it, the file can be read as it lies, also in a folder that cannot be written.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, check_same_thread=False)


def _state(database: sqlite3.Connection, name: str, /) -> Any:
    row = database.execute("SELECT value FROM state WHERE name = ?", [name]).fetchone()
    if row is None:
        raise sqlite3.DatabaseError(f"it does not say its {name}")
    return row[0]


@contextmanager
def _reading(path: Path, /) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise ExchangeError(
            f"exchange file {path}: {error}; expected an exchange.sqlite that a run wrote"
        ) from error
    except RecordError as error:
        raise ExchangeError(f"exchange file {path} holds a damaged record: {error}") from error
