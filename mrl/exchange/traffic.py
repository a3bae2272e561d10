"""What sharing cost: records and bytes by round, source, receiver and kind."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mrl.exchange.records import RECORD_TYPES

PUBLISHED = ""
"""Stands for the receiver of what was published: the exchange itself."""

Refusals = dict[str, dict[str, int]]
"""Records refused, by the policy that sent them ("" for an unknown one) and by reason."""


class TrafficRow(NamedTuple):
    """Records and bytes of one round that one policy sent to another, or to the exchange.

    `receiver` is empty for what `source` published; the round is then the records' version, else
    that of the delivery. Bytes are encoded sizes.
    """

    round: int
    source: str
    receiver: str
    kind: str
    records: int
    bytes: int


class Traffic:
    """Running counts that become `TrafficRow`."""

    def __init__(self, rows: Iterable[TrafficRow] = ()) -> None:
        # records and bytes by round, then source, receiver and kind
        self._rounds: dict[int, dict[tuple[str, str, str], list[int]]] = {}
        for row in rows:
            key = row.source, row.receiver, row.kind
            self._rounds.setdefault(row.round, {})[key] = [row.records, row.bytes]

    def add(self, round: int, source: str, receiver: str, kind: str, size: int, /) -> None:
        """Count one record of `size` bytes."""
        counts = self._rounds.setdefault(round, {}).setdefault((source, receiver, kind), [0, 0])
        counts[0] += 1
        counts[1] += size

    def published(self, round: int, source: str, /) -> int:
        """Return how many records of a version a policy published."""
        counts = self._rounds.get(round, {})
        return sum(counts.get((source, PUBLISHED, kind), (0, 0))[0] for kind in RECORD_TYPES)

    def forget(self, round: int, /) -> None:
        """Forget the counts of `round` and later."""
        for late in [known for known in self._rounds if known >= round]:
            del self._rounds[late]

    def rows(self, round: int | None = None) -> list[TrafficRow]:
        """Return the counts of one round or of all, sorted."""
        rounds = sorted(self._rounds) if round is None else [round]
        return [
            TrafficRow(one, *key, records, size)
            for one in rounds
            for key, (records, size) in sorted(self._rounds.get(one, {}).items())
        ]


def by_sender(counts: Mapping[tuple[str, str], int], /) -> Refusals:
    """Arrange counts by (policy, reason) as `Exchange.refused` returns them."""
    found: Refusals = {}
    for (policy, reason), count in sorted(counts.items()):
        found.setdefault(policy, {})[reason] = count
    return found
