"""What a receiver asks for, checked once for every kind of exchange."""

import math
import threading
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Self

from mrl.errors import RunError
from mrl.exchange.fields import MAX_COUNT
from mrl.exchange.records import RECORD_TYPES, Record

Limit = int | Mapping[str, int] | None


class ExchangeError(RunError):
    """The exchange cannot do what was asked; everything acknowledged before is kept."""


@dataclass(frozen=True)
class Request:
    """A checked call of `Exchange.collect`; versions ``oldest`` to ``round`` are looked at."""

    receiver: str
    prompts: tuple[str, ...]
    needs: frozenset[str]
    limit: Limit
    oldest: int
    round: int

    @classmethod
    def of(
        cls,
        receiver: str,
        prompt_ids: Iterable[str],
        needs: AbstractSet[str],
        limit: Limit,
        max_staleness: int,
        round: int,
    ) -> Self:
        """Check the arguments of `Exchange.collect`.

        Raises
        ------
        ValueError
            If an argument is out of range, or is one string where several are expected.
        """
        if not isinstance(receiver, str) or not receiver:
            raise ValueError(f"receiver={receiver!r}; expected a policy id")
        for name, value in (("prompt_ids", prompt_ids), ("needs", needs)):
            if isinstance(value, str | bytes):
                raise ValueError(f"{name}={value!r} is one string; expected a collection of them")
        unknown = sorted(set(needs) - set(RECORD_TYPES))
        if unknown:
            raise ValueError(f"needs has {unknown}; expected any of {sorted(RECORD_TYPES)}")
        limits = limit.values() if isinstance(limit, Mapping) else [0 if limit is None else limit]
        for bound in limits:
            whole_number("limit", bound)
        oldest = whole_number("round", round) - whole_number("max_staleness", max_staleness)
        prompts = tuple(dict.fromkeys(prompt_ids))
        return cls(receiver, prompts, frozenset(needs), limit, oldest, round)

    def positions(self, peer: str, /) -> float:
        """Return how many positions of the peer's groups are open; inf without a limit.

        Statistics of a group stand at position 0: a limit of 0 shuts the peer out altogether.
        """
        limit = self.limit.get(peer) if isinstance(self.limit, Mapping) else self.limit
        return math.inf if limit is None else limit


def whole_number(name: str, value: Any, /) -> int:
    """Return `value` if it is an integer from 0 to 2**63 - 1, else raise ``ValueError``."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{name}={value!r}; expected an integer from 0 to 2**63 - 1")
    return value


def checked_records(records: Iterable[Record], /) -> list[Record]:
    """Return the records as a list, or raise ``TypeError`` for anything that is not one."""
    listed = list(records)
    for record in listed:
        if not isinstance(record, Record):
            raise TypeError(
                f"publish got {type(record).__name__}; expected records, "
                "or publish_encoded for their bytes"
            )
    return listed


def round_to_wait_for(round: int, timeout: float, /) -> None:
    """Check the arguments of `Exchange.wait_round`.

    Raises
    ------
    ValueError
        If the round or the seconds are out of range.
    """
    whole_number("round", round)
    if not 0 <= timeout <= threading.TIMEOUT_MAX:
        raise ValueError(f"timeout={timeout!r}; expected seconds from 0 to {threading.TIMEOUT_MAX}")


def absent(closed: Mapping[str, int], round: int, policies: Iterable[str], /) -> frozenset[str]:
    """Return which policies have not closed a round; `closed` has the last that each did."""
    return frozenset(policy for policy in policies if closed.get(policy, -1) < round)
