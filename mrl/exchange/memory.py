"""The exchange within one process."""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import msgpack

from mrl.exchange.records import Record, RecordKey, decode
from mrl.exchange.request import (
    ExchangeError,
    Limit,
    Request,
    checked_records,
    decode_all,
    whole_number,
)
from mrl.exchange.traffic import Traffic, TrafficRow

_SNAPSHOT = "mrl-memory-exchange-1"


class _Entry(NamedTuple):
    record: Record
    size: int


# One group of one peer: its records by (index, kind).
_GroupOf = dict[tuple[int, str], _Entry]


@dataclass
class _State:
    """All that a MemoryExchange holds, so that a restore can swap it at once."""

    floor: int = 0
    groups: dict[str, dict[str, dict[int, _GroupOf]]] = field(default_factory=dict)
    delivered: dict[tuple[str, int], set[RecordKey]] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    refused: Counter[str] = field(default_factory=Counter)

    def entries(self) -> Iterator[_Entry]:
        for peers in self.groups.values():
            for versions in peers.values():
                for group in versions.values():
                    yield from group.values()

    def keep_versions(self, first: int | None, end: int | None) -> None:
        """Forget the groups of versions outside ``first <= version < end``."""
        for prompt, peers in list(self.groups.items()):
            for peer, versions in list(peers.items()):
                for version in list(versions):
                    if (first is not None and version < first) or (
                        end is not None and version >= end
                    ):
                        del versions[version]
                if not versions:
                    del peers[peer]
            if not peers:
                del self.groups[prompt]


class MemoryExchange:
    """An exchange within one process: see `Exchange`. Safe to use from several threads."""

    def __init__(self) -> None:
        self._state = _State()
        self._lock = threading.RLock()

    def publish(self, records: Iterable[Record], /) -> int:
        """See `Exchange.publish`."""
        listed = checked_records(records)
        with self._lock:
            return sum(self._store(record) for record in listed)

    def _store(self, record: Record, /) -> bool:
        state = self._state
        kind, policy_id, version, prompt_id, index = record.key
        if version < state.floor:
            state.refused["expired"] += 1
            return False
        peers = state.groups.setdefault(prompt_id, {})
        group = peers.setdefault(policy_id, {}).setdefault(version, {})
        known = group.get((index, kind))
        if known is not None:
            if known.record != record:
                state.refused["conflict"] += 1
            return False
        size = len(record.encode())
        group[index, kind] = _Entry(record, size)
        state.traffic.add(version, "published", policy_id, kind, size)
        return True

    def publish_encoded(self, encoded: Iterable[bytes], /) -> int:
        """See `Exchange.publish_encoded`."""
        records, refused = decode_all(encoded)
        with self._lock:
            self._state.refused.update(refused)
            return self.publish(records)

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
        with self._lock:
            state = self._state
            seen = state.delivered.setdefault((receiver, round), set())
            fresh = []
            for entry in self._matching(request):
                key = entry.record.key
                if key not in seen:
                    seen.add(key)
                    fresh.append(entry.record)
                    state.traffic.add(round, "delivered", receiver, key.kind, entry.size)
            return fresh

    def _matching(self, request: Request, /) -> Iterator[_Entry]:
        """Yield what the request asks for, delivered before or not."""
        for prompt in request.prompts:
            peers = self._state.groups.get(prompt, {})
            for peer in sorted(peers):
                positions = request.positions(peer)
                if peer == request.receiver or not positions:
                    continue
                group = _newest(peers[peer], request)
                for index, kind in sorted(group):
                    if kind in request.needs and index < positions:
                        yield group[index, kind]

    def traffic(self, round: int | None = None) -> list[TrafficRow]:
        """See `Exchange.traffic`."""
        with self._lock:
            rows = self._state.traffic.rows()
        return [row for row in rows if round is None or row.round == round]

    def refused(self) -> dict[str, int]:
        """See `Exchange.refused`."""
        with self._lock:
            return dict(sorted(self._state.refused.items()))

    def drop_before(self, round: int, /) -> None:
        """See `Exchange.drop_before`."""
        whole_number("round", round)
        with self._lock:
            state = self._state
            state.floor = max(state.floor, round)
            state.keep_versions(state.floor, None)
            for key in [key for key in state.delivered if key[1] < state.floor]:
                del state.delivered[key]

    def rollback(self, round: int, /) -> None:
        """See `Exchange.rollback`."""
        whole_number("round", round)
        with self._lock:
            state = self._state
            state.floor = min(state.floor, round)
            state.keep_versions(None, round)
            for key in [key for key in state.delivered if key[1] >= round]:
                del state.delivered[key]
            state.traffic = Traffic(row for row in state.traffic.rows() if row.round < round)

    def snapshot(self) -> bytes:
        """Return the whole exchange as bytes; `restore` of them gives the same exchange."""
        with self._lock:
            state = self._state
            return msgpack.packb(
                [
                    _SNAPSHOT,
                    state.floor,
                    [entry.record.encode() for entry in state.entries()],
                    [[*key, list(keys)] for key, keys in state.delivered.items()],
                    state.traffic.rows(),
                    dict(state.refused),
                ]
            )

    def restore(self, snapshot: bytes, /) -> None:
        """Become the exchange that `snapshot` was taken of; see `Exchange.restore`."""
        try:
            name, floor, encoded, delivered, traffic, refused = msgpack.unpackb(snapshot)
            if name != _SNAPSHOT:
                raise ValueError(f"it is a {name!r}, not a {_SNAPSHOT!r}")
            state = _State(
                floor=floor,
                traffic=Traffic(TrafficRow(*row) for row in traffic),
                refused=Counter(refused),
            )
            for record in map(decode, encoded):
                kind, policy_id, version, prompt_id, index = record.key
                peers = state.groups.setdefault(prompt_id, {})
                group = peers.setdefault(policy_id, {}).setdefault(version, {})
                group[index, kind] = _Entry(record, len(record.encode()))
            for receiver, round, keys in delivered:
                state.delivered[receiver, round] = {RecordKey(*key) for key in keys}
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ExchangeError(
                f"the snapshot cannot be restored into a MemoryExchange: {error}; "
                "use the exchange that the checkpoint was made with"
            ) from error
        with self._lock:
            self._state = state

    def close(self) -> None:
        """Nothing to let go of."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _newest(versions: dict[int, _GroupOf], request: Request, /) -> _GroupOf:
    """Return the peer's newest group in the window that has a record of a kind asked for."""
    for version in sorted(versions, reverse=True):
        inside = request.oldest <= version <= request.round
        if inside and any(kind in request.needs for _, kind in versions[version]):
            return versions[version]
    return {}
