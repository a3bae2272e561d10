"""What sharing cost: records and bytes by round, direction, policy and kind."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

Direction = Literal["published", "delivered"]


class TrafficRow(NamedTuple):
    """Records and bytes of one round, direction, policy and kind.

    `policy_id` is the source of what was published and the receiver of what was delivered; the
    round is the records' version or the round of the delivery. Bytes are encoded sizes.
    """

    round: int
    direction: Direction
    policy_id: str
    kind: str
    records: int
    bytes: int


class Traffic:
    """Running counts that become `TrafficRow`."""

    def __init__(self, rows: Iterable[TrafficRow] = ()) -> None:
        self._records: Counter[tuple[int, Direction, str, str]] = Counter()
        self._bytes: Counter[tuple[int, Direction, str, str]] = Counter()
        for row in rows:
            self._records[row[:4]] += row.records
            self._bytes[row[:4]] += row.bytes

    def add(self, round: int, direction: Direction, policy_id: str, kind: str, size: int) -> None:
        """Count one record of `size` bytes."""
        key = round, direction, policy_id, kind
        self._records[key] += 1
        self._bytes[key] += size

    def rows(self) -> list[TrafficRow]:
        """Return all counts, sorted."""
        return [
            TrafficRow(*key, records, self._bytes[key])
            for key, records in sorted(self._records.items())
        ]
