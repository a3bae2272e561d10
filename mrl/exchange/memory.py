"""The exchange within one process."""

import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Self

import msgpack

from mrl.exchange.admission import OPEN, Admission
from mrl.exchange.batches import Sealed, accept, decode_all, encode_all
from mrl.exchange.records import Record, RecordKey
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

_SNAPSHOT = "mrl-memory-exchange-2"


# One group of one peer: its records by (index, kind).
_GroupOf = dict[tuple[int, str], Sealed]


@dataclass
class _State:
    """All that a MemoryExchange holds, so that a restore can swap it at once."""

    floor: int = 0
    # by version, then prompt, then policy: old rounds cost a collect nothing and go as a whole
    groups: dict[int, dict[str, dict[str, _GroupOf]]] = field(default_factory=dict)
    delivered: dict[tuple[str, int], set[RecordKey]] = field(default_factory=dict)
    closed: dict[str, int] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)

    def group(self, record: Record, /) -> _GroupOf:
        """Return the group that a record belongs to; a new one if it is the first."""
        prompts = self.groups.setdefault(record.version, {})
        return prompts.setdefault(record.prompt_id, {}).setdefault(record.policy_id, {})

    def entries(self) -> Iterator[Sealed]:
        for prompts in self.groups.values():
            for peers in prompts.values():
                for group in peers.values():
                    yield from group.values()

    def forget(self, first: int, end: float, /) -> None:
        """Forget records of versions, and deliveries in rounds, ``first`` to ``end - 1``."""
        for version in [known for known in self.groups if first <= known < end]:
            del self.groups[version]
        for key in [known for known in self.delivered if first <= known[1] < end]:
            del self.delivered[key]


class MemoryExchange:
    """An exchange within one process: see `Exchange`. Safe to use from several threads.

    Parameters
    ----------
    admission : Admission
        What it lets in; by default every valid record.
    """

    def __init__(self, admission: Admission = OPEN, /) -> None:
        self._admission = admission
        self._state = _State()
        self._changed = threading.Condition()  # a re-entrant lock too: it guards the state

    def publish(self, records: Iterable[Record], /) -> int:
        """See `Exchange.publish`."""
        return self._store(encode_all(checked_records(records)), Counter(), None)

    def publish_encoded(self, encoded: Iterable[bytes], /, *, sender: str | None = None) -> int:
        """See `Exchange.publish_encoded`."""
        return self._store(*accept(encoded), sender)

    def _store(self, sent: list[Sealed], damaged: Counter[str], sender: str | None, /) -> int:
        with self._changed:
            for reason, count in damaged.items():
                self._refuse(sender, reason, count)
            return sum(self._take(one, sender) for one in sent)

    def _refuse(self, sender: str | None, reason: str, count: int = 1, /) -> None:
        self._state.refused[self._admission.counted_for(sender), reason] += count

    def _take(self, one: Sealed, sender: str | None, /) -> bool:
        state, (record, key, encoded) = self._state, one
        policy = key.policy_id if sender is None else sender
        reason = self._admission.refusal(record, sender, state.floor)
        if reason is not None:
            self._refuse(policy, reason)
            return False
        group = state.group(record)
        known = group.get((key.position, key.kind))
        if known is not None:
            if known.encoded != encoded and known.record != record:
                self._refuse(policy, "conflict")
            return False
        quota = self._admission.quota_of(key.policy_id)
        if quota < math.inf and state.traffic.published(key.version, key.policy_id) >= quota:
            self._refuse(policy, "quota")
            return False
        group[key.position, key.kind] = one
        state.traffic.add(key.version, key.policy_id, PUBLISHED, key.kind, len(encoded))
        return True

    def close_round(self, policy: str, round: int, /) -> None:
        """See `Exchange.close_round`."""
        whole_number("round", round)
        with self._changed:
            if not self._admission.knows(policy):
                self._refuse(policy, "policy")
                return
            closed = self._state.closed
            closed[policy] = max(round, closed.get(policy, round))
            self._changed.notify_all()

    def wait_round(self, round: int, policies: Iterable[str], timeout: float, /) -> frozenset[str]:
        """See `Exchange.wait_round`."""
        round_to_wait_for(round, timeout)
        expected = frozenset(policies)
        with self._changed:
            self._changed.wait_for(lambda: not self._absent(round, expected), timeout)
            return self._absent(round, expected)

    def _absent(self, round: int, expected: frozenset[str], /) -> frozenset[str]:
        return absent(self._state.closed, round, expected)

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
        return [one.record for one in self._deliver(request)]

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
        return [one.encoded for one in self._deliver(request)]

    def _deliver(self, request: Request, /) -> list[Sealed]:
        with self._changed:
            state, receiver, round = self._state, request.receiver, request.round
            seen = state.delivered.setdefault((receiver, round), set())
            fresh = []
            for one in self._matching(request):
                _, key, encoded = one
                if key not in seen:
                    seen.add(key)
                    fresh.append(one)
                    state.traffic.add(round, key.policy_id, receiver, key.kind, len(encoded))
            return fresh

    def _matching(self, request: Request, /) -> Iterator[Sealed]:
        """Yield what the request asks for, delivered before or not."""
        groups = self._state.groups
        window = [known for known in groups if request.oldest <= known <= request.round]
        window.sort(reverse=True)
        for prompt in request.prompts:
            newest: dict[str, _GroupOf] = {}
            for version in window:
                for peer, group in groups[version].get(prompt, {}).items():
                    if peer not in newest and any(kind in request.needs for _, kind in group):
                        newest[peer] = group
            newest.pop(request.receiver, None)
            for peer, group in sorted(newest.items()):
                positions = request.positions(peer)
                for index, kind in sorted(group):
                    if kind in request.needs and index < positions:
                        yield group[index, kind]

    def traffic(self, round: int | None = None) -> list[TrafficRow]:
        """See `Exchange.traffic`."""
        with self._changed:
            return self._state.traffic.rows(round)

    def refused(self) -> Refusals:
        """See `Exchange.refused`."""
        with self._changed:
            return by_sender(self._state.refused)

    def drop_before(self, round: int, /) -> None:
        """See `Exchange.drop_before`."""
        whole_number("round", round)
        with self._changed:
            state = self._state
            state.floor = max(state.floor, round)
            state.forget(0, state.floor)

    def rollback(self, round: int, /) -> None:
        """See `Exchange.rollback`."""
        whole_number("round", round)
        with self._changed:
            state = self._state
            state.floor = min(state.floor, round)
            state.forget(round, math.inf)
            state.traffic.forget(round)
            state.closed = {name: min(last, round - 1) for name, last in state.closed.items()}

    def snapshot(self) -> bytes:
        """Return the whole exchange as bytes; `restore` of them gives the same exchange."""
        with self._changed:
            state = self._state
            return msgpack.packb(
                [
                    _SNAPSHOT,
                    state.floor,
                    [one.encoded for one in state.entries()],
                    [[*key, list(keys)] for key, keys in state.delivered.items()],
                    state.traffic.rows(),
                    [[*key, count] for key, count in state.refused.items()],
                    state.closed,
                ]
            )

    def restore(self, snapshot: bytes, /) -> None:
        """Become the exchange that `snapshot` was taken of; see `Exchange.restore`."""
        try:
            name, floor, encoded, delivered, traffic, refused, closed = msgpack.unpackb(snapshot)
            if name != _SNAPSHOT:
                raise ValueError(f"it is a {name!r}, not a {_SNAPSHOT!r}")
            state = _State(
                floor=floor,
                traffic=Traffic(TrafficRow(*row) for row in traffic),
                refused=Counter({(policy, reason): n for policy, reason, n in refused}),
                closed=closed,
            )
            for record, data in zip(decode_all(encoded), encoded, strict=True):
                key = record.key
                state.group(record)[key.position, key.kind] = Sealed(record, key, data)
            for receiver, round, keys in delivered:
                state.delivered[receiver, round] = {RecordKey(*key) for key in keys}
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ExchangeError(
                f"the snapshot cannot be restored into a MemoryExchange: {error}; "
                "use the exchange that the checkpoint was made with"
            ) from error
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing to let go of."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
